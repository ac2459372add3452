package mig

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/nvidia/nvidiatest"
	"github.com/heteroflow/heteroflow/task-driver/share/sharetest"
)

const (
	card     = "GPU-1e44b340-5807-0dbe-62e6-343a6b8b8bcd"
	stateDir = "/var/lib/heteroflow/shares"
)

func asked(task string, mib uint64, pct int) share.Ask {
	return share.Ask{
		ID: share.NewID(task, accel.NVIDIA, card), TaskID: task, Vendor: accel.NVIDIA, Form: accel.MIG, Of: 1, Container: true,
		Card: grant.Card{UUID: card, MemoryMiB: 95830}, MemoryMiB: mib, ComputePct: pct,
	}
}

// process is the backend as a new process makes it.
func process(m *nvidiatest.Machine) *Backend {
	return New(share.Host{Tool: m.Tools, Root: m.Root, Dir: stateDir})
}

func TestBackend_PassesTheSuite(t *testing.T) {
	t.Parallel()
	sharetest.Run(t, sharetest.Suite{
		Machine: func(t testing.TB) sharetest.Machine {
			m := nvidiatest.New(t, nvidiatest.L40S("GPU-0"), nvidiatest.H100NVL(card))
			return sharetest.Machine{
				Tool: m.Tools, Root: m.Root, Things: m.Instances, Foreign: func() { m.Add(1, 19, 0) },
			}
		},
		New:      func(h share.Host) share.Backend { return New(h) },
		Asks:     []share.Ask{asked("a/t/1", 20000, 0), asked("b/t/2", 10000, 0)},
		Nameless: true,
	})
}

func TestPrepare_TellsWhatItMade(t *testing.T) {
	t.Parallel()
	m := nvidiatest.New(t, nvidiatest.H100NVL(card))
	var said []string
	setup, err := process(m).Prepare(t.Context(), asked("a", 20000, 25), func(text string) { said = append(said, text) })
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{card + " 2g.24gb@4"}; !slices.Equal(m.Instances(), want) {
		t.Errorf("on the card: %v, want %v", m.Instances(), want)
	}
	if want := []string{"MIG 2g.24gb created on " + card + ": " + setup.Visible}; !slices.Equal(said, want) || !strings.HasPrefix(setup.Visible, "MIG-") {
		t.Errorf("events %q, setup %+v", said, setup)
	}
	if !slices.Contains(m.Calls(), "nvidia-smi mig -i "+card+" -cgi 14:4 -C") {
		t.Errorf("calls: %q", m.Calls())
	}
}

// TestPrepare_IDsAreTheCards uses a card whose profile ids differ: 5 is 4g on a H100 and 2g here.
func TestPrepare_IDsAreTheCards(t *testing.T) {
	t.Parallel()
	m := nvidiatest.New(t, nvidiatest.A30(card))
	a := asked("a", 10000, 0)
	a.Card.MemoryMiB = 24576
	if _, err := process(m).Prepare(t.Context(), a, func(string) {}); err != nil {
		t.Fatal(err)
	}
	if want := []string{card + " 2g.12gb@0"}; !slices.Equal(m.Instances(), want) {
		t.Errorf("got %v, want %v", m.Instances(), want)
	}
}

func TestPrepare_Nodes(t *testing.T) {
	t.Parallel()
	m := nvidiatest.New(t, nvidiatest.H100NVL(card))
	for path, text := range map[string]string{
		"/proc/driver/nvidia/capabilities/gpu0/mig/gi1/access":     "DeviceFileMinor: 12\nDeviceFileMode: 292\nDeviceFileModify: 1\n",
		"/proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0/access": "DeviceFileMinor: 13\nDeviceFileMode: 292\nDeviceFileModify: 1\n",
		"/dev/nvidia-caps/nvidia-cap12":                            "", "/dev/nvidia-caps/nvidia-cap13": "",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(m.Root, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(m.Root, path), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	setup, err := process(m).Prepare(t.Context(), asked("a", 10000, 0), func(string) {})
	want := []string{"/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"}
	if err != nil || !slices.Equal(setup.Nodes, want) || setup.Instead {
		t.Errorf("got %+v, %v; want %v beside the card's own", setup, err, want)
	}
}

// refusals are what a task is told, each with the fix, and nothing is left behind.
func TestPrepare_Refusals(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		card func(c *nvidiatest.Card)
		ask  share.Ask
		want []string
	}{
		"mode is off": {
			card: func(c *nvidiatest.Card) { c.MIG = "Disabled" }, ask: asked("a", 1000, 0),
			want: []string{"is off: sudo nvidia-smi -i " + card + " -mig 1"},
		},
		"mode is pending": {
			card: func(c *nvidiatest.Card) { c.MIG, c.Pending = "Disabled", "Enabled" }, ask: asked("a", 1000, 0),
			want: []string{"is Disabled and becomes Enabled at the card's next reset, which this driver never does"},
		},
		"mode will be off": {
			card: func(c *nvidiatest.Card) { c.Pending = "Disabled" }, ask: asked("a", 1000, 0),
			want: []string{"is Enabled and becomes Disabled at the card's next reset"},
		},
		"no MIG": {card: func(c *nvidiatest.Card) { c.MIG = "[N/A]" }, ask: asked("a", 1000, 0), want: []string{"has no MIG"}},
		"in use": {
			card: func(c *nvidiatest.Card) {
				c.Busy, c.Clients = true, []nvidiatest.Client{{PID: 21180, Name: "/usr/bin/nv-hostengine"}}
			},
			ask: asked("a", 1000, 0), want: []string{"In use by another client: used by pid 21180 (/usr/bin/nv-hostengine)"},
		},
		"in use by nobody": {
			card: func(c *nvidiatest.Card) { c.Busy = true }, ask: asked("a", 1000, 0), want: []string{"no process is listed: look for agents"},
		},
		"no room": {
			card: func(c *nvidiatest.Card) {
				c.Instances = []nvidiatest.Instance{{ID: 1, Profile: 9, Start: 0, Compute: true}, {ID: 2, Profile: 19, Start: 4, Compute: true}}
			},
			ask:  asked("a", 40000, 0),
			want: []string{"no place for MIG 3g.47gb (Insufficient Resources)", "3g.47gb at 0 (not made by this driver)", "1g.12gb at 4 (not made"},
		},
		"the compute instance fails": {
			card: func(c *nvidiatest.Card) { c.NoCompute = 1 }, ask: asked("a", 1000, 0),
			want: []string{"the compute instance was not created, the GPU instance is taken back: Unable to create a compute instance"},
		},
		"too large": {card: func(*nvidiatest.Card) {}, ask: asked("a", 99000, 0), want: []string{"no MIG profile of this card holds"}},
	} {
		m := nvidiatest.New(t, nvidiatest.H100NVL(card))
		m.Set(0, c.card)
		before := m.Instances()
		_, err := process(m).Prepare(t.Context(), c.ask, func(text string) { t.Errorf("%s: event %q", what, text) })
		if err == nil {
			t.Errorf("%s: no error", what)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q does not say %q", what, err, want)
			}
		}
		if diff := cmp.Diff(before, m.Instances()); diff != "" {
			t.Errorf("%s: on the card (-before +after):\n%s", what, diff)
		}
		if now, _, err := process(m).notes.all(); err != nil || len(now) != 0 {
			t.Errorf("%s: notes %v, %v", what, now, err)
		}
		for _, call := range m.Calls() {
			if strings.Contains(call, "reset") || strings.Contains(call, "-mig ") {
				t.Errorf("%s: %q was called", what, call)
			}
		}
	}
}

func TestPrepare_NoRoomNamesTasks(t *testing.T) {
	t.Parallel()
	m := nvidiatest.New(t, nvidiatest.H100NVL(card))
	b := process(m)
	if _, err := b.Prepare(t.Context(), asked("train/gpu/7", 90000, 0), func(string) {}); err != nil {
		t.Fatal(err)
	}
	_, err := b.Prepare(t.Context(), asked("b", 1000, 0), func(string) {})
	if err == nil || !strings.Contains(err.Error(), "7g.94gb at 0 (of task train/gpu/7)") {
		t.Errorf("got %v", err)
	}
}

func TestRelease_InUse(t *testing.T) {
	t.Parallel()
	m := nvidiatest.New(t, nvidiatest.H100NVL(card))
	b, a, gi := process(m), asked("a", 1000, 0), 1
	if _, err := b.Prepare(t.Context(), a, func(string) {}); err != nil {
		t.Fatal(err)
	}
	m.Set(0, func(c *nvidiatest.Card) {
		c.Clients = []nvidiatest.Client{{PID: 77, Name: "python", GI: &gi}, {PID: 78, Name: "other"}}
	})
	err := b.Release(t.Context(), a.ID)
	if err == nil || !strings.HasSuffix(err.Error(), "In use by another client: used by pid 77 (python)") || len(m.Instances()) != 1 {
		t.Errorf("got %v; on the card %v", err, m.Instances())
	}
	m.Set(0, func(c *nvidiatest.Card) { c.Clients = nil })
	if err := b.Release(t.Context(), a.ID); err != nil || len(m.Instances()) != 0 {
		t.Errorf("the process has ended: %v; on the card %v", err, m.Instances())
	}
}

// TestReconcile_StateFolderWiped finds our instances by the notes below /run, and leaves others.
func TestReconcile_StateFolderWiped(t *testing.T) {
	t.Parallel()
	m := nvidiatest.New(t, nvidiatest.H100NVL(card))
	m.Add(0, 19, 6)
	before := m.Instances()
	for _, name := range []string{"a", "b"} {
		if _, err := process(m).Prepare(t.Context(), asked(name, 1000, 0), func(string) {}); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(filepath.Join(m.Root, stateDir)); err != nil {
		t.Fatal(err)
	}
	live := asked("a", 1000, 0)
	if err := process(m).Reconcile(t.Context(), map[share.ID]share.Ask{live.ID: live}); err != nil || len(m.Instances()) != 2 {
		t.Errorf("%v; on the card %v", err, m.Instances())
	}
	other := New(share.Host{Tool: m.Tools, Root: m.Root, Dir: "/another/driver/shares"})
	if err := other.Reconcile(t.Context(), nil); err != nil || len(m.Instances()) != 2 {
		t.Errorf("another driver: %v; on the card %v", err, m.Instances())
	}
	if err := process(m).Reconcile(t.Context(), nil); err != nil || !slices.Equal(m.Instances(), before) {
		t.Errorf("%v; on the card %v", err, m.Instances())
	}
}

// TestReconcile_AnotherBoot: what stands where ours stood before the machine was restarted is somebody else's.
func TestReconcile_AnotherBoot(t *testing.T) {
	t.Parallel()
	m := nvidiatest.New(t, nvidiatest.H100NVL(card))
	a := asked("a", 1000, 0)
	if _, err := process(m).Prepare(t.Context(), a, func(string) {}); err != nil {
		t.Fatal(err)
	}
	m.Reboot()
	m.Add(0, 19, 6)
	before := m.Instances()
	if err := process(m).Release(t.Context(), a.ID); err != nil || !slices.Equal(m.Instances(), before) {
		t.Errorf("released: %v; on the card %v", err, m.Instances())
	}
	if _, err := process(m).Prepare(t.Context(), a, func(string) {}); err != nil {
		t.Fatal(err)
	}
	m.Reboot()
	m.Add(0, 19, 6)
	if err := process(m).Reconcile(t.Context(), nil); err != nil || !slices.Equal(m.Instances(), before) {
		t.Errorf("reconciled: %v; on the card %v", err, m.Instances())
	}
	if _, err := process(m).Prepare(t.Context(), a, func(string) {}); err != nil || len(m.Instances()) != 2 {
		t.Errorf("prepared anew: %v; on the card %v", err, m.Instances())
	}
}

// TestForeign_InOurPlace: an administrator destroyed ours and put another there.
func TestForeign_InOurPlace(t *testing.T) {
	t.Parallel()
	for what, put := range map[string]func(c *nvidiatest.Card){
		"another profile": func(c *nvidiatest.Card) {
			c.Instances = []nvidiatest.Instance{{ID: 1, Profile: 20, Start: 6, Compute: true}}
		},
		"another id": func(c *nvidiatest.Card) {
			c.Instances = []nvidiatest.Instance{{ID: 2, Profile: 19, Start: 6, Compute: true}}
		},
		"another place": func(c *nvidiatest.Card) {
			c.Instances = []nvidiatest.Instance{{ID: 1, Profile: 19, Start: 5, Compute: true}}
		},
		"all the same, made anew": func(c *nvidiatest.Card) { c.Instances[0].Times++ },
	} {
		m := nvidiatest.New(t, nvidiatest.H100NVL(card))
		a := asked("a", 1000, 0)
		if _, err := process(m).Prepare(t.Context(), a, func(string) {}); err != nil {
			t.Fatal(err)
		}
		m.Set(0, put)
		before := m.Instances()
		if err := process(m).Reconcile(t.Context(), map[share.ID]share.Ask{a.ID: a}); err != nil {
			t.Errorf("%s: live: %v", what, err)
		}
		if err := process(m).Reconcile(t.Context(), nil); err != nil || !slices.Equal(m.Instances(), before) {
			t.Errorf("%s: %v; on the card %v", what, err, m.Instances())
		}
	}
}

// TestForeign_PreparedBeside: the share is asked for again, as by a driver that was killed, and somebody has put another in its
// place: that is nobody's to give.
func TestForeign_PreparedBeside(t *testing.T) {
	t.Parallel()
	m := nvidiatest.New(t, nvidiatest.H100NVL(card))
	a := asked("a", 1000, 0)
	was, err := process(m).Prepare(t.Context(), a, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	m.Set(0, func(c *nvidiatest.Card) { c.Instances[0].Times++ })
	now, err := process(m).Prepare(t.Context(), a, func(string) {})
	if err != nil || len(m.Instances()) != 2 || now.Visible == was.Visible {
		t.Errorf("%v; was %s, is %s; on the card %v", err, was.Visible, now.Visible, m.Instances())
	}
	if err := process(m).Release(t.Context(), a.ID); err != nil || len(m.Instances()) != 1 {
		t.Errorf("released: %v; on the card %v", err, m.Instances())
	}
}

// TestRelease_AfterHalfARelease: a release that broke off took the compute instance, and with it the UUID.
func TestRelease_AfterHalfARelease(t *testing.T) {
	t.Parallel()
	m := nvidiatest.New(t, nvidiatest.H100NVL(card))
	a := asked("a", 1000, 0)
	if _, err := process(m).Prepare(t.Context(), a, func(string) {}); err != nil {
		t.Fatal(err)
	}
	m.Set(0, func(c *nvidiatest.Card) { c.Instances[0].Compute = false })
	if err := process(m).Release(t.Context(), a.ID); err != nil || len(m.Instances()) != 0 {
		t.Errorf("%v; on the card %v", err, m.Instances())
	}
}

// TestReconcile_PlaceOfTheDead: a driver died before it called the tool, and another share was made at that place.
func TestReconcile_PlaceOfTheDead(t *testing.T) {
	t.Parallel()
	m := nvidiatest.New(t, nvidiatest.H100NVL(card))
	b, dead, live := process(m), asked("dead", 1000, 0), asked("live", 1000, 0)
	if err := b.notes.put(dead.ID, note{Card: card, Profile: 19, Name: "1g.12gb", Start: 6, Size: 1, MemoryMiB: 1000}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Prepare(t.Context(), live, func(string) {}); err != nil {
		t.Fatal(err)
	}
	before := m.Instances()
	if err := process(m).Reconcile(t.Context(), map[share.ID]share.Ask{live.ID: live}); err != nil || !slices.Equal(m.Instances(), before) {
		t.Errorf("%v; on the card %v, want %v", err, m.Instances(), before)
	}
	if now, _, err := b.notes.all(); err != nil || len(now) != 1 {
		t.Errorf("notes %v, %v", now, err)
	}
}

func TestSelfTest(t *testing.T) {
	t.Parallel()
	m := nvidiatest.New(t, nvidiatest.L40S("GPU-0"), nvidiatest.H100NVL(card))
	if err := process(m).SelfTest(t.Context()); err != nil || slices.ContainsFunc(m.Calls(), func(c string) bool { return strings.Contains(c, "-cgi") }) {
		t.Errorf("%v; calls %q", err, m.Calls())
	}
	m.Set(1, func(c *nvidiatest.Card) { c.Profiles = nil })
	if err := process(m).SelfTest(t.Context()); err == nil || !strings.Contains(err.Error(), "list the MIG profiles of "+card+": no profile is listed") {
		t.Errorf("nothing is listed: %v", err)
	}
}

func TestProbe(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		cards []nvidiatest.Card
		off   bool
		want  string
	}{
		"one of two is on": {cards: []nvidiatest.Card{nvidiatest.L40S("GPU-0"), nvidiatest.H100NVL(card)}},
		"none has MIG":     {cards: []nvidiatest.Card{nvidiatest.L40S("GPU-0")}, want: "no card of this node has MIG"},
		"it is off":        {cards: []nvidiatest.Card{nvidiatest.H100NVL(card)}, off: true, want: "is off: sudo nvidia-smi -i " + card + " -mig 1"},
	} {
		m := nvidiatest.New(t, c.cards...)
		if c.off {
			m.Set(0, func(c *nvidiatest.Card) { c.MIG = "Disabled" })
		}
		err := process(m).Probe(t.Context())
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v", what, err)
		}
	}
}

// TestRandomKills makes and gives back shares, and kills the driver at random calls: once it has been left alone for one
// reconcile, only live shares and the administrator's instance are on the card, and no place is held twice.
func TestRandomKills(t *testing.T) {
	t.Parallel()
	m := nvidiatest.New(t, nvidiatest.H100NVL(card))
	m.Add(0, 19, 3)
	seed := uint32(1)
	next := func(n int) int {
		seed = seed*1664525 + 1013904223
		return int(seed>>8) % n
	}
	live := map[share.ID]share.Ask{}
	names := []string{"a", "b", "c", "d"}
	for step := range 150 {
		a := asked(names[next(len(names))], []uint64{5000, 11008, 20000, 40000}[next(4)], 0)
		b := New(share.Host{Tool: &mortal{Tool: m.Tools, left: 1 + next(14)}, Root: m.Root, Dir: stateDir})
		delete(live, a.ID)
		ended := make(chan error, 1)
		dead, release := b.host.Tool.(*mortal).died(), next(3) == 0
		go func() {
			if release {
				ended <- b.Release(context.Background(), a.ID)
				return
			}
			_, err := b.Prepare(context.Background(), a, func(string) {})
			ended <- err
		}()
		select {
		case <-ended:
		case <-dead:
		}
		if err := process(m).Reconcile(t.Context(), live); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		if len(m.Instances()) != len(live)+1 {
			t.Fatalf("step %d: live %v; on the card %v", step, live, m.Instances())
		}
		if next(2) == 0 {
			if _, err := process(m).Prepare(t.Context(), a, func(string) {}); err == nil {
				live[a.ID] = a
			} else if !strings.Contains(err.Error(), "Insufficient Resources") {
				t.Fatalf("step %d: %v", step, err)
			}
		}
	}
	if err := process(m).Reconcile(t.Context(), nil); err != nil || !slices.Equal(m.Instances(), []string{card + " 1g.12gb@3"}) {
		t.Errorf("%v; on the card %v", err, m.Instances())
	}
}

// mortal is a tool whose process dies after a number of calls: the caller never comes back.
type mortal struct {
	share.Tool
	left int
	dead chan struct{}
}

func (m *mortal) died() <-chan struct{} {
	m.dead = make(chan struct{})
	return m.dead
}

func (m *mortal) Run(ctx context.Context, name string, args ...string) (share.Output, error) {
	if m.left--; m.left < 0 {
		close(m.dead)
		select {}
	}
	out, err := m.Tool.Run(ctx, name, args...)
	if m.left == 0 && len(args)%2 == 0 { // some die between the tool and what follows it
		close(m.dead)
		select {}
	}
	return out, err
}
