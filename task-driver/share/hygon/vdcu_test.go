package hygon

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/maker/makertest"
	"github.com/heteroflow/heteroflow/task-driver/share/sharetest"
)

func sample(t testing.TB, name string) string {
	t.Helper()
	body, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func write(t testing.TB, path, body string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
}

func ask(task string, mib uint64, pct int) share.Ask {
	return share.Ask{
		ID: share.NewID(task, accel.Hygon, "DCU-1"), TaskID: task, Vendor: accel.Hygon, Form: accel.Shared, MemoryMiB: mib, ComputePct: pct, Of: 1, Container: true,
		Card: grant.Card{UUID: "DCU-1", Model: "K100_AI", Index: 1, PCI: "0000:3d:00.0", MemoryMiB: 32752},
	}
}

func none(string) {}

func machine(t testing.TB) share.Host {
	t.Helper()
	h := share.Host{Tool: makertest.NewHySMI(), Root: t.TempDir(), Dir: "/state"}
	write(t, h.Path(mkfd), "")
	return h
}

func TestVDCUs_PassTheSuite(t *testing.T) {
	t.Parallel()
	sharetest.Run(t, sharetest.Suite{
		Machine: func(t testing.TB) sharetest.Machine {
			h := machine(t)
			return sharetest.Machine{
				Tool: h.Tool, Root: h.Root,
				Foreign: func() { write(t, h.Path("/etc/vdev/vdev7.conf"), sample(t, "written-vdev0.conf")) },
				Things: func() []string {
					found, err := filepath.Glob(h.Path("/etc/vdev/*"))
					if err != nil {
						t.Fatal(err)
					}
					return found
				},
			}
		},
		New:  func(h share.Host) share.Backend { return New(h) },
		Asks: []share.Ask{ask("a/t/1", 8192, 25), ask("b/t/2", 16384, 50)},
	})
}

func TestVDCUs_TheFileAndTheMounts(t *testing.T) {
	t.Parallel()
	h := machine(t)
	write(t, h.Path("/etc/vdev/vdev0.conf"), sample(t, "written-vdev0.conf")) // somebody else's, of units 0–15 and pipe 2
	write(t, h.Path(dtk, "bin"), "")
	b := New(h)
	a := ask("a", 8192, 25)
	got, err := b.Prepare(t.Context(), a, none)
	if err != nil {
		t.Fatal(err)
	}
	own := "/state/hygon/vdcu/shares/" + string(a.ID)
	want := share.Setup{
		Env:    map[string]string{"HIP_VISIBLE_DEVICES": "0"},
		Mounts: []share.Mount{{Source: own, Target: "/etc/vdev/docker", ReadOnly: true}, {Source: "/opt/dtk", Target: "/opt/hygondriver", ReadOnly: true}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("setup (-want +got):\n%s", diff)
	}
	body, err := os.ReadFile(h.Path(own, "vdev0.conf"))
	if err != nil {
		t.Fatal(err)
	}
	text := "PciBusId: 0000:3d:00.0\ncu_mask: 0x000000007fff0000\ncu_mask: 0x0000000000000000\ncu_count: 15\nmem: 8192 MiB\ndevice_id: 0\nvdev_id: 0\npipe_id: 0\nenable: 1\n"
	if diff := cmp.Diff(text, string(body)); diff != "" {
		t.Errorf("file (-want +got):\n%s", diff)
	}
}

func TestVDCUs_Refusals(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		set  func(h share.Host, a *share.Ask)
		want string
	}{
		"a process of the host": {func(_ share.Host, a *share.Ask) { a.Container = false }, "run the task in a container"},
		"two cards":             {func(_ share.Host, a *share.Ask) { a.Of = 2 }, "one virtual card"},
		"no address":            {func(_ share.Host, a *share.Ask) { a.Card.PCI = "" }, "PCI address"},
		"a card unknown":        {func(_ share.Host, a *share.Ask) { a.Card.Index = 5 }, "compute units of card 5"},
		"no units left":         {func(_ share.Host, a *share.Ask) { a.ComputePct = 90 }, "44 of 60 compute units free, 54 are needed"},
		"more than the card":    {func(_ share.Host, a *share.Ask) { a.MemoryMiB = 40000 }, "multiples of 1 MiB"},
		"a file that cannot be read": {func(h share.Host, _ *share.Ask) {
			write(t, h.Path("/etc/vdev/vdev1.conf"), "cu_mask: what")
		}, "vdev1.conf cannot be told"},
		"four already": {func(h share.Host, _ *share.Ask) {
			for i := range 3 {
				write(t, h.Path(fmt.Sprintf("/usr/local/vgpu/dcu/pod%d/vdev0.conf", i)), sample(t, "written-vdev0.conf"))
			}
		}, "has 4 virtual DCUs"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := machine(t)
			write(t, h.Path("/etc/vdev/vdev0.conf"), sample(t, "written-vdev0.conf"))
			a := ask("a", 8192, 25)
			tc.set(h, &a)
			if _, err := New(h).Prepare(t.Context(), a, none); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an error with %q", err, tc.want)
			}
			if _, err := os.Stat(h.Path("/state/hygon/vdcu/shares", string(a.ID))); err == nil {
				t.Error("something is left")
			}
		})
	}
}

func TestVDCUs_ProbeSaysTheFix(t *testing.T) {
	t.Parallel()
	h := machine(t)
	write(t, h.Path("/sys/module/hycu/version"), "6.3.7-V1.0\n")
	if err := New(h).Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "6.3.7, virtual cards need 6.3.8") {
		t.Errorf("an old driver: %v", err)
	}
	write(t, h.Path("/sys/module/hycu/version"), "6.3.10\n")
	if err := New(h).Probe(t.Context()); err != nil {
		t.Errorf("6.3.10: %v", err)
	}
	if err := os.Remove(h.Path(mkfd)); err != nil {
		t.Fatal(err)
	}
	if err := New(h).Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "sudo modprobe hycu") {
		t.Errorf("without the node: %v", err)
	}
}

// Whatever comes and goes: units of shares with a limit never overlap, pipes are never had twice, and four are the most.
func TestVDCUs_NeverTwoOwners(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "walk")
		if err != nil {
			rt.Fatal(err)
		}
		h := share.Host{Tool: makertest.NewHySMI(), Root: dir, Dir: "/state"}
		held := map[share.ID]int{}
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			b := New(h)
			a := ask(fmt.Sprint(rapid.IntRange(0, 6).Draw(rt, "task")), 4096, rapid.SampledFrom([]int{0, 10, 25, 50}).Draw(rt, "pct"))
			if rapid.Bool().Draw(rt, "release") {
				if err := b.Release(t.Context(), a.ID); err != nil {
					rt.Fatal(err)
				}
				delete(held, a.ID)
			} else if _, err := b.Prepare(t.Context(), a, none); err == nil {
				held[a.ID] = a.ComputePct
			}
			check(rt, b, held)
		}
	})
}

func check(rt *rapid.T, b *VDCUs, held map[share.ID]int) {
	rt.Helper()
	var taken mask
	pipes := map[int]bool{}
	for id, pct := range held {
		c, err := b.read(b.folder.Path(id, fileName))
		if err != nil {
			rt.Fatal(err)
		}
		if pipes[c.Pipe] {
			rt.Fatalf("pipe %d is had twice", c.Pipe)
		}
		pipes[c.Pipe] = true
		if pct == 0 {
			continue
		}
		if taken[0]&c.Mask[0] != 0 || taken[1]&c.Mask[1] != 0 {
			rt.Fatalf("units are had twice: %x and %x", taken, c.Mask)
		}
		taken = taken.or(c.Mask)
	}
	if len(held) > limit {
		rt.Fatalf("%d virtual cards", len(held))
	}
}

func TestUnits_Samples(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]map[int]int{
		"virtual-show-device-info.txt": {0: 60, 1: 60}, "virtual-show-device-info-in-container.txt": {0: 60},
	} {
		if diff := cmp.Diff(want, units(sample(t, name))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestVersion_Sample(t *testing.T) {
	t.Parallel()
	if got := versionText.FindString(sample(t, "showdriverversion-bw.txt")); got != "6.3.31" {
		t.Errorf("the version is %q", got)
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"written-vdev0.conf", "virtual-show-device-info.txt"} {
		f.Add(sample(f, name))
	}
	f.Fuzz(func(t *testing.T, text string) {
		for index, n := range units(text) {
			if index < 0 || n < 1 || n > maxUnits {
				t.Errorf("card %d has %d units", index, n)
			}
		}
		c, err := parseConf(text)
		if err != nil {
			return
		}
		again, err := parseConf(string(c.text()))
		if diff := cmp.Diff(c, again); err != nil || diff != "" && !strings.ContainsAny(c.PCI, " \t\r\n:") {
			t.Errorf("written and read again: %v\n%s", err, diff)
		}
	})
}
