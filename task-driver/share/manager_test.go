package share

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/grant"
)

// stub is a backend whose answers a test sets.
type stub struct {
	name  string
	qos   accel.QoS
	forms []accel.Form
	probe error
	setup Setup
	fail  error // of Prepare
	stuck error // of Release
	parts map[ID]Ask
}

// everyBrand is a stub that serves every brand.
type everyBrand struct{ *stub }

func (everyBrand) Vendor() accel.Vendor { return "" }

func newStub(name string, q accel.QoS) *stub {
	return &stub{name: name, qos: q, forms: []accel.Form{accel.Shared}, parts: map[ID]Ask{}}
}

func (s *stub) Name() string         { return s.name }
func (s *stub) Vendor() accel.Vendor { return accel.NVIDIA }
func (s *stub) Describe() Isolation {
	return Isolation{QoS: s.qos, Forms: s.forms, Memory: Watched, Compute: NotAtAll, Faults: NotAtAll, Sight: NotAtAll}
}
func (s *stub) Probe(context.Context) error { return s.probe }
func (s *stub) Prepare(_ context.Context, a Ask, _ func(string)) (Setup, error) {
	if s.fail != nil {
		return Setup{}, s.fail
	}
	s.parts[a.ID] = a
	return s.setup, nil
}

func (s *stub) Release(_ context.Context, id ID) error {
	if s.stuck != nil {
		return s.stuck
	}
	delete(s.parts, id)
	return nil
}

func (s *stub) Reconcile(_ context.Context, live map[ID]Ask) error {
	for id := range s.parts {
		if _, is := live[id]; !is {
			delete(s.parts, id)
		}
	}
	return nil
}

type fixture struct {
	*Manager
	t     *testing.T
	dir   string
	lives map[string]bool
	clock *clock.Fake
}

func newFixture(t *testing.T, order Order, backends ...Backend) *fixture {
	t.Helper()
	f := &fixture{t: t, dir: t.TempDir(), lives: map[string]bool{}, clock: clock.NewFake(time.Unix(1e9, 0))}
	f.restart(order, backends...)
	return f
}

// restart is a new process of the driver.
func (f *fixture) restart(order Order, backends ...Backend) {
	f.Manager = NewManager(Options{
		Registry: NewRegistry(backends...), Order: order, Dir: f.dir, Clock: f.clock,
		Alive: func(id string) bool { return f.lives[id] },
	})
}

func (f *fixture) make(asks ...Ask) ([]Made, error) {
	return f.Prepare(f.t.Context(), asks, func(string) {})
}

func (f *fixture) live(held ...Held) func(context.Context) (Live, error) {
	return func(context.Context) (Live, error) { return Live{Tasks: f.lives, Held: held, Complete: true}, nil }
}

func (f *fixture) states() map[string]State {
	f.t.Helper()
	entries, err := f.Entries()
	if err != nil {
		f.t.Fatal(err)
	}
	out := map[string]State{}
	for _, e := range entries {
		out[e.Ask.TaskID] = e.State
	}
	return out
}

func sliceOf(task, card string, mib uint64, q accel.QoS) Ask {
	return Ask{
		ID: NewID(task, accel.NVIDIA, card), TaskID: task, Vendor: accel.NVIDIA, Form: accel.Shared, QoS: q,
		Card: grant.Card{UUID: card, MemoryMiB: 81920, Units: 10}, MemoryMiB: mib, Of: 1,
	}
}

func wholeOf(task, card string) Ask {
	a := sliceOf(task, card, 0, accel.Gold)
	a.Form = accel.Whole
	return a
}

func TestChoose(t *testing.T) {
	t.Parallel()
	mig, vnpu := newStub("mig", accel.Gold), newStub("vnpu", accel.Gold)
	mig.forms = []accel.Form{accel.MIG}
	mps, hami, bronze := newStub("mps", accel.Silver), newStub("hami", accel.Silver), newStub("bronze", accel.Bronze)
	gone := newStub("mps", accel.Silver)
	gone.probe = errors.New("nvidia-cuda-mps-control is not installed: install the driver's package")
	migCard := sliceOf("t", "GPU-1", 20000, accel.Gold)
	migCard.Form = accel.MIG
	for name, c := range map[string]struct {
		order    Order
		backends []Backend
		ask      Ask
		want     string
		wantFail string
	}{
		"silver: the first":               {backends: []Backend{mps, hami, bronze}, ask: sliceOf("t", "GPU-1", 1, accel.Silver), want: "mps"},
		"silver: the config's first":      {order: Order{accel.NVIDIA: {"hami", "mps"}}, backends: []Backend{mps, hami}, ask: sliceOf("t", "GPU-1", 1, accel.Silver), want: "hami"},
		"silver: the next that is usable": {backends: []Backend{gone, hami}, ask: sliceOf("t", "GPU-1", 1, accel.Silver), want: "hami"},
		"silver: gold is better":          {backends: []Backend{gone, vnpu, bronze}, ask: sliceOf("t", "GPU-1", 1, accel.Silver), want: "vnpu"},
		"silver: never bronze":            {backends: []Backend{gone, bronze}, ask: sliceOf("t", "GPU-1", 1, accel.Silver), wantFail: "mps: nvidia-cuda-mps-control is not installed: install"},
		"silver: not what is left out":    {order: Order{accel.NVIDIA: {"mps"}}, backends: []Backend{gone, hami}, ask: sliceOf("t", "GPU-1", 1, accel.Silver), wantFail: "a silver share of nvidia card GPU-1 cannot be made on this node"},
		"gold: hardware":                  {backends: []Backend{mps, vnpu, bronze}, ask: sliceOf("t", "GPU-1", 1, accel.Gold), want: "vnpu"},
		"gold: never silver":              {backends: []Backend{mig, mps}, ask: sliceOf("t", "GPU-1", 1, accel.Gold), wantFail: "ask for another qos, or for the whole card"},
		"bronze":                          {backends: []Backend{mps, bronze}, ask: sliceOf("t", "GPU-1", 1, accel.Bronze), want: "bronze"},
		"none asked: the best":            {backends: []Backend{bronze, mps, mig}, ask: sliceOf("t", "GPU-1", 1, ""), want: "mps"},
		"none asked, nothing installed":   {backends: []Backend{gone, bronze}, ask: sliceOf("t", "GPU-1", 1, ""), want: "bronze"},
		"a card in MIG form":              {order: Order{accel.NVIDIA: {"hami"}}, backends: []Backend{hami, mig}, ask: migCard, want: "mig"},
		"a simulated card":                {backends: []Backend{mps, everyBrand{bronze}}, ask: sliceOf("t", accel.SimulatedPrefix+"NVIDIA-1", 1, accel.Silver), want: "bronze"},
		"a simulated card, no bronze":     {backends: []Backend{mps}, ask: sliceOf("t", accel.SimulatedPrefix+"NVIDIA-1", 1, accel.Silver)},
		"a whole card":                    {backends: []Backend{mps}, ask: wholeOf("t", "GPU-1")},
		"all slices of a card":            {backends: []Backend{mps}, ask: sliceOf("t", "GPU-1", 0, accel.Gold)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, c.order, c.backends...)
			made, err := f.make(c.ask)
			if c.wantFail != "" {
				if err == nil || !strings.Contains(err.Error(), c.wantFail) {
					t.Fatalf("got %v, want %q", err, c.wantFail)
				}
				if left := f.states(); len(left) > 0 {
					t.Errorf("the ledger has %v", left)
				}
				return
			}
			if err != nil || made[0].Backend != c.want {
				t.Fatalf("got %v, %v, want %q", made, err, c.want)
			}
		})
	}
}

func TestOrder_NamesWhatIsNotKnown(t *testing.T) {
	t.Parallel()
	r := NewRegistry(newStub("mps", accel.Silver), newStub("hami", accel.Silver))
	if err := (Order{accel.NVIDIA: {"hami"}}).Check(r); err != nil {
		t.Error(err)
	}
	err := Order{accel.NVIDIA: {"mpss"}, accel.Intel: {"x"}}.Check(r)
	if err == nil || !strings.Contains(err.Error(), `share.nvidia: "mpss" is not known: write some of mps, hami`) ||
		!strings.Contains(err.Error(), "share.intel") {
		t.Errorf("got %v", err)
	}
}

func TestPrepare_NeverMoreThanTheCardHas(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil, newStub("mps", accel.Silver))
	f.lives = map[string]bool{"a": true, "b": true, "c": true}
	if _, err := f.make(sliceOf("a", "GPU-1", 50000, accel.Silver)); err != nil {
		t.Fatal(err)
	}
	if _, err := f.make(sliceOf("b", "GPU-1", 31920, accel.Silver)); err != nil {
		t.Fatal(err)
	}
	for name, a := range map[string]Ask{
		"one MiB too much": sliceOf("c", "GPU-1", 1, accel.Silver),
		"the whole card":   wholeOf("c", "GPU-1"),
	} {
		_, err := f.make(a)
		var occupied *OccupiedError
		if !errors.As(err, &occupied) || !occupied.Temporary() {
			t.Errorf("%s: got %v", name, err)
		}
	}
	f.lives = map[string]bool{"b": true, "c": true} // a has ended, and nobody has cleared up yet
	if _, err := f.make(sliceOf("c", "GPU-1", 50000, accel.Silver)); err != nil {
		t.Fatal(err)
	}
	want := map[string]State{"b": Confirmed, "c": Confirmed}
	if diff := cmp.Diff(want, f.states()); diff != "" {
		t.Errorf("ledger (-want +got):\n%s", diff)
	}
	if _, err := f.make(sliceOf("d", "GPU-2", 81920, accel.Silver), wholeOf("d", "GPU-1")); err == nil {
		t.Error("a held card was given away")
	}
	if diff := cmp.Diff(want, f.states()); diff != "" {
		t.Errorf("the first card of a refused task is held (-want +got):\n%s", diff)
	}
}

func TestPrepare_OneBackendDividesACard(t *testing.T) {
	t.Parallel()
	mps, hami, vnpu, bronze := newStub("mps", accel.Silver), newStub("hami", accel.Silver), newStub("vnpu", accel.Gold), newStub("bronze", accel.Bronze)
	mps.probe = errors.New("it is not there")
	f := newFixture(t, nil, mps, hami, vnpu, bronze)
	f.lives = map[string]bool{"a": true, "b": true, "c": true, "d": true}
	by := func(task string, q accel.QoS) string {
		t.Helper()
		made, err := f.make(sliceOf(task, "GPU-1", 100, q))
		if err != nil {
			return err.Error()
		}
		return made[0].Backend
	}
	if got := by("a", accel.Silver); got != "hami" {
		t.Fatalf("the first is made by %s", got)
	}
	mps.probe = nil
	if got := by("b", accel.Silver); got != "hami" {
		t.Errorf("beside hami: %s", got)
	}
	if got := by("c", accel.Bronze); got != "bronze" {
		t.Errorf("by agreement: %s", got)
	}
	if got := by("d", accel.Gold); !strings.Contains(got, "hami divides it for task") || !strings.Contains(got, "vnpu cannot at the same time") {
		t.Errorf("gold beside hami: %s", got)
	}
	f.lives = map[string]bool{"c": true, "d": true} // those of hami have ended
	if got := by("d", accel.Gold); got != "vnpu" || len(hami.parts) > 0 {
		t.Errorf("gold after hami: %s, %v", got, hami.parts)
	}
}

func TestRelease_WhatAToolDoesNotConfirm(t *testing.T) {
	t.Parallel()
	mps := newStub("mps", accel.Silver)
	f := newFixture(t, nil, mps)
	if _, err := f.make(sliceOf("a", "GPU-1", 81920, accel.Silver)); err != nil {
		t.Fatal(err)
	}
	mps.stuck = errors.New("in use by another client")
	if err := f.Release(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), "in use by another client") {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff(map[string]State{"a": Releasing}, f.states()); diff != "" {
		t.Errorf("ledger (-want +got):\n%s", diff)
	}
	if _, err := f.make(sliceOf("b", "GPU-1", 1, accel.Silver)); err == nil || !strings.Contains(err.Error(), "given back still") {
		t.Errorf("what was not given back was given away: %v", err)
	}
	f.clock.Advance(releaseLate)
	if err := f.Reconcile(t.Context(), f.live()); err == nil {
		t.Error("reconcile does not tell that a share cannot be given back")
	}
	if diff := cmp.Diff(map[string]State{"a": TimedOut}, f.states()); diff != "" {
		t.Errorf("ledger (-want +got):\n%s", diff)
	}
	mps.stuck = nil
	if err := f.Reconcile(t.Context(), f.live()); err != nil {
		t.Error(err)
	}
	if len(f.states()) > 0 || len(mps.parts) > 0 {
		t.Errorf("left: %v, %v", f.states(), mps.parts)
	}
}

func TestReconcile_LedgerLost(t *testing.T) {
	t.Parallel()
	mps := newStub("mps", accel.Silver)
	f := newFixture(t, nil, mps)
	f.lives["a"] = true
	made, err := f.make(sliceOf("a", "GPU-1", 100, accel.Silver))
	if err != nil {
		t.Fatal(err)
	}
	held := made[0].Held
	path := files{dir: f.dir}.path(held.Ask.ID)
	for name, harm := range map[string]func() error{
		"wiped":    func() error { return os.Remove(path) },
		"unknown":  func() error { return os.WriteFile(path, []byte(`{"v":2}`), 0o600) },
		"cut":      func() error { return os.WriteFile(path, []byte(`{"v":1,"ask":{"id":"`), 0o600) },
		"half new": func() error { return os.WriteFile(filepath.Join(f.dir, tempPrefix+"1"), []byte(`{`), 0o600) },
	} {
		if err := harm(); err != nil {
			t.Fatal(err)
		}
		f.restart(nil, mps)
		unknown := func(context.Context) (Live, error) { return Live{Tasks: f.lives}, nil }
		if err := f.Reconcile(t.Context(), unknown); err != nil || len(mps.parts) != 1 {
			t.Fatalf("%s: the share of a task that nobody has brought back yet was removed: %v", name, err)
		}
		if err := f.Reconcile(t.Context(), f.live(held)); err != nil || len(mps.parts) != 1 {
			t.Fatalf("%s: a live share was removed: %v", name, err)
		}
		if diff := cmp.Diff(map[string]State{"a": Confirmed}, f.states()); diff != "" {
			t.Errorf("%s: ledger (-want +got):\n%s", name, diff)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := f.Release(t.Context(), "a", held); err != nil || len(mps.parts) != 0 {
		t.Errorf("release by the record: %v, %v left", err, mps.parts)
	}
}

func TestReconcile_CannotLearnWhatRuns(t *testing.T) {
	t.Parallel()
	mps := newStub("mps", accel.Silver)
	f := newFixture(t, nil, mps)
	if _, err := f.make(sliceOf("a", "GPU-1", 100, accel.Silver), wholeOf("a", "GPU-2")); err != nil {
		t.Fatal(err)
	}
	blind := func(context.Context) (Live, error) { return Live{}, errors.New("the daemon does not answer") }
	if err := f.Reconcile(t.Context(), blind); err == nil {
		t.Error("no error")
	}
	if len(mps.parts) != 1 || len(f.states()) != 1 {
		t.Errorf("left: %v, %v", f.states(), mps.parts)
	}
}

func TestReconcile_AnotherProcessStarts(t *testing.T) {
	t.Parallel()
	mps := newStub("mps", accel.Silver)
	f := newFixture(t, nil, mps)
	f.Manager.maker = "old"
	if _, err := f.make(sliceOf("a", "GPU-1", 100, accel.Silver)); err != nil {
		t.Fatal(err)
	}
	f.restart(nil, mps)
	runs := true
	f.Manager.maker, f.Manager.running = "new", func(maker string) bool { return runs && maker == "old" }
	if err := f.Reconcile(t.Context(), f.live()); err != nil || len(mps.parts) != 1 {
		t.Errorf("what the old process is starting was removed: %v", err)
	}
	runs = false
	if err := f.Reconcile(t.Context(), f.live()); err != nil || len(mps.parts) != 0 {
		t.Errorf("what the old process had begun stays: %v", err)
	}
}

func FuzzReadEntry(f *testing.F) {
	f.Add([]byte(`{"v":1,"ask":{"id":"hf0011223344556677","task_id":"a"},"state":"issued"}`))
	f.Add([]byte(`{"v":1,"ask":{"id":"x"}}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, body []byte) {
		e, err := readEntry("hf0011223344556677", body)
		if err == nil && (e.Ask.ID != "hf0011223344556677" || e.Ask.TaskID == "" || e.State == "") {
			t.Errorf("%s was read as %+v", body, e)
		}
	})
}

// TestPrepare_GivenBackMeanwhile takes a share back between its issue and the call of the backend.
func TestPrepare_GivenBackMeanwhile(t *testing.T) {
	t.Parallel()
	mps := newStub("mps", accel.Silver)
	f := newFixture(t, nil, mps)
	unlock, err := f.locks.lock(t.Context(), lockOf(mps))
	if err != nil {
		t.Fatal(err)
	}
	a := sliceOf("a", "GPU-1", 100, accel.Silver)
	ended := make(chan error, 1)
	go func() {
		_, err := f.make(a)
		ended <- err
	}()
	for e, err := f.ledger.get(a.ID); e == nil; e, err = f.ledger.get(a.ID) {
		if err != nil || t.Context().Err() != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	if err := f.ledger.drop(a.ID); err != nil {
		t.Fatal(err)
	}
	unlock()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "given back meanwhile") || len(mps.parts) > 0 {
		t.Errorf("got %v, %v", err, mps.parts)
	}
}

func TestPrepare_AgainAfterHalfARelease(t *testing.T) {
	t.Parallel()
	mps := newStub("mps", accel.Silver)
	f := newFixture(t, nil, mps)
	a := sliceOf("a", "GPU-1", 100, accel.Silver)
	if err := f.ledger.put(Entry{Ask: a, Backend: "mps", State: TimedOut}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.make(a); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]State{"a": Confirmed}, f.states()); diff != "" || len(mps.parts) != 1 {
		t.Errorf("ledger (-want +got):\n%s%v", diff, mps.parts)
	}
}

func TestLock_TwoOfOneProcessAndOfTwo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	one, two := newFileLocks(dir, hclog.NewNullLogger()), newFileLocks(dir, hclog.NewNullLogger()) // two are as two processes
	unlock, err := one.lock(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	for name, l := range map[string]*fileLocks{"the same process": one, "another": two} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if _, err := l.lock(ctx, "x"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
		other, err := l.lock(t.Context(), "y")
		if err != nil {
			t.Fatal(err)
		}
		other()
	}
	unlock()
	unlock, err = two.lock(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}
