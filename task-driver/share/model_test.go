package share

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/grant"
)

// The states of a share are explored exhaustively: every order in which up to three actors (tasks that start and end, the
// reconciler) take their steps, with a failing tool at every call and a death of the process at every step, up to a death in
// the recovery too. A step is each read and write of the ledger, each lock, each call of a backend and each look at what
// runs. Orders that lead to the same state are followed once: the state is the machine, the ledger and all that each actor
// has seen so far, and an actor does nothing that does not follow from what it has seen.

// world is a machine with one card and the driver's processes on it, one after the other.
type world struct {
	// What outlives the process.
	entries map[ID]Entry
	parts   map[ID]Ask // of the card
	running map[string]bool
	refuses bool // the maker's tool refuses a part for which there is no room

	// What dies with it.
	starting map[string]bool
	locks    map[string]*actor
}

const cardMiB = 10

// part is a task's share of the card.
func part(task string, mib uint64) Ask {
	return Ask{
		ID: NewID(task, accel.NVIDIA, "GPU-1"), TaskID: task, Vendor: accel.NVIDIA, Form: accel.Shared, QoS: accel.Silver,
		Card: grant.Card{UUID: "GPU-1", MemoryMiB: cardMiB}, MemoryMiB: mib, Of: 1,
	}
}

// durable is what a death leaves, as text.
func (w *world) durable() string {
	var out []string
	for _, e := range w.entries {
		out = append(out, "e"+e.Ask.TaskID+string(e.State))
	}
	for _, a := range w.parts {
		out = append(out, "p"+a.TaskID)
	}
	for task := range w.running {
		out = append(out, "r"+task)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// wrong says what must never be, at any step.
func (w *world) wrong() string {
	var held uint64
	for _, a := range w.parts {
		held += a.MemoryMiB
	}
	if held > cardMiB {
		return fmt.Sprintf("the card of %d MiB is divided into %d", cardMiB, held)
	}
	for task := range w.running {
		if _, has := w.parts[NewID(task, accel.NVIDIA, "GPU-1")]; !has {
			return "task " + task + " runs and its share is gone"
		}
	}
	return ""
}

// actor is one goroutine of the driver. It runs between two steps only when the schedule says so.
type actor struct {
	name   string
	w      *world
	resume chan verdict
	parked chan bool // true: it has ended
	wants  string    // lock it waits for
	tool   bool      // its next step calls a tool, which may fail
	next   string
	seen   []string
	dead   bool
	ended  bool
}

type verdict int

const (
	proceed verdict = iota
	fail
	die
)

// killed unwinds an actor whose process has died.
type killed struct{}

// step waits for its turn. What it returns, and what the caller reads then, is all that an actor learns.
func (a *actor) step(next string, tool bool) verdict {
	if a.dead {
		panic(killed{})
	}
	a.next, a.tool = next, tool
	a.parked <- false
	v := <-a.resume
	if v == die {
		a.dead = true
		panic(killed{})
	}
	return v
}

func (a *actor) learn(what string) { a.seen = append(a.seen, what) }

// start runs the actor until its first step.
func (a *actor) start(act func(a *actor)) {
	go func() {
		defer func() {
			if p := recover(); p != nil && p != (killed{}) {
				panic(p)
			}
			a.ended = true
			a.parked <- true
		}()
		act(a)
	}()
	<-a.parked
}

func (a *actor) turn(v verdict) {
	a.resume <- v
	<-a.parked
}

// The manager's seams, with a step at each.

var (
	_ ledger = (*actor)(nil)
	_ locker = (*actor)(nil)
)

func (a *actor) put(e Entry) error {
	a.step("put "+e.Ask.TaskID+" "+string(e.State), false)
	a.w.entries[e.Ask.ID] = e
	return nil
}

func (a *actor) drop(id ID) error {
	a.step("drop "+string(id), false)
	delete(a.w.entries, id)
	return nil
}

// get is no step: what it reads is read again, or written, under the lock of its backend.
func (a *actor) get(id ID) (*Entry, error) {
	e, ok := a.w.entries[id]
	if !ok {
		a.learn("none")
		return nil, nil
	}
	a.learn(string(e.State))
	return &e, nil
}

func (a *actor) all() (map[ID]Entry, error) {
	a.step("all", false)
	var texts []string
	for _, e := range a.w.entries {
		texts = append(texts, e.Ask.TaskID+string(e.State))
	}
	slices.Sort(texts)
	a.learn(strings.Join(texts, ","))
	return maps.Clone(a.w.entries), nil
}

func (a *actor) lock(_ context.Context, name string) (func(), error) {
	a.wants = name
	a.step("lock "+name, false)
	a.wants = ""
	a.w.locks[name] = a
	return func() {
		if a.w.locks[name] == a {
			delete(a.w.locks, name)
		}
	}, nil
}

func (a *actor) alive(task string) bool {
	a.step("alive "+task, false)
	lives := a.w.starting[task] || a.w.running[task]
	a.learn(fmt.Sprint(lives))
	return lives
}

func (a *actor) live(context.Context) (Live, error) {
	a.step("live", false)
	l := Live{Tasks: map[string]bool{}, Complete: true}
	maps.Copy(l.Tasks, a.w.starting)
	maps.Copy(l.Tasks, a.w.running)
	a.learn(fmt.Sprint(l.Tasks))
	return l, nil
}

// backend of the model: its parts are on the machine.
type modelBackend struct {
	*stub
	a *actor
}

var errTool = errors.New("the tool fails")

func (b modelBackend) Prepare(_ context.Context, a Ask, _ func(string)) (Setup, error) {
	if b.a.step("prepare "+a.TaskID, true) == fail {
		b.a.learn("failed")
		return Setup{}, errTool
	}
	held := a.MemoryMiB
	for _, p := range b.a.w.parts {
		held += p.MemoryMiB
	}
	if b.a.w.refuses && held > cardMiB {
		b.a.learn("refused")
		return Setup{}, errTool
	}
	b.a.w.parts[a.ID] = a
	return Setup{}, nil
}

func (b modelBackend) Release(_ context.Context, id ID) error {
	if b.a.step("release "+string(id), true) == fail {
		b.a.learn("failed")
		return errTool
	}
	delete(b.a.w.parts, id)
	return nil
}

func (b modelBackend) Reconcile(_ context.Context, live map[ID]Ask) error {
	if b.a.step("reconcile", true) == fail {
		b.a.learn("failed")
		return errTool
	}
	for id := range b.a.w.parts {
		if _, is := live[id]; !is {
			delete(b.a.w.parts, id)
		}
	}
	return nil
}

// manager is the real one over the actor's seams. Actors share nothing else: in the driver they share a Manager, which keeps
// only when probes passed.
func (a *actor) manager() *Manager {
	m := NewManager(Options{
		Registry: NewRegistry(modelBackend{newStub("mps", accel.Silver), a}), Alive: a.alive, Clock: clock.NewFake(time.Unix(1e9, 0)),
	})
	m.ledger, m.locks = a, a
	return m
}

// What actors do, as the driver does it.

func starts(task string, mib uint64) func(*actor) {
	return func(a *actor) {
		a.step("claim "+task, false)
		a.w.starting[task] = true
		_, err := a.manager().Prepare(context.Background(), []Ask{part(task, mib)}, func(string) {})
		if err == nil {
			a.step("launch "+task, false)
			a.w.running[task] = true
		}
		delete(a.w.starting, task)
	}
}

func ends(task string) func(*actor) {
	return func(a *actor) {
		a.step("end "+task, false)
		delete(a.w.running, task)
		if err := a.manager().Release(context.Background(), task); err != nil {
			a.learn("not released")
		}
	}
}

// reconcilesParts is the part of reconciles that changes anything here: no entry is lost, and none is of a whole card.
func reconcilesParts(a *actor) {
	m := a.manager()
	if err := m.reconcile(context.Background(), m.registry.All()[0], a.live); err != nil {
		a.learn("not reconciled")
	}
}

func reconciles(a *actor) {
	if err := a.manager().Reconcile(context.Background(), a.live); err != nil {
		a.learn("not reconciled")
	}
}

// explorer follows every order.
type explorer struct {
	t        *testing.T
	initial  func() *world
	actors   []func(*actor)
	seen     map[string]bool
	settled  map[string]bool // durable states from which a recovery was tried
	explored int
	failures int // how many calls of a tool may fail on one path
}

// explore follows all orders from the initial state.
func (x *explorer) explore() {
	stack := [][]int{nil}
	for len(stack) > 0 && !x.t.Failed() {
		prefix := stack[len(stack)-1]
		stack = append(stack[:len(stack)-1], x.follow(prefix)...)
	}
}

// follow takes the choices of a prefix, then always the first that is open. It returns the prefixes of the others.
func (x *explorer) follow(prefix []int) [][]int {
	w := x.initial()
	var actors []*actor
	for i, act := range x.actors {
		a := &actor{name: fmt.Sprint(i), w: w, resume: make(chan verdict), parked: make(chan bool)}
		a.start(act)
		actors = append(actors, a)
	}
	defer func() {
		for _, a := range actors {
			if !a.ended {
				a.turn(die)
			}
		}
	}()
	var others [][]int
	var taken, trace []string
	failures := 0
	for path := slices.Clone(prefix); ; {
		at := len(taken)
		open := x.open(w, actors, failures)
		if at >= len(prefix) {
			key := x.key(w, actors, failures)
			if x.seen[key] {
				return others
			}
			x.seen[key] = true
			x.explored++
			x.crash(w, trace)
			if len(open) == 0 {
				if slices.ContainsFunc(actors, func(a *actor) bool { return !a.ended }) {
					x.t.Errorf("they wait for each other after\n%s", strings.Join(trace, "\n"))
				}
				return others
			}
			for _, o := range open[1:] {
				others = append(others, append(slices.Clone(path), o))
			}
			path = append(path, open[0])
		}
		choice := path[at]
		taken = append(taken, fmt.Sprint(choice))
		a, v := actors[choice%len(actors)], proceed
		if choice >= len(actors) {
			v = fail
			failures++
		}
		trace = append(trace, fmt.Sprintf("%s: %s %s", a.name, a.next, map[verdict]string{fail: "(fails)"}[v]))
		a.turn(v)
		if wrong := w.wrong(); wrong != "" {
			x.t.Errorf("%s after\n%s", wrong, strings.Join(trace, "\n"))
			return others
		}
	}
}

// open are the choices: whose step is next, and whether the tool that it calls fails.
func (x *explorer) open(w *world, actors []*actor, failures int) []int {
	var out []int
	for i, a := range actors {
		if a.ended || a.wants != "" && w.locks[a.wants] != nil {
			continue
		}
		out = append(out, i)
		if a.tool && failures < x.failures {
			out = append(out, len(actors)+i)
		}
	}
	return out
}

func (x *explorer) key(w *world, actors []*actor, failures int) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s|%v|%d", w.durable(), w.starting, failures)
	for name, a := range w.locks {
		if len(w.locks) > 1 {
			break // the actors' own positions tell
		}
		fmt.Fprintf(&out, "|%s=%s", name, a.name)
	}
	for _, a := range actors {
		fmt.Fprintf(&out, "|%s:%t:%s", a.next, a.ended, strings.Join(a.seen, ";"))
	}
	return out.String()
}

// crash lets the process die here, and the next one reconcile: with a death at each of its steps too, and then without.
func (x *explorer) crash(w *world, trace []string) {
	left := w.durable()
	if x.settled[left] {
		return
	}
	x.settled[left] = true
	for at := 0; ; at++ {
		after := &world{
			entries: maps.Clone(w.entries), parts: maps.Clone(w.parts), running: maps.Clone(w.running),
			refuses: w.refuses, starting: map[string]bool{}, locks: map[string]*actor{},
		}
		ended := x.recover(after, at, trace)
		after.starting, after.locks = map[string]bool{}, map[string]*actor{}
		x.recover(after, -1, trace)
		for task := range after.running {
			id := NewID(task, accel.NVIDIA, "GPU-1")
			if after.entries[id].State != Confirmed {
				x.t.Errorf("task %s runs and the ledger says %q of it: died %q and at step %d of the recovery, after\n%s", task, after.entries[id].State, left, at, strings.Join(trace, "\n"))
			}
		}
		if len(after.parts) != len(after.running) || len(after.entries) != len(after.running) {
			x.t.Errorf("orphans %q: died %q and at step %d of the recovery, after\n%s", after.durable(), left, at, strings.Join(trace, "\n"))
		}
		if ended || x.t.Failed() {
			return
		}
	}
}

// recover reconciles, and dies before the step of this number; -1 never. It reports whether there was no such step.
func (x *explorer) recover(w *world, at int, trace []string) bool {
	a := &actor{name: "recovery", w: w, resume: make(chan verdict), parked: make(chan bool)}
	a.start(reconciles)
	for n := 0; !a.ended; n++ {
		if n == at {
			a.turn(die)
			return false
		}
		a.turn(proceed)
		if wrong := w.wrong(); wrong != "" {
			x.t.Errorf("%s in the recovery after\n%s", wrong, strings.Join(trace, "\n"))
		}
	}
	return true
}

// with is a world in which tasks have shares: those in running run, the others have ended.
func with(state State, running string, tasks ...Ask) func() *world {
	return func() *world {
		w := &world{entries: map[ID]Entry{}, parts: map[ID]Ask{}, running: map[string]bool{}, refuses: state == "", starting: map[string]bool{}, locks: map[string]*actor{}}
		for _, a := range tasks {
			w.parts[a.ID] = a
			if state != "" {
				w.entries[a.ID] = Entry{Version: entryVersion, Ask: a, Backend: "mps", State: state, Since: time.Unix(1e9, 0)}
			}
			if strings.Contains(running, a.TaskID) {
				w.running[a.TaskID] = true
			}
		}
		return w
	}
}

func TestModel_EveryOrderAndEveryDeath(t *testing.T) {
	t.Parallel()
	a, c := part("a", 6), part("c", 4)
	initial := map[string]func() *world{
		"an empty card":              with(Confirmed, ""),
		"a task runs":                with(Confirmed, "a", a),
		"two tasks run":              with(Confirmed, "ac", a, c),
		"one has ended and is there": with(Confirmed, "c", a, c),
		"one was being made":         with(Issued, "", a),
		"one was not given back":     with(TimedOut, "", a),
		"one that nobody knows of":   with("", "", a),
		"half of one was given back": with(Releasing, "", a),
	}
	acts := map[string]func(*actor){
		"b starts": starts("b", 6), "d starts": starts("d", 4), "a ends": ends("a"), "reconcile": reconciles,
	}
	names := slices.Sorted(maps.Keys(acts))
	var states int
	for _, first := range slices.Sorted(maps.Keys(initial)) {
		for mask := 1; mask < 1<<len(names); mask++ {
			var chosen []func(*actor)
			var title []string
			for i, name := range names {
				if mask&(1<<i) != 0 {
					chosen = append(chosen, acts[name])
					title = append(title, name)
				}
			}
			if at := slices.Index(title, "reconcile"); at >= 0 && len(chosen) == 3 {
				chosen[at] = reconcilesParts
			}
			if len(chosen) > 3 {
				continue
			}
			failures := 1
			if len(chosen) == 3 {
				failures = 0
			}
			x := &explorer{t: t, initial: initial[first], actors: chosen, failures: failures, seen: map[string]bool{}, settled: map[string]bool{}}
			x.explore()
			states += x.explored
			if t.Failed() {
				t.Fatalf("%s: %s", first, strings.Join(title, ", "))
			}
		}
	}
	t.Logf("%d states", states)
}
