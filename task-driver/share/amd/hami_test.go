package amd

import (
	"context"
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
	"github.com/heteroflow/heteroflow/task-driver/share/sharetest"
)

// Properties written in the kernel's form with the numbers that were measured: an MI300X of 304 units on 8 dies, and a card
// of RDNA3 with 60 units.
const (
	mi300x = "cpu_cores_count 0\nsimd_count 1216\nsimd_per_cu 4\narray_count 32\nsimd_arrays_per_engine 1\nnum_xcc 8\ngfx_target_version 90402\nlocation_id 2560\ndomain 0\n"
	rdna3  = "cpu_cores_count 0\nsimd_count 120\nsimd_per_cu 2\narray_count 6\nsimd_arrays_per_engine 2\nnum_xcc 1\ngfx_target_version 110001\nlocation_id 768\n"
)

func write(t testing.TB, path, body string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
}

func machine(t testing.TB, root string) share.Host {
	t.Helper()
	h := share.Host{Root: root, Dir: "/state", Tool: sharetest.NewTools(nil)}
	write(t, h.Path(library), "one")
	write(t, h.Path(topNodes, "0/properties"), "cpu_cores_count 20\nsimd_count 0\n")
	write(t, h.Path(topNodes, "1/properties"), mi300x)
	write(t, h.Path(topNodes, "2/properties"), rdna3)
	return h
}

func ask(task string, mib uint64, pct int) share.Ask {
	return share.Ask{
		ID: share.NewID(task, accel.AMD, "GPU-1"), TaskID: task, Vendor: accel.AMD, Form: accel.Shared, MemoryMiB: mib, ComputePct: pct, Of: 1, Container: true,
		Card: grant.Card{UUID: "GPU-1", Model: "MI300X", PCI: "0000:0a:00.0", MemoryMiB: 196608},
	}
}

func none(string) {}

func TestSlices_PassTheSuite(t *testing.T) {
	t.Parallel()
	sharetest.Run(t, sharetest.Suite{
		Machine: func(t testing.TB) sharetest.Machine {
			h := machine(t, t.TempDir())
			return sharetest.Machine{Tool: h.Tool, Root: h.Root}
		},
		New:      func(h share.Host) share.Backend { return New(h) },
		Asks:     []share.Ask{ask("a/t/1", 49152, 25), ask("b/t/2", 65536, 50)},
		Toolless: true,
	})
}

func TestSlices_Setup(t *testing.T) {
	t.Parallel()
	b := New(machine(t, t.TempDir()))
	a := ask("a", 49152, 25)
	a.Position, a.Of = 1, 2
	got, err := b.Prepare(t.Context(), a, none)
	if err != nil {
		t.Fatal(err)
	}
	own := "/state/amd/hami/shares/" + string(a.ID)
	want := share.Setup{
		Env: map[string]string{
			"HSA_CU_MASK": "1:0-71", "HIP_DEVICE_MEMORY_LIMIT_1": "49152m",
			"HIP_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/shared/hip.cache", "LD_AUDIT": "/usr/local/vgpu/libamvgpu.so",
		},
		Mounts: []share.Mount{
			{Source: own + "/libamvgpu.so", Target: "/usr/local/vgpu/libamvgpu.so", ReadOnly: true},
			{Source: own + "/shared", Target: "/usr/local/vgpu/shared"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("setup (-want +got):\n%s", diff)
	}
	if alone, err := b.Prepare(t.Context(), ask("alone", 1024, 0), none); err != nil || alone.Env["ROCR_VISIBLE_DEVICES"] != "0" || alone.Env["HIP_VISIBLE_DEVICES"] != "0" {
		t.Errorf("a card alone: %v, %v", alone.Env, err)
	}
	first := ask("a", 1024, 0)
	first.Of = 2
	first.ID = share.NewID("a", accel.AMD, "GPU-0")
	other, err := b.Prepare(t.Context(), first, none)
	if err != nil {
		t.Fatal(err)
	}
	joined, err := b.Join([]share.Setup{other, got})
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"HIP_DEVICE_MEMORY_LIMIT_0": "1024m"}
	for name, value := range want.Env {
		env[name] = value
	}
	if diff := cmp.Diff(share.Setup{Env: env, Mounts: other.Mounts}, joined); diff != "" {
		t.Errorf("joined (-want +got):\n%s", diff)
	}
}

// The rows are those that GPUStack measured on hardware, where they did not fail open.
func TestTopology_MasksAsMeasured(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		properties string
		rows       map[int]string // percent → mask; empty: refused
	}{
		"CDNA of 8 dies": {mi300x, map[int]string{1: "", 3: "0-7", 5: "0-7", 6: "0-15", 11: "0-31", 50: "0-151", 100: "0-303"}},
		"RDNA":           {rdna3, map[int]string{10: "0-5", 20: "0-11", 25: "0-11", 50: "0-29", 75: "0-41", 100: "0-59", 9: ""}},
	} {
		topo, _, ok := parseTopology(tc.properties)
		if !ok {
			t.Fatalf("%s: no topology", name)
		}
		for pct, want := range tc.rows {
			n, err := topo.part(pct)
			var atoms []int
			for i := range n {
				atoms = append(atoms, i)
			}
			if got := topo.ranges(atoms); got != want || (err == nil) != (want != "") {
				t.Errorf("%s, %d %%: got %q, %v, want %q", name, pct, got, err, want)
			}
		}
	}
}

func TestTopology_Samples(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]topology{
		"mi308x-partition": {Units: 20, XCC: 1, Engines: 4, Gen: 9}, "vega10": {Units: 64, XCC: 1, Engines: 4},
	} {
		body, err := os.ReadFile(filepath.Join("testdata", name, "properties"))
		if err != nil {
			t.Fatal(err)
		}
		got, address, ok := parseTopology(string(body))
		if diff := cmp.Diff(want, got); !ok || diff != "" || address == "" {
			t.Errorf("%s at %s (-want +got):\n%s", name, address, diff)
		}
	}
}

func TestSlices_Refusals(t *testing.T) {
	t.Parallel()
	for want, set := range map[string]func(h share.Host, a *share.Ask){
		"run the task in a container":  func(_ share.Host, a *share.Ask) { a.Container = false },
		"write compute = 3 or more":    func(_ share.Host, a *share.Ask) { a.ComputePct = 1 },
		"has no card at \"\"":          func(_ share.Host, a *share.Ask) { a.Card.PCI = "" },
		"0 of 304 compute units free":  func(h share.Host, _ *share.Ask) { fill(h) },
		"a slice needs memory":         func(_ share.Host, a *share.Ask) { a.MemoryMiB = 0 },
		"keep /usr/local/vgpu/libamvg": func(h share.Host, _ *share.Ask) { _ = os.Remove(h.Path(library)) },
	} {
		h := machine(t, t.TempDir())
		a := ask("a", 1024, 25)
		set(h, &a)
		if _, err := New(h).Prepare(t.Context(), a, none); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
		if notes, err := New(h).notes.All(); err != nil || notes[a.ID].Card != "" {
			t.Errorf("%s: left is %v, %v", want, notes, err)
		}
	}
}

func fill(h share.Host) {
	full := ask("full", 1024, 100)
	if _, err := New(h).Prepare(context.Background(), full, none); err != nil {
		panic(err)
	}
}

// Whatever comes and goes: no compute unit is had twice by slices with a limit.
func TestSlices_NoUnitTwice(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "walk")
		if err != nil {
			rt.Fatal(err)
		}
		h := machine(t, dir)
		for range rapid.IntRange(1, 10).Draw(rt, "steps") {
			b := New(h)
			a := ask(fmt.Sprint(rapid.IntRange(0, 5).Draw(rt, "task")), 1024, rapid.IntRange(0, 60).Draw(rt, "pct"))
			if rapid.Bool().Draw(rt, "release") {
				if err := b.Release(t.Context(), a.ID); err != nil {
					rt.Fatal(err)
				}
			} else if _, err := b.Prepare(t.Context(), a, none); err != nil && !strings.Contains(err.Error(), "compute") {
				rt.Fatal(err)
			}
			notes, err := b.notes.All()
			if err != nil {
				rt.Fatal(err)
			}
			taken := map[int]share.ID{}
			for id, s := range notes {
				for _, atom := range s.Atoms {
					if other, is := taken[atom]; is {
						rt.Fatalf("part %d is of %s and of %s", atom, id, other)
					}
					taken[atom] = id
				}
			}
		}
	})
}

func FuzzParseTopology(f *testing.F) {
	f.Add(mi300x)
	f.Add(rdna3)
	f.Add("simd_count 4\nsimd_per_cu 8\narray_count 99999999999\n")
	f.Fuzz(func(t *testing.T, text string) {
		topo, _, ok := parseTopology(text)
		if ok && (topo.Units < 1 || topo.XCC < 1 || topo.atom() < 1 || topo.atoms() < 0) {
			t.Errorf("%+v", topo)
		}
	})
}
