package submit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/nomadapi"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

// An eviction goes through these states, each step of which can be repeated after a crash:
//
//	wanted     the intent, the victims' rows and the room are written; nobody was told
//	signalled  victims that asked for it were told to save their work
//	stopping   the victims are scaled to nothing in Nomad, which keeps their kill timeouts
//	done       the job that asked has its room; rolled_back when it has not in time
//
// Whatever the end, the victims wait in the queue at the place they had. Those that move have room reserved from the first
// state on, beside what they have: the ledger counts both.

// evictions is what an eviction needs of the store.
type evictions interface {
	OpenEvictions(context.Context) ([]store.Eviction, error)
	MoveEviction(ctx context.Context, e store.Eviction, jobs []store.Job, release string) (store.Eviction, error)
	Extend(ctx context.Context, reservation string, until time.Time) (won bool, err error)
	Job(ctx context.Context, namespace, id string) (store.Job, error)
}

// Scaler is the part of Nomad that stops victims.
type Scaler interface {
	Job(ctx context.Context, namespace, id string) (nomadapi.Tree, error)
	Register(ctx context.Context, namespace string, request json.RawMessage) (nomadapi.Tree, error)
}

// evictor carries evictions out.
type evictor struct {
	store    evictions
	nomad    Scaler
	signals  Signaller // nil sends none
	live     func(watch.JobKey) []*watch.Alloc
	kill     func(store.Job) time.Duration
	lock     func(watch.JobKey) func()
	now      func() time.Time
	wakeAt   func(time.Time)
	expect   func(job watch.JobKey, evalID string)
	changed  func(store.Eviction) // told after each step
	grace    time.Duration
	watchdog time.Duration
	log      hclog.Logger
}

// work takes every open eviction as far as it goes now. An error means that a part that is needed is away.
func (v *evictor) work(ctx context.Context) error {
	open, err := v.store.OpenEvictions(ctx)
	if err != nil {
		return databaseError(err)
	}
	var failed []error
	for _, e := range open {
		if err := v.advance(ctx, e); err != nil && !errors.Is(err, store.ErrConflict) { // who was quicker goes on with it
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// advance takes one eviction as far as it goes now.
func (v *evictor) advance(ctx context.Context, e store.Eviction) error {
	asker, err := v.store.Job(ctx, e.Namespace, e.JobID)
	switch {
	case err != nil && !errors.Is(err, store.ErrNotFound):
		return databaseError(err)
	case err == nil && (asker.State == store.JobSubmitting || asker.State == store.JobSubmitted):
		return v.end(ctx, e, store.EvictionDone, "the job that asked has its room")
	case err != nil || asker.State != store.JobWaiting:
		return v.end(ctx, e, store.EvictionRolledBack, "the job that asked does not wait any more")
	}
	if e.State == store.EvictionWanted {
		if e, err = v.signal(ctx, e); err != nil {
			return err
		}
	}
	if e.State == store.EvictionSignalled {
		if v.now().Before(e.Deadline) {
			v.wakeAt(e.Deadline)
			return nil
		}
		if e, err = v.begin(ctx, e); err != nil {
			return err
		}
	}
	return v.stop(ctx, e)
}

func keyOfEviction(e store.Eviction) watch.JobKey {
	return watch.JobKey{Namespace: e.Namespace, ID: e.JobID}
}

// signal tells the victims that asked for it to save their work. After a crash they may be told twice. One that cannot
// be told is stopped all the same, as when a node is drained.
func (v *evictor) signal(ctx context.Context, e store.Eviction) (store.Eviction, error) {
	sent := false
	for _, victim := range e.Victims {
		if victim.Signal == "" || v.signals == nil {
			continue
		}
		for _, a := range v.live(watch.JobKey{Namespace: victim.Namespace, ID: victim.JobID}) {
			err := v.signals.SignalAlloc(ctx, victim.Namespace, a.ID, "", victim.Signal)
			if err != nil && !nomadapi.IsAnswer(err) {
				return e, &Unavailable{Part: "nomad", Err: err}
			}
			sent = sent || err == nil
		}
	}
	e.State, e.Deadline = store.EvictionSignalled, v.now()
	if sent {
		e.Deadline = v.now().Add(v.grace)
	}
	return v.move(ctx, e, nil, "")
}

// begin notes that victims may be stopped from now on, before any is.
func (v *evictor) begin(ctx context.Context, e store.Eviction) (store.Eviction, error) {
	longest := time.Duration(0)
	for _, victim := range e.Victims {
		row, err := v.store.Job(ctx, victim.Namespace, victim.JobID)
		if err == nil {
			longest = max(longest, v.kill(row))
		} else if !errors.Is(err, store.ErrNotFound) {
			return e, databaseError(err)
		}
	}
	e.State, e.Deadline = store.EvictionStopping, v.now().Add(longest+v.watchdog)
	return v.move(ctx, e, nil, "")
}

// stop stops the victims, again if need be, until the room is free or the time is over.
func (v *evictor) stop(ctx context.Context, e store.Eviction) error {
	late := !v.now().Before(e.Deadline)
	var failed []error
	for _, victim := range e.Victims {
		if err := v.scaleDown(ctx, watch.JobKey{Namespace: victim.Namespace, ID: victim.JobID}); err != nil {
			failed = append(failed, err)
		}
	}
	if late {
		return v.end(ctx, e, store.EvictionRolledBack, v.lateSentence(e))
	}
	v.wakeAt(e.Deadline)
	return errors.Join(failed...)
}

// lateSentence says why the room was not there in time.
func (v *evictor) lateSentence(e store.Eviction) string {
	for _, victim := range e.Victims {
		key := watch.JobKey{Namespace: victim.Namespace, ID: victim.JobID}
		if n := len(v.live(key)); n > 0 {
			return fmt.Sprintf("%s was told to stop and has %d allocations that did not end in time", named(key, victim.Tenant, e.Tenant), n)
		}
	}
	return "the room was free and the job that asked did not start in time"
}

// named names a job to those of its tenant; to others its name is no business of theirs.
func named(key watch.JobKey, of, to string) string {
	if of != to {
		return "a job of another tenant"
	}
	return "job " + jobName(key)
}

// scaleDown has Nomad stop all allocations of a victim, unless somebody changed it since: then it is not ours.
func (v *evictor) scaleDown(ctx context.Context, key watch.JobKey) error {
	defer v.lock(key)()
	row, err := v.store.Job(ctx, key.Namespace, key.ID)
	if errors.Is(err, store.ErrNotFound) || err == nil && !isPreempting(row) {
		return nil
	}
	if err != nil {
		return databaseError(err)
	}
	job, err := v.nomad.Job(ctx, key.Namespace, key.ID)
	if nomadapi.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return answerOf(err)
	}
	down, changed := scaledDown(job)
	if !changed {
		return nil
	}
	request, err := json.Marshal(Tree{"Job": down, "EnforceIndex": true, "JobModifyIndex": job["JobModifyIndex"]})
	if err != nil {
		return fmt.Errorf("encode job %s: %w", key.ID, err)
	}
	answer, err := v.nomad.Register(ctx, key.Namespace, request)
	if nomadapi.IsAnswer(err) { // another version came in between: it is looked at again
		v.log.Warn("victim not stopped", "namespace", key.Namespace, "job_id", key.ID, "error", err)
		return nil
	}
	if err != nil {
		return answerOf(err)
	}
	eval, _ := answer["EvalID"].(string)
	v.expect(key, eval)
	return nil
}

// scaledDown is a job with no allocations wanted, and whether that is a change.
func scaledDown(job Tree) (Tree, bool) {
	if stopped, _ := job["Stop"].(bool); stopped {
		return job, false
	}
	changed := false
	out := withoutCounters(job)
	var groups []any
	for _, g := range groupsOf(job) {
		if n, _ := g["Count"].(json.Number); n != "0" {
			changed = true
		}
		g = cloneTree(g)
		g["Count"] = 0
		if scaling, ok := g["Scaling"].(Tree); ok {
			scaling = cloneTree(scaling)
			scaling["Min"] = 0 // Nomad refuses a count below it
			g["Scaling"] = scaling
		}
		groups = append(groups, g)
	}
	out["TaskGroups"] = groups
	return out, changed
}

// end closes an eviction. Its victims wait from then on like any other job; those that were not stopped run on, and
// their rows are put right by the queue, which registers them as they are.
func (v *evictor) end(ctx context.Context, e store.Eviction, state, reason string) error {
	stopped := e.State == store.EvictionStopping
	var rows []store.Job
	for _, victim := range e.Victims {
		row, err := v.store.Job(ctx, victim.Namespace, victim.JobID)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return databaseError(err)
		}
		ours := err == nil && isPreempting(row)
		if victim.Room != "" && (!ours || !stopped) { // it does not need it: the next reconciliation gives it back
			if _, err := v.store.Extend(ctx, victim.Room, v.now()); err != nil {
				return databaseError(err)
			}
		}
		if !ours {
			continue
		}
		asker, what := named(keyOfEviction(e), e.Tenant, row.Tenant), "evicted"
		if victim.Room != "" {
			what = "moved to make room"
		}
		row.ReasonCode, row.Reason = string(codePreempted), fmt.Sprintf("was to be %s for %s and runs on", what, asker)
		if stopped {
			row.Injection = nil
			row.Reason = fmt.Sprintf("was %s for %s at %s; keeps its place in the queue and starts again as soon as there is room",
				what, asker, v.now().UTC().Format(time.DateTime+" MST"))
		}
		rows = append(rows, row)
	}
	e.State, e.Reason, e.Deadline = state, reason, v.now()
	_, err := v.move(ctx, e, rows, e.ID) // room that the job was given otherwise has another id
	return err
}

func (v *evictor) move(ctx context.Context, e store.Eviction, rows []store.Job, release string) (store.Eviction, error) {
	moved, err := v.store.MoveEviction(ctx, e, rows, release)
	if err != nil {
		if errors.Is(err, store.ErrConflict) {
			return e, err
		}
		return e, databaseError(err)
	}
	v.changed(moved)
	return moved, nil
}
