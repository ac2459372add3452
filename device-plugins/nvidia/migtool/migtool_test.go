package migtool

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func recorded(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func profile(name string, id, free, total int, mib uint64, sms float64) Profile {
	return Profile{Name: name, ID: id, Free: free, Total: total, MemoryMiB: &mib, SMs: &sms}
}

func TestProfiles(t *testing.T) {
	t.Parallel()
	for file, want := range map[string][]Profile{
		"mig-lgip-a30.txt": {
			profile("1g.6gb", 14, 4, 4, 5949, 14), profile("1g.6gb+me", 21, 1, 1, 5949, 14), profile("2g.12gb", 5, 2, 2, 11970, 28),
			profile("2g.12gb+me", 6, 1, 1, 11970, 28), profile("4g.24gb", 0, 1, 1, 24002, 56),
		},
		"mig-lgip-h100-nvl.txt": {
			profile("1g.12gb", 19, 7, 7, 11008, 16), profile("1g.12gb+me", 20, 1, 1, 11008, 16), profile("1g.24gb", 15, 4, 4, 22138, 26),
			profile("2g.24gb", 14, 3, 3, 22138, 32), profile("3g.47gb", 9, 2, 2, 47493, 60), profile("4g.47gb", 5, 1, 1, 47493, 64),
			profile("7g.94gb", 0, 1, 1, 95354, 132),
		},
		"mig-lgi-none.txt": nil,
	} {
		if diff := cmp.Diff(want, Profiles(recorded(t, file))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", file, diff)
		}
	}
}

func TestPlacements(t *testing.T) {
	t.Parallel()
	want := []Placement{
		{Profile: 19, Starts: []int{0, 1, 2, 3, 4, 5, 6}, Size: 1},
		{Profile: 20, Starts: []int{0, 1, 2, 3, 4, 5, 6}, Size: 1},
		{Profile: 15, Starts: []int{0, 2, 4, 6}, Size: 2},
		{Profile: 14, Starts: []int{0, 2, 4}, Size: 2},
		{Profile: 9, Starts: []int{0, 4}, Size: 4},
		{Profile: 5, Starts: []int{0}, Size: 4},
		{Profile: 0, Starts: []int{0}, Size: 8},
	}
	if diff := cmp.Diff(want, Placements(recorded(t, "mig-lgipp-h100-nvl.txt"))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestInstances(t *testing.T) {
	t.Parallel()
	want := []Instance{
		{Name: "1g.6gb", Profile: 14, ID: 3, Start: 0, Length: 1},
		{Name: "1g.6gb", Profile: 14, ID: 4, Start: 1, Length: 1},
		{Name: "2g.12gb", Profile: 5, ID: 2, Start: 2, Length: 2},
	}
	if diff := cmp.Diff(want, Instances(recorded(t, "mig-lgi-a30.txt"))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := Instances(recorded(t, "mig-lgi-none.txt")); len(got) != 0 {
		t.Errorf("none: %v", got)
	}
}

func TestCreated(t *testing.T) {
	t.Parallel()
	got, err := Created(recorded(t, "mig-create-a30.txt"))
	if diff := cmp.Diff([]Made{{Instance: 2, Profile: 5, Name: "2g.12gb", Compute: []int{0}}}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for file, want := range map[string]string{
		"error-mig-create-insufficient.txt": "make MIG partitions: insufficient resources",
		"error-mig-create-in-use.txt":       "make MIG partitions: in use by another client",
	} {
		if got, err := Created(recorded(t, file)); err == nil || err.Error() != want || len(got) != 0 {
			t.Errorf("%s: %v, %v", file, got, err)
		}
	}
}

func Fuzz(f *testing.F) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		f.Add(recorded(f, filepath.Base(file)))
	}
	f.Fuzz(func(t *testing.T, out string) {
		for _, p := range Profiles(out) {
			if p.Name == "" || p.ID < 0 {
				t.Errorf("profile %+v", p)
			}
		}
		for _, p := range Placements(out) {
			if len(p.Starts) == 0 {
				t.Errorf("placement %+v", p)
			}
		}
		Instances(out)
		if made, err := Created(out); len(made) > most || err != nil && err.Error() == "" {
			t.Errorf("%d made, %v", len(made), err)
		}
	})
}
