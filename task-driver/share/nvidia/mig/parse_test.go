package mig

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func read(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestParseProfiles_RecordedOutput(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]map[string]uint64{
		"mig-lgip-a30.txt":      {"1g.6gb": 5952, "1g.6gb+me": 5952, "2g.12gb": 11968, "2g.12gb+me": 11968, "4g.24gb": 24000},
		"mig-lgip-h100-nvl.txt": {"1g.12gb": 11008, "1g.12gb+me": 11008, "1g.24gb": 22144, "2g.24gb": 22144, "3g.47gb": 47488, "4g.47gb": 47488, "7g.94gb": 95360},
	} {
		list, err := parseProfiles(read(t, name))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got := map[string]uint64{}
		for _, p := range list {
			got[p.name] = p.memoryMiB
			if p.plain == strings.Contains(p.name, "+") || p.parts != int(p.name[0]-'0') {
				t.Errorf("%s: %+v", name, p)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: memory (-want +got):\n%s", name, diff)
		}
	}
}

func TestParsePlaces_RecordedOutput(t *testing.T) {
	t.Parallel()
	list, err := parseProfiles(read(t, "mig-lgip-h100-nvl.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if err := parsePlaces(read(t, "mig-lgipp-h100-nvl.txt"), list); err != nil {
		t.Fatal(err)
	}
	got := map[string][]int{}
	for _, p := range list {
		got[p.name] = append(append([]int{}, p.starts...), -p.size)
	}
	want := map[string][]int{
		"1g.12gb": {0, 1, 2, 3, 4, 5, 6, -1}, "1g.12gb+me": {0, 1, 2, 3, 4, 5, 6, -1}, "1g.24gb": {0, 2, 4, 6, -2},
		"2g.24gb": {0, 2, 4, -2}, "3g.47gb": {0, 4, -4}, "4g.47gb": {0, -4}, "7g.94gb": {0, -8},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("places, and sizes as the last (-want +got):\n%s", diff)
	}
}

func TestParseInstances(t *testing.T) {
	t.Parallel()
	list, err := parseInstances(read(t, "mig-lgi-a30.txt"))
	want := []instance{{3, 14, "1g.6gb", 0, 1}, {4, 14, "1g.6gb", 1, 1}, {2, 5, "2g.12gb", 2, 2}}
	if err != nil || cmp.Diff(want, list, cmp.AllowUnexported(instance{})) != "" {
		t.Errorf("got %v, %v", list, err)
	}
	if list, err = parseInstances(read(t, "mig-lgi-none.txt")); err != nil || len(list) != 0 {
		t.Errorf("none: %v, %v", list, err)
	}
	for what, text := range map[string]string{
		"nothing":           "",
		"another answer":    "nvidia-smi: internal error",
		"a row cut off":     "|   0  MIG 1g.6gb          14        3   \n",
		"rows of two cards": "|   0  MIG 1g.6gb          14        3          0:1     |\n|   1  MIG 1g.6gb          14        3          0:1     |\n",
		"no size":           "|   0  MIG 1g.6gb          14        3          0:0     |\n",
	} {
		if list, err := parseInstances(text); err == nil {
			t.Errorf("%s is read as %v", what, list)
		}
	}
}

func TestParseList(t *testing.T) {
	t.Parallel()
	got, ok := parseList(read(t, "list-a30-mig.txt")+read(t, "list-h100-mig.txt"), "GPU-1e44b340-5807-0dbe-62e6-343a6b8b8bcd")
	want := map[int]string{0: "MIG-1b8509c0-e60d-502d-8263-d434867998aa", 1: "MIG-41b9eab5-8d48-5c52-9f07-82bc59af3901", 2: "MIG-55dcd9bd-e6b1-549a-bcb4-0b0496bfee9c"}
	if diff := cmp.Diff(want, got); !ok || diff != "" {
		t.Errorf("first card (-want +got):\n%s", diff)
	}
	if _, ok := parseList(read(t, "list-a30-mig.txt"), "GPU-1e44b340"); ok {
		t.Error("half of a UUID finds a card")
	}
}

func TestParseState_RecordedOutput(t *testing.T) {
	t.Parallel()
	text := read(t, "xml-a100-sxm4-mig.xml")
	_, after, _ := strings.Cut(text, "<uuid>")
	uuid, _, _ := strings.Cut(after, "</uuid>")
	s, err := parseState(text, uuid)
	if err != nil {
		t.Fatal(err)
	}
	want := []part{{Index: 0, GI: 1}, {Index: 1, GI: 2}}
	if diff := cmp.Diff(want, s.Devices); s.Current != enabled || s.Pending != enabled || diff != "" {
		t.Errorf("%+v; devices (-want +got):\n%s", s, diff)
	}
	if _, err := parseState(text, "GPU-other"); err == nil {
		t.Error("a card that is not listed is found")
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"mig-lgip-a30.txt", "mig-lgipp-h100-nvl.txt", "mig-lgi-a30.txt", "mig-lgi-none.txt", "list-a30-mig.txt", "xml-a100-sxm4-mig.xml"} {
		f.Add(read(f, name))
	}
	f.Fuzz(func(t *testing.T, text string) {
		profiles, err := parseProfiles(text)
		if err == nil && len(profiles) == 0 {
			t.Error("no profiles and no error")
		}
		if err := parsePlaces(text, profiles); err == nil {
			for _, p := range profiles {
				if p.size < 0 || p.size > maxSlices {
					t.Errorf("size %d", p.size)
				}
			}
		}
		if list, err := parseInstances(text); err == nil {
			for _, i := range list {
				if i.size < 1 || i.start > maxSlices {
					t.Errorf("read %+v", i)
				}
			}
		}
		parseList(text, "GPU-1")
		if s, err := parseState(text, "GPU-1"); err == nil && s.UUID != "GPU-1" {
			t.Errorf("read card %q", s.UUID)
		}
	})
}
