package mps

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/nvidia/nvidiatest"
	"github.com/heteroflow/heteroflow/task-driver/share/sharetest"
)

const (
	card     = "GPU-5a1e44b3-5807-0dbe-62e6-343a6b8b8bcd"
	other    = "GPU-6b1e44b3-5807-0dbe-62e6-343a6b8b8bcd"
	stateDir = "/var/lib/heteroflow/shares"
)

func asked(task, uuid string, mib uint64, pct int) share.Ask {
	return share.Ask{
		ID: share.NewID(task, accel.NVIDIA, uuid), TaskID: task, Vendor: accel.NVIDIA, Form: accel.Shared, Of: 1, Container: true,
		Card: grant.Card{UUID: uuid, MemoryMiB: 46068, Units: 1}, MemoryMiB: mib, ComputePct: pct,
	}
}

func machine(t testing.TB) *nvidiatest.Machine {
	return nvidiatest.New(t, nvidiatest.L40S(card), nvidiatest.L40S(other))
}

func backend(m *nvidiatest.Machine) *Backend {
	return New(share.Host{Tool: m.Tools, Root: m.Root, Dir: stateDir}, Options{})
}

func prepare(t testing.TB, b *Backend, a share.Ask) share.Setup {
	t.Helper()
	s, err := b.Prepare(t.Context(), a, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestBackend_PassesTheSuite(t *testing.T) {
	t.Parallel()
	for what, asks := range map[string][]share.Ask{
		"two on one card":    {asked("a/t/1", card, 10240, 30), asked("b/t/2", card, 20480, 0)},
		"each its own card":  {asked("a/t/1", card, 10240, 30), asked("b/t/2", other, 20480, 0)},
		"three on two cards": {asked("a/t/1", card, 10240, 30), asked("b/t/2", other, 20480, 0), asked("c/t/3", card, 1, 100)},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			sharetest.Run(t, sharetest.Suite{
				Machine: func(t testing.TB) sharetest.Machine {
					m := nvidiatest.New(t, nvidiatest.L40S(card), nvidiatest.L40S(other), nvidiatest.L40S("GPU-stranger"))
					return sharetest.Machine{
						Tool: m.Tools, Root: m.Root, Things: m.Daemons,
						Foreign: func() { m.StartMPS(map[string]string{envVisible: "GPU-stranger"}) },
					}
				},
				New:    func(h share.Host) share.Backend { return New(h, Options{}) },
				Asks:   asks,
				NoLies: len(asks) < 3,
			})
		})
	}
}

func TestPrepare_Setup(t *testing.T) {
	t.Parallel()
	m := machine(t)
	b := backend(m)
	pipe := b.dirs(card).pipe
	for what, c := range map[string]struct {
		ask  share.Ask
		want share.Setup
	}{
		"memory and threads": {asked("a", card, 10240, 30), share.Setup{
			Env:    map[string]string{envPipe: target, envMemory: "0=10240M", envThreads: "30"},
			Mounts: []share.Mount{{Source: pipe, Target: target, ReadOnly: true}}, IPCHost: true,
		}},
		"no cap of compute": {asked("b", card, 1, 0), share.Setup{
			Env:    map[string]string{envPipe: target, envMemory: "0=1M"},
			Mounts: []share.Mount{{Source: pipe, Target: target, ReadOnly: true}}, IPCHost: true,
		}},
		"a process of the host": {
			func() share.Ask { a := asked("c", card, 512, 100); a.Container = false; return a }(),
			share.Setup{Env: map[string]string{envPipe: pipe, envMemory: "0=512M"}},
		},
	} {
		if diff := cmp.Diff(c.want, prepare(t, b, c.ask)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	want := []string{program + " on " + card + " at " + pipe}
	if !slices.Equal(m.Daemons(), want) {
		t.Errorf("daemons: %v, want one for the card: %v", m.Daemons(), want)
	}
}

func TestPrepare_Events(t *testing.T) {
	t.Parallel()
	m := machine(t)
	b := backend(m)
	var said []string
	for _, name := range []string{"a", "b"} {
		if _, err := b.Prepare(t.Context(), asked(name, card, 1, 0), func(text string) { said = append(said, text) }); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"waiting for the MPS daemon of " + card, "the MPS daemon of " + card + " runs"}
	if diff := cmp.Diff(want, said); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestPrepare_ForeignDaemon(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		visible string
		unset   bool
		refused bool
	}{
		"all cards":                     {unset: true, refused: true},
		"this card":                     {visible: card, refused: true},
		"this card by its first digits": {visible: "GPU-5a1e", refused: true},
		"a number":                      {visible: "3", refused: true},
		"this and another":              {visible: other + "," + card, refused: true},
		"another card":                  {visible: other},
		"no card":                       {visible: ""},
		"a MIG device":                  {visible: "MIG-1b8509c0-e60d-502d-8263-d434867998aa"},
	} {
		m := machine(t)
		env := map[string]string{envVisible: c.visible}
		if c.unset {
			env = map[string]string{"PATH": "/bin"}
		}
		m.StartMPS(env)
		before := m.Daemons()
		_, err := backend(m).Prepare(t.Context(), asked("a", card, 1, 0), func(string) {})
		if refused := err != nil; refused != c.refused {
			t.Errorf("%s: got %v", what, err)
		}
		if err != nil && (!strings.Contains(err.Error(), "that this driver did not start (pid 4001, pipe directory /tmp/nvidia-mps): stop it") || !slices.Equal(before, m.Daemons())) {
			t.Errorf("%s: %v; daemons %v", what, err, m.Daemons())
		}
	}
}

func TestPrepare_DaemonDoesNotStart(t *testing.T) {
	t.Parallel()
	m := machine(t)
	m.Break(program, true)
	a := asked("a", card, 1, 0)
	_, err := backend(m).Prepare(t.Context(), a, func(string) {})
	if err == nil || !strings.Contains(err.Error(), "it ends with 1: Cannot start the MPS control daemon: permission denied (see ") {
		t.Errorf("got %v", err)
	}
	if all, err := backend(m).notes.All(); err != nil || len(all) > 0 {
		t.Errorf("notes %v, %v", all, err)
	}
}

func TestFits_OneCardOnly(t *testing.T) {
	t.Parallel()
	a := asked("a", card, 1, 0)
	a.Of = 2
	if err := backend(machine(t)).Fits(a); err == nil || !strings.Contains(err.Error(), "ask for one card, or use hami") {
		t.Errorf("got %v", err)
	}
}

// TestRelease_DaemonIsDeaf has a daemon that does not do what it is told, and a server of it.
func TestRelease_DaemonIsDeaf(t *testing.T) {
	t.Parallel()
	m := machine(t)
	b, a := backend(m), asked("a", card, 1, 0)
	prepare(t, b, a)
	m.StartServer(map[string]string{envPipe: b.dirs(card).pipe, envVisible: card})
	m.Deafen(false)
	if err := b.Release(t.Context(), a.ID); err != nil || len(m.Daemons()) != 0 {
		t.Errorf("%v; daemons %v", err, m.Daemons())
	}
}

// TestRelease_Stubborn has a daemon that takes no SIGTERM.
func TestRelease_Stubborn(t *testing.T) {
	t.Parallel()
	m := machine(t)
	b, a := backend(m), asked("a", card, 1, 0)
	prepare(t, b, a)
	m.Deafen(true)
	if err := b.Release(t.Context(), a.ID); err != nil || len(m.Daemons()) != 0 {
		t.Errorf("%v; daemons %v", err, m.Daemons())
	}
	if calls := strings.Join(m.Calls(), "\n"); !strings.Contains(calls, "kill -TERM 4001\nkill -KILL 4001") {
		t.Errorf("calls:\n%s", calls)
	}
}

// TestWiped_ServesOthers: a folder that is wiped under tasks does not end their daemon.
func TestWiped_ServesOthers(t *testing.T) {
	t.Parallel()
	m := machine(t)
	b, a, neighbour := backend(m), asked("a", card, 1, 0), asked("b", card, 1, 0)
	prepare(t, b, a)
	prepare(t, b, neighbour)
	m.StartServer(map[string]string{envPipe: b.dirs(card).pipe, envVisible: card})
	before := m.Daemons()
	if err := os.RemoveAll(filepath.Join(m.Root, stateDir)); err != nil {
		t.Fatal(err)
	}
	if err := backend(m).Release(t.Context(), a.ID); err != nil || !slices.Equal(m.Daemons(), before) {
		t.Errorf("released: %v; daemons %v", err, m.Daemons())
	}
	err := backend(m).Reconcile(t.Context(), map[share.ID]share.Ask{neighbour.ID: neighbour})
	if err == nil || !strings.Contains(err.Error(), "lost its pipe directory") || !slices.Equal(m.Daemons(), before) {
		t.Errorf("reconciled: %v; daemons %v", err, m.Daemons())
	}
	if err := backend(m).Reconcile(t.Context(), nil); err != nil || len(m.Daemons()) != 0 {
		t.Errorf("none is live: %v; daemons %v", err, m.Daemons())
	}
}

func TestProbe_LongStateFolder(t *testing.T) {
	t.Parallel()
	m := machine(t)
	b := New(share.Host{Tool: m.Tools, Root: m.Root, Dir: "/opt/" + strings.Repeat("long/", 12) + "shares"}, Options{})
	if err := b.Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "choose a shorter one") {
		t.Errorf("got %v", err)
	}
}

// told remembers what tasks are told.
type told struct {
	mu   sync.Mutex
	said []string
}

func (w *told) Tell(id, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, id+": "+text)
}
func (w *told) Stop(id, text string) { w.Tell("stop "+id, text) }
func (w *told) PIDs(context.Context, string) ([]int, error) {
	return nil, errors.New("no process")
}

func (w *told) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.said
	w.said = nil
	slices.Sort(out)
	return out
}

func TestSupervise(t *testing.T) {
	t.Parallel()
	m := machine(t)
	b, w := backend(m), &told{}
	live := map[share.ID]share.Ask{}
	for _, a := range []share.Ask{asked("a", card, 1, 0), asked("b", card, 1, 0), asked("c", other, 1, 0)} {
		prepare(t, b, a)
		live[a.ID] = a
	}
	s := supervisor{b: b, tasks: w, pids: map[string]process{}, down: map[string]bool{}}
	look := func() []string { s.look(t.Context(), live); return w.take() }
	running := m.Daemons()
	for range 2 {
		if said := look(); len(said) > 0 {
			t.Fatalf("all is well, and told %q", said)
		}
	}
	m.KillMPS()
	said := look()
	if len(said) != 3 || !strings.HasPrefix(said[0], "a: the MPS daemon of "+card+" died and was started anew") || !slices.Equal(m.Daemons(), running) {
		t.Errorf("killed: told %q; daemons %v", said, m.Daemons())
	}
	m.KillMPS()
	m.Break(program, true)
	if said := look(); len(said) != 3 || !strings.Contains(said[0], "cannot be started anew, it is tried again every 2s: ") {
		t.Errorf("broken: told %q", said)
	}
	if said := look(); len(said) > 0 {
		t.Errorf("told again: %q", said)
	}
	m.Break(program, false)
	if said := look(); len(said) != 3 || !slices.Equal(m.Daemons(), running) {
		t.Errorf("mended: told %q; daemons %v", said, m.Daemons())
	}
	// A share that is given back at this moment is in live still; its daemon must not come back.
	for id := range live {
		if err := b.Release(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if said := look(); len(said) > 0 || len(m.Daemons()) > 0 {
		t.Errorf("given back: told %q; daemons %v", said, m.Daemons())
	}
}

func TestKeep_StartsAnewAndWatches(t *testing.T) {
	t.Parallel()
	m := machine(t)
	fake := clock.NewFake(time.Unix(1e9, 0))
	b := New(share.Host{Tool: m.Tools, Root: m.Root, Dir: stateDir}, Options{Clock: fake})
	a, w := asked("a", card, 1, 0), &told{}
	prepare(t, b, a)
	m.KillMPS()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	asks := make(chan struct{})
	live := func() map[share.ID]share.Ask {
		select {
		case asks <- struct{}{}:
		case <-ctx.Done():
		}
		return map[share.ID]share.Ask{a.ID: a}
	}
	go func() { ended <- b.Keep(ctx, live, w) }()
	if err := fake.AwaitWaiters(ctx, 2); err != nil {
		t.Fatal(err)
	}
	fake.Advance(superviseEvery)
	<-asks
	fake.Advance(superviseEvery) // its next look begins when the first has ended
	<-asks
	<-asks // the watch's
	if len(m.Daemons()) != 1 || len(w.take()) != 1 {
		t.Errorf("daemons %v", m.Daemons())
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func FuzzParseEnviron(f *testing.F) {
	f.Add("A=1\x00CUDA_VISIBLE_DEVICES=GPU-1\x00")
	f.Add("=\x00\x00A\x00A=\x00A=2")
	f.Fuzz(func(t *testing.T, text string) {
		env := parseEnviron(text)
		for name, value := range env {
			if !strings.Contains(text, name+"="+value) {
				t.Errorf("read %q=%q", name, value)
			}
		}
		p := process{env: env}
		_ = p.mayServe(card)
		if p.pipe() == "" {
			t.Error("a pipe directory that is known has no name")
		}
	})
}

// What a process of the daemon's user left in the pipe directory goes before a daemon is started there, which would follow
// its links.
func TestEnsure_FollowsNoLinkOfATask(t *testing.T) {
	t.Parallel()
	m := machine(t)
	b := backend(m)
	pipe := filepath.Join(m.Root, b.dirs(card).pipe)
	if err := errors.Join(os.MkdirAll(pipe, 0o755), os.Symlink("/etc/passwd", filepath.Join(pipe, "nvidia-cuda-mps-control.pid"))); err != nil {
		t.Fatal(err)
	}
	prepare(t, b, asked("a", card, 1024, 0))
	if info, err := os.Lstat(filepath.Join(pipe, "nvidia-cuda-mps-control.pid")); err == nil && info.Mode()&os.ModeSymlink != 0 {
		t.Error("the link is there still")
	}
}

// The self-test needs no card, tells what is wrong with the daemon, leaves nothing and touches nothing.
func TestSelfTest(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		harm func(*nvidiatest.Machine)
		want string // of the error; empty for none
	}{
		"all well":               {func(*nvidiatest.Machine) {}, ""},
		"a daemon that is taken": {func(m *nvidiatest.Machine) { m.StartMPS(map[string]string{envVisible: card}) }, ""},
		"it does not start":      {func(m *nvidiatest.Machine) { m.Break(program, true) }, "it ends with 1: Cannot start the MPS control daemon: permission denied"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			m := machine(t)
			c.harm(m)
			b, before := backend(m), m.Daemons()
			err := b.SelfTest(t.Context())
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("self-test: %v, want %q", err, c.want)
			}
			if !slices.Equal(m.Daemons(), before) {
				t.Errorf("left: %v, before: %v", m.Daemons(), before)
			}
		})
	}
}

// A driver that dies in its self-test leaves a daemon of ours without a share.
func TestSelfTest_WhatAKillLeavesIsStopped(t *testing.T) {
	t.Parallel()
	m := machine(t)
	b := backend(m)
	left := func() { m.StartMPS(map[string]string{envVisible: noCard, envPipe: b.dirsAt("selftest").pipe}) }
	left()
	prepare(t, b, asked("a", card, 1024, 0)) // it serves no card, so none is refused for it
	if err := b.Release(t.Context(), asked("a", card, 1024, 0).ID); err != nil {
		t.Fatal(err)
	}
	if err := b.Reconcile(t.Context(), nil); err != nil || len(m.Daemons()) != 0 {
		t.Errorf("the reconciler leaves %v, %v", m.Daemons(), err)
	}
	left()
	if err := b.SelfTest(t.Context()); err != nil || len(m.Daemons()) != 0 {
		t.Errorf("the next self-test leaves %v, %v", m.Daemons(), err)
	}
}
