package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/nomadapi"
	"github.com/heteroflow/heteroflow/internal/store"
)

// Reconcile is how often everything is listed anew, whatever the events said.
const Reconcile = 60 * time.Second

// Hooks are told what changed. They are called from the watcher's goroutines and must return soon; nil ones are
// left out.
type Hooks struct {
	Room    func()       // the ledger or the nodes changed: something may fit now
	Blocked func(JobKey) // Nomad could not place all of a job
	Removed func(JobKey) // a job was stopped in Nomad, by whomever
	Adopted func(JobKey) // a job that holds devices was settled; it may have gone round the service
	Ended   func(JobKey) // an allocation with devices has ended, or is not wanted any more
}

// Config is what a watcher needs.
type Config struct {
	Nomad *nomadapi.Client
	Store *store.Store
	World *World
	Hooks Hooks
	Clock clock.Clock
	Log   hclog.Logger
}

// Watcher follows Nomad and settles the ledger.
type Watcher struct {
	Config
	log      hclog.Logger
	evals    *evalBook
	departed *departures

	mu    sync.Mutex
	dirty map[JobKey]bool // to be settled
	known map[JobKey]bool // jobs that hold or reserved something
	kick  chan struct{}
}

// New makes a watcher; Run starts it.
func New(c Config) *Watcher {
	if c.Clock == nil {
		c.Clock = clock.System()
	}
	return &Watcher{Config: c, log: c.Log.Named("watch"), evals: newEvalBook(), departed: newDepartures(), dirty: map[JobKey]bool{}, known: map[JobKey]bool{}, kick: make(chan struct{}, 1)}
}

// Expect notes that a job was registered and that its allocations come with this evaluation.
func (w *Watcher) Expect(job JobKey, evalID string) {
	w.evals.expect(job, evalID)
	w.Settle(job)
}

// Settle has the ledger of a job settled soon.
func (w *Watcher) Settle(job JobKey) {
	w.mu.Lock()
	w.dirty[job] = true
	w.known[job] = true
	w.mu.Unlock()
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

func (w *Watcher) isKnown(job JobKey) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.known[job]
}

// Run follows until the context ends. Nomad or the database being away only delays it.
func (w *Watcher) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return w.repeat(ctx, "nodes", nodesPart, w.followNodes) })
	g.Go(func() error { return w.repeat(ctx, "events", allocsPart, w.followEvents) })
	g.Go(func() error { return w.settleLoop(ctx) })
	g.Go(func() error { return w.departLoop(ctx) })
	g.Go(func() error { return w.reconcileLoop(ctx) })
	return g.Wait()
}

// repeat runs a part again whenever it ends, with growing pauses while it fails at once.
func (w *Watcher) repeat(ctx context.Context, name string, part int, run func(context.Context) error) error {
	pause := 100 * time.Millisecond
	for ctx.Err() == nil {
		began := w.Clock.Now()
		err := run(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if w.Clock.Now().Sub(began) > 10*time.Second {
			pause = 100 * time.Millisecond
		}
		if !errors.Is(err, io.EOF) {
			if !errors.As(err, new(*ledgerError)) {
				w.World.lose(part)
			}
			w.log.Warn("following nomad was interrupted", "part", name, "error", err, "retry_in", pause)
		}
		if !clock.Sleep(ctx, w.Clock, pause) {
			return nil
		}
		pause = min(2*pause, 5*time.Second)
	}
	return nil
}

// nodePause keeps a busy cluster, in which each allocation update touches its node, from being listed in a spin.
const nodePause = 100 * time.Millisecond

func (w *Watcher) followNodes(ctx context.Context) error {
	var index uint64
	seen := map[string]uint64{}
	for {
		nodes, next, err := w.Nomad.Nodes(ctx, index, time.Minute)
		if err != nil {
			return err
		}
		keep := map[string]bool{}
		var stale []string
		for _, n := range nodes {
			keep[n.ID] = true
			if at, ok := seen[n.ID]; !ok || at != n.ModifyIndex {
				stale = append(stale, n.ID)
				seen[n.ID] = n.ModifyIndex
			}
		}
		changed, err := w.fetchNodes(ctx, stale)
		if err != nil {
			return err
		}
		for _, id := range w.World.dropNodes(keep, w.Clock.Now()) {
			delete(seen, id)
			if err := w.Store.PutPools(ctx, id, nil); err != nil {
				return &ledgerError{fmt.Errorf("drop pools of node %s: %w", id, err)}
			}
			changed = true
		}
		// What waits because the world was stale is woken by nothing else.
		if w.World.loaded(nodesPart, w.Clock.Now()) || changed {
			w.room()
		}
		if next < index {
			next = 0 // nomad was reset
		}
		if index = next; index == 0 {
			index = 1
		}
		if !clock.Sleep(ctx, w.Clock, nodePause) {
			return ctx.Err()
		}
	}
}

func (w *Watcher) fetchNodes(ctx context.Context, ids []string) (changed bool, err error) {
	var any atomic.Bool
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for _, id := range ids {
		g.Go(func() error {
			n, err := w.Nomad.Node(ctx, id)
			if nomadapi.IsNotFound(err) {
				return nil // gone since it was listed
			}
			if err != nil {
				return err
			}
			// The ledger first: nothing is decided on a pool in which nothing can be reserved.
			if err := w.Store.PutPools(ctx, id, poolsOf(id, viewNode(n))); err != nil {
				return &ledgerError{fmt.Errorf("put pools of node %s: %w", id, err)}
			}
			if w.World.setNode(n, w.Clock.Now()) {
				any.Store(true)
			}
			return nil
		})
	}
	err = g.Wait()
	return any.Load(), err
}

var topics = []string{"Allocation", "Evaluation", "Job"}

// followEvents opens the stream, lists at its first sign of life and then applies what is newer than the lists,
// so that nothing is missed in between.
func (w *Watcher) followEvents(ctx context.Context) error {
	listed := false
	var from uint64
	return w.Nomad.Events(ctx, 0, topics, func(b nomadapi.Batch) error {
		if !listed {
			index, err := w.list(ctx)
			if err != nil {
				return err
			}
			listed, from = true, index
		}
		if w.World.heard(w.Clock.Now()) {
			w.room()
		}
		// Of one batch the allocations first: the end of an evaluation says that no more of them will come.
		slices.SortStableFunc(b.Events, func(x, y nomadapi.Event) int { return cmp.Compare(late(x), late(y)) })
		for _, e := range b.Events {
			if e.Index <= from && e.Topic != "Job" {
				continue
			}
			if err := w.apply(e, e.Index <= from); err != nil {
				w.log.Warn("event left out", "topic", e.Topic, "type", e.Type, "key", e.Key, "error", err)
			}
		}
		return nil
	})
}

func late(e nomadapi.Event) int {
	if e.Topic == "Allocation" {
		return 0
	}
	return 1
}

func (w *Watcher) list(ctx context.Context) (uint64, error) {
	awaited := w.evals.awaited()
	evals, err := w.Nomad.OpenEvaluations(ctx)
	if err != nil {
		return 0, err
	}
	stubs, index, err := w.Nomad.Allocs(ctx)
	if err != nil {
		return 0, err
	}
	allocs := make([]*Alloc, len(stubs))
	for i, s := range stubs {
		allocs[i] = allocOfStub(s)
	}
	blocked := w.evals.reset(evals, awaited)
	for _, job := range w.World.setAllocs(allocs, w.Clock.Now()) {
		w.Settle(job)
		if w.Hooks.Ended != nil {
			w.Hooks.Ended(job)
		}
	}
	w.World.loaded(allocsPart, w.Clock.Now())
	for _, job := range blocked {
		w.blocked(job)
	}
	w.room()
	return index, nil
}

func (w *Watcher) apply(e nomadapi.Event, old bool) error {
	switch e.Topic {
	case "Allocation":
		a, err := e.Allocation()
		if err != nil {
			return err
		}
		alloc := allocOf(a)
		if w.World.setAlloc(alloc, w.Clock.Now()) {
			w.Settle(alloc.Job)
		}
		if w.Hooks.Ended != nil && alloc.fate() != FateRuns && len(alloc.Devices) > 0 {
			w.Hooks.Ended(alloc.Job)
		}
	case "Evaluation":
		eval, err := e.Evaluation()
		if err != nil {
			return err
		}
		job := JobKey{eval.Namespace, eval.JobID}
		if w.evals.note(eval) && w.isKnown(job) {
			w.Settle(job)
		}
		if eval.Status == "blocked" {
			w.blocked(job)
		}
		// A purge has no Job event before Nomad 2.0; its evaluation is the only sign.
		if eval.TriggeredBy == "job-deregister" && !old {
			w.removed(job)
		}
	case "Job":
		if e.Type == "JobDeregistered" && !old {
			w.removed(JobKey{e.Namespace, e.Key})
		}
	}
	return nil
}

// removed notes that a job was stopped or purged. It may be told twice.
func (w *Watcher) removed(job JobKey) {
	w.departed.add(job, w.Clock.Now())
	if w.Hooks.Removed != nil {
		w.Hooks.Removed(job)
	}
}

func (w *Watcher) room() {
	if w.Hooks.Room != nil {
		w.Hooks.Room()
	}
}

func (w *Watcher) blocked(job JobKey) {
	if w.Hooks.Blocked != nil {
		w.Hooks.Blocked(job)
	}
}
