package share

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/grant"
)

// A random walk of tasks that come and go on two cards while the driver is killed between any two of its steps, tools fail,
// and the state folder is wiped now and then.

const (
	walkSeeds = 1000
	walkSteps = 30
)

// walk is a node.
type walk struct {
	rnd   *rand.Rand
	trace []string

	notes   map[ID][]byte    // the ledger
	parts   map[ID]Ask       // of the cards, ours
	running map[string][]Ask // tasks that run, by id, with what they were given
	ended   map[string][]Ask // tasks that have ended and are not destroyed

	m        *Manager
	starting string // the task that is being started
	dieAt    int    // the process dies at this hook; 0 never
	failAt   int    // the tool fails at this hook; 0 never
	hooks    int
	next     int
}

// hook is a step at which the process may die.
func (w *walk) hook() {
	w.hooks++
	if w.dieAt > 0 && w.hooks >= w.dieAt {
		panic(killed{})
	}
}

var errWalk = errors.New("the tool fails")

// tool is a hook at which the tool may fail too.
func (w *walk) tool() error {
	w.hook()
	if w.failAt > 0 && w.hooks == w.failAt {
		return errWalk
	}
	return nil
}

func (w *walk) put(e Entry) error {
	w.hook()
	e.Version = entryVersion
	body, err := json.Marshal(e)
	if err != nil {
		return err
	}
	w.notes[e.Ask.ID] = body
	w.hook()
	return nil
}

func (w *walk) drop(id ID) error {
	w.hook()
	delete(w.notes, id)
	w.hook()
	return nil
}

func (w *walk) get(id ID) (*Entry, error) {
	body, ok := w.notes[id]
	if !ok {
		return nil, nil
	}
	e, err := readEntry(id, body)
	return &e, err
}

func (w *walk) all() (map[ID]Entry, error) {
	all := map[ID]Entry{}
	for id, body := range w.notes {
		e, err := readEntry(id, body)
		if err != nil {
			return nil, err
		}
		all[id] = e
	}
	return all, nil
}

func (w *walk) lock(context.Context, string) (func(), error) { return func() {}, nil }

// walkBackend makes parts in two calls and takes them back in two.
type walkBackend struct {
	*stub
	w *walk
}

func (b walkBackend) Prepare(ctx context.Context, a Ask, _ func(string)) (Setup, error) {
	if old, there := b.w.parts[a.ID]; there && old.MemoryMiB == a.MemoryMiB {
		return Setup{}, nil
	}
	if err := b.w.tool(); err != nil {
		return Setup{}, err
	}
	b.w.parts[a.ID] = a
	if err := b.w.tool(); err != nil { // it is there, and the second call, which would have bound it, fails
		return Setup{}, errors.Join(err, b.Release(ctx, a.ID))
	}
	return Setup{}, nil
}

func (b walkBackend) Release(_ context.Context, id ID) error {
	if _, there := b.w.parts[id]; !there {
		return nil
	}
	if err := b.w.tool(); err != nil {
		return err
	}
	delete(b.w.parts, id)
	b.w.hook()
	return nil
}

func (b walkBackend) Reconcile(ctx context.Context, live map[ID]Ask) error {
	var problems []error
	for _, id := range slices.Sorted(maps.Keys(b.w.parts)) {
		if _, is := live[id]; !is {
			problems = append(problems, b.Release(ctx, id))
		}
	}
	return errors.Join(problems...)
}

// boot starts a process of the driver.
func (w *walk) boot() {
	w.starting = ""
	w.m = NewManager(Options{
		Registry: NewRegistry(walkBackend{newStub("mps", accel.Silver), w}), Clock: clock.NewFake(time.Unix(1e9, 0)),
		Alive: func(task string) bool { return w.running[task] != nil || w.starting == task },
	})
	w.m.ledger, w.m.locks = w, w
}

// step runs one action of the driver, and reports whether the process lived through it.
func (w *walk) step(name string, act func() error) (ok, lived bool) {
	w.hooks, w.dieAt, w.failAt = 0, 0, 0
	switch w.rnd.IntN(4) {
	case 0:
		w.dieAt = 1 + w.rnd.IntN(10)
	case 1:
		w.failAt = 1 + w.rnd.IntN(10)
	}
	defer func() {
		p := recover()
		if p != nil && p != (killed{}) {
			panic(p)
		}
		if p != nil {
			w.trace = append(w.trace, fmt.Sprintf("%s: killed at %d", name, w.dieAt))
			w.boot()
		}
		w.dieAt, w.failAt = 0, 0
	}()
	err := act()
	w.trace = append(w.trace, fmt.Sprintf("%s: fails at %d, %v", name, w.failAt, err))
	return err == nil, true
}

func (w *walk) live(context.Context) (Live, error) {
	l := Live{Tasks: map[string]bool{}, Complete: true}
	for task, asks := range w.running {
		l.Tasks[task] = true
		for _, a := range asks {
			h := Held{Ask: a, Backend: "mps"}
			if a.whole() {
				h.Backend = ""
			}
			l.Held = append(l.Held, h)
		}
	}
	if w.starting != "" {
		l.Tasks[w.starting] = true
	}
	return l, nil
}

// asks are shares of one card or of both, or whole cards.
func (w *walk) asks(task string) []Ask {
	var out []Ask
	for _, card := range [][]string{{"GPU-1"}, {"GPU-2"}, {"GPU-1", "GPU-2"}}[w.rnd.IntN(3)] {
		a := part(task, uint64(1+w.rnd.IntN(cardMiB)))
		a.Card = grant.Card{UUID: card, MemoryMiB: cardMiB}
		a.ID = NewID(task, accel.NVIDIA, card)
		if w.rnd.IntN(6) == 0 {
			a.Form, a.MemoryMiB = accel.Whole, 0
		}
		out = append(out, a)
	}
	return out
}

// move takes one random step.
func (w *walk) move() {
	tasks := slices.Sorted(maps.Keys(w.running))
	dead := slices.Sorted(maps.Keys(w.ended))
	switch w.rnd.IntN(10) {
	case 0, 1, 2, 3:
		w.next++
		task := fmt.Sprintf("t%d", w.next)
		asks := w.asks(task)
		w.starting = task
		if ok, lived := w.step("start "+task, func() error {
			_, err := w.m.Prepare(context.Background(), asks, func(string) {})
			return err
		}); ok && lived {
			w.running[task] = asks
		}
		w.starting = ""
	case 4:
		if len(tasks) > 0 { // it ends by itself
			task := tasks[w.rnd.IntN(len(tasks))]
			w.ended[task] = w.running[task]
			delete(w.running, task)
			w.trace = append(w.trace, task+" ends")
		}
	case 5, 6:
		all := append(tasks, dead...)
		if len(all) > 0 {
			task := all[w.rnd.IntN(len(all))]
			delete(w.running, task)
			delete(w.ended, task)
			w.step("destroy "+task, func() error { return w.m.Release(context.Background(), task) })
		}
	case 7, 8:
		w.step("reconcile", func() error { return w.m.Reconcile(context.Background(), w.live) })
	case 9:
		if w.rnd.IntN(3) == 0 {
			w.notes = map[ID][]byte{}
			w.trace = append(w.trace, "the state folder is wiped")
			// The running driver mends its ledger before it gives anything away.
			w.step("reconcile", func() error { return w.m.Reconcile(context.Background(), w.live) })
		}
		w.trace = append(w.trace, "killed")
		w.boot()
		// The next process brings its tasks back first.
		l, err := w.live(context.Background())
		if err == nil {
			err = w.m.Adopt(context.Background(), l.Held...)
		}
		if err != nil {
			w.trace = append(w.trace, err.Error())
		}
	}
}

// wrong says what must never be.
func (w *walk) wrong() string {
	held, owner := map[string]uint64{}, map[string]string{}
	for task, asks := range w.running {
		for _, a := range asks {
			held[a.Card.UUID] += a.MemoryMiB
			if !a.whole() {
				if _, there := w.parts[a.ID]; !there {
					return fmt.Sprintf("task %s runs and its share of %s is gone", task, a.Card.UUID)
				}
			}
			if other := owner[a.Card.UUID]; other != "" && other != task {
				return fmt.Sprintf("card %s has the owners %s and %s", a.Card.UUID, other, task)
			}
			if a.whole() {
				owner[a.Card.UUID] = task
			}
		}
	}
	for task, asks := range w.running {
		for _, a := range asks {
			if other := owner[a.Card.UUID]; other != "" && other != task {
				return fmt.Sprintf("card %s is task %s's own, and %s has a share of it", a.Card.UUID, other, task)
			}
		}
	}
	for card, mib := range held {
		if mib > cardMiB {
			return fmt.Sprintf("%d MiB of card %s are given away", mib, card)
		}
	}
	return ""
}

// orphans are parts and entries of no running task, after a quiet look.
func (w *walk) orphans() []string {
	var out []string
	wanted := map[ID]bool{}
	for _, asks := range w.running {
		for _, a := range asks {
			wanted[a.ID] = true
		}
	}
	for id := range w.parts {
		if !wanted[id] {
			out = append(out, "part of "+w.parts[id].TaskID)
		}
	}
	for id := range w.notes {
		if !wanted[id] {
			out = append(out, "entry "+string(w.notes[id]))
		}
	}
	for id := range wanted {
		if w.notes[id] == nil {
			out = append(out, "no entry "+string(id))
		}
	}
	return out
}

func TestWalk_ThousandSeedsOfKills(t *testing.T) {
	t.Parallel()
	for seed := range uint64(walkSeeds) {
		w := &walk{
			rnd:   rand.New(rand.NewPCG(seed, 7)),
			notes: map[ID][]byte{}, parts: map[ID]Ask{}, running: map[string][]Ask{}, ended: map[string][]Ask{},
		}
		w.boot()
		for range walkSteps {
			w.move()
			if wrong := w.wrong(); wrong != "" {
				t.Fatalf("seed %d: %s after\n%s", seed, wrong, strings.Join(w.trace, "\n"))
			}
		}
		w.boot()
		if err := w.m.Reconcile(t.Context(), w.live); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if left := w.orphans(); len(left) > 0 || w.wrong() != "" {
			t.Fatalf("seed %d: %v %s after\n%s", seed, left, w.wrong(), strings.Join(w.trace, "\n"))
		}
	}
}
