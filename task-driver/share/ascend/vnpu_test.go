package ascend

import (
	"os"
	"path/filepath"
	"slices"
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

func ask(task string, mib uint64) share.Ask {
	return share.Ask{
		ID: share.NewID(task, accel.Ascend, "NPU-1"), TaskID: task, Vendor: accel.Ascend, Form: accel.Shared, MemoryMiB: mib, Of: 1, Container: true,
		Card: grant.Card{UUID: "NPU-1", Model: "910B3", Index: 3, PCI: "0000:5a:00.0", MemoryMiB: 65536, Nodes: []string{"/dev/davinci3"}},
	}
}

func none(string) {}

func TestVNPUs_PassTheSuite(t *testing.T) {
	t.Parallel()
	sharetest.Run(t, sharetest.Suite{
		Machine: func(t testing.TB) sharetest.Machine {
			f := makertest.NewNPUSMI()
			return sharetest.Machine{Tool: f, Root: t.TempDir(), Things: f.Things, Foreign: func() { f.Add("vir05_1c_16g") }}
		},
		New:      func(h share.Host) share.Backend { return NewVNPUs(h) },
		Asks:     []share.Ask{ask("a/t/1", 16384), ask("b/t/2", 32768)},
		Nameless: true,
	})
}

// machine is a host with a fake tool.
func machine(t *testing.T) (*makertest.NPUSMI, share.Host) {
	t.Helper()
	f := makertest.NewNPUSMI()
	return f, share.Host{Tool: f, Root: t.TempDir(), Dir: "/state"}
}

func TestVNPUs_ASetupNamesTheNumberAndTheNode(t *testing.T) {
	t.Parallel()
	f, h := machine(t)
	f.Add("vir05_1c_16g")
	var told []string
	got, err := NewVNPUs(h).Prepare(t.Context(), ask("a", 32768), func(text string) { told = append(told, text) })
	if err != nil {
		t.Fatal(err)
	}
	want := share.Setup{
		Env:     map[string]string{"ASCEND_RUNTIME_OPTIONS": "VIRTUAL", "ASCEND_RT_VISIBLE_DEVICES": "0"},
		Visible: "149", Nodes: []string{"/dev/vdavinci149:/dev/davinci149"}, Instead: true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("setup (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"making virtual NPU vir10_3c_32g (32 GiB) on NPU 3 chip 0", "virtual NPU 149 is made on NPU 3 chip 0"}, told); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestVNPUs_Refusals(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		set  func(f *makertest.NPUSMI, a *share.Ask)
		want string
	}{
		"a process of the host":      {func(_ *makertest.NPUSMI, a *share.Ask) { a.Container = false }, "for containers"},
		"no template of this size":   {func(_ *makertest.NPUSMI, a *share.Ask) { a.MemoryMiB = 10240 }, "vir05_1c_16g (16 GiB, 25 %), vir10_3c_32g (32 GiB, 50 %)"},
		"more compute than memory":   {func(_ *makertest.NPUSMI, a *share.Ask) { a.ComputePct = 50 }, "16 GiB and 50 % of compute"},
		"the chip is used whole":     {func(f *makertest.NPUSMI, _ *share.Ask) { f.PIDs = []int{77} }, "used whole by process 77"},
		"too few cores are free":     {func(f *makertest.NPUSMI, _ *share.Ask) { f.Add("vir10_3c_32g"); f.Add("vir10_3c_32g") }, "0 of 20 AI cores free"},
		"the chip is not listed":     {func(_ *makertest.NPUSMI, a *share.Ask) { a.Card.Nodes = []string{"/dev/davinci9"} }, "no device 9"},
		"the chip is another":        {func(_ *makertest.NPUSMI, a *share.Ask) { a.Card.PCI = "0000:01:00.0" }, "the numbers have changed"},
		"half a list":                {func(f *makertest.NPUSMI, _ *share.Ask) { f.Add("vir05_1c_16g"); f.HalfList = true }, "half a list"},
		"failed with status 0":       {func(f *makertest.NPUSMI, _ *share.Ask) { f.Refuses = true }, "The resource is busy."},
		"templates of another chip":  {func(f *makertest.NPUSMI, a *share.Ask) { a.Card.Model = "910B" }, "lists no template of a 910B"},
		"nothing known of this chip": {func(f *makertest.NPUSMI, a *share.Ask) { a.Card.Model, f.NoSizes = "910Z", true }, "none is published"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, h := machine(t)
			a := ask("a", 16384)
			tc.set(f, &a)
			before := f.Things()
			_, err := NewVNPUs(h).Prepare(t.Context(), a, none)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an error with %q", err, tc.want)
			}
			if diff := cmp.Diff(before, f.Things()); diff != "" {
				t.Errorf("virtual NPUs (-before +after):\n%s", diff)
			}
		})
	}
}

func TestVNPUs_WithoutAListThePublishedTemplatesHold(t *testing.T) {
	t.Parallel()
	f, h := machine(t)
	f.NoSizes = true
	if _, err := NewVNPUs(h).Prepare(t.Context(), ask("a", 16384), none); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"vir05_1c_16g"}, f.Things()); diff != "" {
		t.Error(diff)
	}
}

// Two new ones of one template after a crash: which is whose cannot be told, and none is taken away.
func TestVNPUs_TwoMadeAtOneMomentAreLeftAlone(t *testing.T) {
	t.Parallel()
	f, h := machine(t)
	b := NewVNPUs(h)
	a := ask("a", 16384)
	if err := b.notes.Put(a.ID, note{NPU: 3, Template: "vir05_1c_16g"}); err != nil {
		t.Fatal(err)
	}
	f.Add("vir05_1c_16g")
	f.Add("vir05_1c_16g")
	if err := b.Release(t.Context(), a.ID); err == nil || !strings.Contains(err.Error(), "[148 149]") {
		t.Errorf("got %v, want an error that names both", err)
	}
	if len(f.Things()) != 2 {
		t.Errorf("left are %v", f.Things())
	}
}

// After the machine has started anew without vnpu-cfg-recover, our number may be a stranger's.
func TestVNPUs_AfterARestartOfTheMachine(t *testing.T) {
	t.Parallel()
	for recovers, left := range map[string]int{"enable": 0, "disable": 1} {
		f, h := machine(t)
		f.Recover = recovers
		boot := func(id string) {
			path := h.Path("/proc/sys/kernel/random/boot_id")
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(id+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		boot("one")
		if _, err := NewVNPUs(h).Prepare(t.Context(), ask("a", 16384), none); err != nil {
			t.Fatal(err)
		}
		boot("two")
		if err := NewVNPUs(h).Reconcile(t.Context(), nil); err != nil {
			t.Error(err)
		}
		if len(f.Things()) != left {
			t.Errorf("recover %s: left are %v, want %d", recovers, f.Things(), left)
		}
	}
}

func TestVNPUs_ProbeSaysTheFix(t *testing.T) {
	t.Parallel()
	f, h := machine(t)
	f.Mode = "vm"
	if err := NewVNPUs(h).Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "sudo npu-smi set -t vnpu-mode -d 0") {
		t.Errorf("got %v", err)
	}
	f.Mode = "docker"
	if err := NewVNPUs(h).Probe(t.Context()); err != nil {
		t.Error(err)
	}
	if slices.ContainsFunc(f.Calls(), func(c string) bool { return strings.HasPrefix(c, "npu-smi set") }) {
		t.Errorf("a probe changed something: %v", f.Calls())
	}
}

func TestVNPUs_RandomWalk(t *testing.T) {
	t.Parallel()
	makertest.Run(t, makertest.Walk{
		Machine: func(_ *rapid.T, root string) sharetest.Machine {
			f := makertest.NewNPUSMI()
			f.Add("vir05_1c_16g")
			return sharetest.Machine{Tool: f, Root: root, Things: f.Things}
		},
		New:  func(h share.Host) share.Backend { return NewVNPUs(h) },
		Asks: makertest.Sizes(4, ask, 16384, 32768),
	})
}

func TestChoice_GoldIsAVirtualNPUAndSilverASlice(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		qos     accel.QoS
		library bool
		want    string
	}{
		"gold":                       {accel.Gold, true, "vnpu"},
		"silver":                     {accel.Silver, true, "hami"},
		"silver without the library": {accel.Silver, false, "vnpu"},
		"none asked":                 {"", true, "vnpu"},
	} {
		f, h := machine(t)
		if tc.library {
			withLibrary(t, h.Root, "one")
		}
		m := share.NewManager(share.Options{Registry: share.NewRegistry(NewVNPUs(h), NewSlices(h)), Dir: t.TempDir(), Alive: func(string) bool { return true }})
		a := ask("a", 16384)
		a.QoS = tc.qos
		made, err := m.Prepare(t.Context(), []share.Ask{a}, none)
		if err != nil || made[0].Backend != tc.want {
			t.Errorf("%s: %+v, %v, want %s", name, made, err, tc.want)
		}
		if err := m.Release(t.Context(), a.TaskID); err != nil || len(f.Things()) > 0 {
			t.Errorf("%s: left are %v, %v", name, f.Things(), err)
		}
	}
}
