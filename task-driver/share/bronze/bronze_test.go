package bronze

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/sharetest"
)

func ask(task, card string, mib uint64) share.Ask {
	return share.Ask{
		ID: share.NewID(task, accel.NVIDIA, card), TaskID: task, Vendor: accel.NVIDIA, Form: accel.Shared,
		Card: grant.Card{UUID: card, MemoryMiB: 81920, Units: 10}, MemoryMiB: mib, Of: 1,
	}
}

func TestBackend_PassesTheSuite(t *testing.T) {
	t.Parallel()
	sharetest.Run(t, sharetest.Suite{
		Machine: func(t testing.TB) sharetest.Machine {
			return sharetest.Machine{Tool: sharetest.NewTools(nil), Root: t.TempDir()}
		},
		New:      func(h share.Host) share.Backend { return New(h, nil, Options{}) },
		Asks:     []share.Ask{ask("a", "GPU-1", 20480), ask("b", "GPU-1", 10240)},
		Toolless: true,
	})
}

func TestPrepare_TellsTheLimits(t *testing.T) {
	t.Parallel()
	var said []string
	event := func(text string) { said = append(said, text) }
	b := New(share.Host{}, map[accel.Vendor]Reader{accel.NVIDIA: &cards{}}, Options{Overuse: Stop})
	setup, err := b.Prepare(t.Context(), ask("a", "GPU-1", 20480), event)
	if err != nil || setup.Env[envFraction] != "0.250" || setup.Env[envShare] != "not isolated" {
		t.Errorf("got %v, %v", setup, err)
	}
	small, err := b.Prepare(t.Context(), ask("a", "GPU-2", 8191), event)
	if err != nil {
		t.Fatal(err)
	}
	both, err := b.Join([]share.Setup{setup, small})
	if err != nil || both.Env[envFraction] != "0.099" {
		t.Errorf("joined: %v, %v", both, err)
	}
	simulated, err := b.Prepare(t.Context(), ask("a", accel.SimulatedPrefix+"NVIDIA-1", 20480), event)
	if err != nil || simulated.Env[envFraction] != "0.250" || simulated.Env[envShare] != "not isolated" {
		t.Errorf("of a simulated card: %v, %v", simulated, err)
	}
	if got, want := said[len(said)-1], "card SIM-NVIDIA-1 is simulated: its share of 20 GiB is not enforced"; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
	hygon := ask("a", "H-1", 1024)
	hygon.Vendor, hygon.Card.MemoryMiB = accel.Hygon, 0
	unknown, err := b.Prepare(t.Context(), hygon, event)
	if _, set := unknown.Env[envFraction]; err != nil || set {
		t.Errorf("a fraction of what is not known: %v, %v", unknown, err)
	}
	want := "share of nvidia card GPU-1: 20 GiB by agreement, not isolated; a task that takes more is stopped"
	if said[0] != want || !strings.Contains(said[3], "not watched") {
		t.Errorf("events: %q", said)
	}
}

// cards is a reader whose answers a test sets.
type cards struct {
	mu   sync.Mutex
	uses []Use
	err  error
}

func (c *cards) set(err error, uses ...Use) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.uses, c.err = uses, err
}

func (c *cards) Uses(context.Context, []grant.Card) ([]Use, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.uses, c.err
}

// tasks remembers what is said of tasks; task n has the processes n0 and n1.
type tasks struct {
	mu   sync.Mutex
	said []string
}

func (ts *tasks) Tell(id, text string) { ts.say("tell " + id + ": " + text) }
func (ts *tasks) Stop(id, text string) { ts.say("stop " + id + ": " + text) }
func (ts *tasks) PIDs(_ context.Context, id string) ([]int, error) {
	switch id {
	case "1":
		return []int{10, 11}, nil
	case "2":
		return []int{20, 21}, nil
	}
	return nil, errors.New("no such task")
}

func (ts *tasks) say(text string) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.said = append(ts.said, text)
}

func (ts *tasks) take() []string {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	said := ts.said
	ts.said = nil
	return said
}

func use(card string, pid int, mib uint64) Use { return Use{Card: card, PID: pid, MemoryMiB: &mib} }

func TestWatch(t *testing.T) {
	t.Parallel()
	live := map[share.ID]share.Ask{}
	for _, a := range []share.Ask{ask("1", "GPU-1", 1000), ask("2", "GPU-1", 2000), ask("3", "GPU-1", 10)} {
		live[a.ID] = a
	}
	fake := clock.NewFake(time.Unix(1e9, 0))
	start := func(policy Policy) (*cards, *tasks, *watch) {
		c, ts := &cards{}, &tasks{}
		b := New(share.Host{}, map[accel.Vendor]Reader{accel.NVIDIA: c}, Options{Overuse: policy, Clock: fake})
		return c, ts, &watch{b: b, tasks: ts, seen: map[share.ID]*seen{}, deaf: map[accel.Vendor]bool{}}
	}
	t.Run("warn", func(t *testing.T) {
		c, ts, w := start(Warn)
		look := func() []string { w.look(t.Context(), live); return ts.take() }
		c.set(nil, use("GPU-1", 10, 500), use("GPU-1", 11, 564), use("GPU-1", 20, 2000), use("GPU-2", 21, 9000), Use{Card: "GPU-1", PID: 21}, use("GPU-1", 99, 50000))
		for range 3 {
			if said := look(); len(said) > 0 {
				t.Fatalf("within the limits, and told %q", said)
			}
		}
		c.set(nil, use("GPU-1", 10, 500), use("GPU-1", 11, 565), use("GPU-1", 20, 2000))
		if said := look(); len(said) > 0 {
			t.Fatalf("told at the first reading: %q", said)
		}
		if said := look(); len(said) != 1 || !strings.HasPrefix(said[0], "tell 1: card GPU-1: the task holds 1 GiB (1065 MiB) and was given 1000 MiB (1000 MiB)") {
			t.Fatalf("told %q", said)
		}
		if said := look(); len(said) > 0 {
			t.Fatalf("told again at once: %q", said)
		}
		fake.Advance(warnAgain)
		if said := look(); len(said) != 1 {
			t.Fatalf("not told again: %q", said)
		}
		c.set(errors.New("the tool hangs"))
		if said := look(); len(said) > 0 {
			t.Fatalf("nothing was read, and told %q", said)
		}
		c.set(nil)
		if said := look(); len(said) != 1 || !strings.Contains(said[0], "back within its 1000 MiB") {
			t.Fatalf("told %q", said)
		}
	})
	t.Run("stop", func(t *testing.T) {
		c, ts, w := start(Stop)
		c.set(nil, use("GPU-1", 20, 4000))
		for range 5 {
			w.look(t.Context(), live)
		}
		if said := ts.take(); len(said) != 1 || !strings.HasPrefix(said[0], "stop 2: ") {
			t.Fatalf("told %q", said)
		}
	})
}

// TestKeep_SeesOverUseWithinTenSeconds moves the clock and waits for the warning.
func TestKeep_SeesOverUseWithinTenSeconds(t *testing.T) {
	t.Parallel()
	if worst := 2*readEvery + 2*readTimeout; worst >= 10*time.Second {
		t.Errorf("two readings and their time limits take %s", worst)
	}
	fake := clock.NewFake(time.Unix(1e9, 0))
	c, ts := &cards{}, &tasks{}
	c.set(nil, use("GPU-1", 10, 4000))
	b := New(share.Host{}, map[accel.Vendor]Reader{accel.NVIDIA: c}, Options{Clock: fake})
	a := ask("1", "GPU-1", 1000)
	looks := make(chan struct{})
	live := func() map[share.ID]share.Ask {
		looks <- struct{}{}
		return map[share.ID]share.Ask{a.ID: a}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Keep(ctx, live, ts) }()
	if err := fake.AwaitWaiters(ctx, 1); err != nil {
		t.Fatal(err)
	}
	for range 3 { // the third begins when the second has been acted on
		fake.Advance(readEvery)
		<-looks
	}
	if said := ts.take(); len(said) != 1 {
		t.Errorf("after two readings told %q", said)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestParsePolicy(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Policy{"": Warn, "warn": Warn, "stop": Stop} {
		if got, err := ParsePolicy(text); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	if _, err := ParsePolicy("kill"); err == nil || !strings.Contains(err.Error(), "write warn or stop") {
		t.Errorf("got %v", err)
	}
}

func TestNVIDIA_Uses(t *testing.T) {
	t.Parallel()
	answer := share.Output{Stdout: "GPU-5a, 1234, 2296\nGPU-5a, 99, [N/A]\nGPU-6b, x, 1\n\n[Not Found]\n"}
	tools := sharetest.NewTools(map[string]func([]string) share.Output{"nvidia-smi": func([]string) share.Output { return answer }})
	uses, err := NVIDIA{Tool: tools}.Uses(t.Context(), nil)
	if err != nil || len(uses) != 2 || *uses[0].MemoryMiB != 2296 || uses[1].MemoryMiB != nil {
		t.Errorf("got %+v, %v", uses, err)
	}
	answer = share.Output{Stdout: "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\nMore.", ExitCode: 9}
	if _, err := (NVIDIA{Tool: tools}).Uses(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "exits with 9: NVIDIA-SMI has failed") {
		t.Errorf("got %v", err)
	}
}

func FuzzParseUses(f *testing.F) {
	f.Add("GPU-5a, 1234, 2296\n")
	f.Add("\"\n,,\x00")
	f.Fuzz(func(t *testing.T, text string) {
		uses, err := parseUses(text)
		for _, u := range uses {
			if u.PID <= 0 || !strings.HasPrefix(u.Card, "GPU-") {
				t.Errorf("read %+v of %q (%v)", u, text, err)
			}
		}
	})
}
