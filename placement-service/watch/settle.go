package watch

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/nomadapi"
	"github.com/heteroflow/heteroflow/internal/store"
)

// allPending stands for every claim that is not confirmed yet.
const allPending = 1 << 20

// settleLoop settles jobs as they become dirty. What fails stays dirty.
func (w *Watcher) settleLoop(ctx context.Context) error {
	pause := time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.kick:
		case <-w.Clock.After(max(pause, 10*time.Second)):
		}
		if !w.World.IsReady() {
			select { // without the allocations everything would look released
			case <-ctx.Done():
				return nil
			case <-w.World.Ready():
			}
		}
		if err := w.settleDirty(ctx); err != nil && ctx.Err() == nil {
			pause = min(max(2*pause, 200*time.Millisecond), 5*time.Second)
			w.log.Warn("ledger not settled", "error", err, "retry_in", pause)
			if !clock.Sleep(ctx, w.Clock, pause) {
				return nil
			}
			w.Settle(JobKey{}) // wake up again
			continue
		}
		pause = 0
	}
}

func (w *Watcher) settleDirty(ctx context.Context) error {
	w.mu.Lock()
	jobs := w.dirty
	w.dirty = map[JobKey]bool{}
	w.mu.Unlock()
	delete(jobs, JobKey{})
	if len(jobs) == 0 {
		return nil
	}
	var failed []error
	moved := false
	for job := range jobs {
		changed, err := w.settle(ctx, job)
		moved = moved || changed
		if err != nil {
			failed = append(failed, err)
			w.mu.Lock()
			w.dirty[job] = true
			w.mu.Unlock()
		}
	}
	if moved || len(failed) > 0 {
		w.room()
	}
	return errors.Join(failed...)
}

// settle makes the ledger of one job what Nomad's allocations say. It reports whether that changed what is taken of
// any pool: seeing that an allocation took what was reserved for it does not.
func (w *Watcher) settle(ctx context.Context, job JobKey) (moved bool, err error) {
	coming, err := w.Coming(ctx, job)
	if err != nil {
		return false, err
	}
	pending := 0
	if coming {
		pending = allPending
	}
	held, err := w.Store.ReservationOf(ctx, job.Namespace, job.ID)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return false, fmt.Errorf("read reservation of job %s/%s: %w", job.Namespace, job.ID, err)
	}
	live := claimsOf(w.World.LiveAllocs(job), held, coming)
	kept, err := w.keptPlaces(ctx, job)
	if err != nil {
		return false, err
	}
	live = append(live, kept...)
	if live, err = w.confirm(ctx, job, held, live); err != nil {
		return false, err
	}
	slices.SortFunc(live, compareClaims)
	if sameHolding(held, live, coming) {
		w.settled(job, live, coming)
		return false, nil
	}
	w.log.Debug("settling", "namespace", job.Namespace, "job_id", job.ID, "live_claims", len(live), "coming", coming)
	if err := w.Store.Settle(ctx, job.Namespace, job.ID, live, pending); err != nil {
		return false, fmt.Errorf("settle job %s/%s: %w", job.Namespace, job.ID, err)
	}
	w.settled(job, live, coming)
	return takesElse(held, live, coming), nil
}

// claimsOf are the claims of live allocations. An allocation that was told to stop, and whose place its job reserved anew for
// what comes after it, claims nothing beside that: it would use up the room and take it along when it ends.
func claimsOf(allocs []*Alloc, held store.Reservation, coming bool) (live []store.Claim) {
	known := map[string]bool{}
	var anew []store.Claim
	for _, c := range held.Claims {
		known[c.AllocID] = true
		if c.AllocID == "" && (coming || held.State == store.Reserved) {
			anew = append(anew, c)
		}
	}
	for _, a := range allocs {
		claims := a.Claims()
		if !a.Stays() && !known[a.ID] {
			if left, all := without(anew, claims); all {
				anew = left
				continue
			}
		}
		live = append(live, claims...)
	}
	return live
}

// without takes as many units of the same tasks on the same pools away from the claims, and reports whether there were all.
func without(from, units []store.Claim) (left []store.Claim, all bool) {
	left = slices.Clone(from)
	for _, u := range units {
		for i := range left {
			c := &left[i]
			if c.NodeID == u.NodeID && c.Group == u.Group && c.TaskGroup == u.TaskGroup && c.Task == u.Task {
				n := min(c.Units, u.Units)
				c.Units, u.Units = c.Units-n, u.Units-n
			}
		}
		if u.Units > 0 {
			return from, false
		}
	}
	return left, true
}

// takesElse reports whether the settled claims take something else of any pool than the ledger had.
func takesElse(held store.Reservation, live []store.Claim, coming bool) bool {
	units := map[PoolKey]int{}
	reserved := map[PoolKey]int{}
	for _, c := range held.Claims {
		units[PoolKey{c.NodeID, c.Group}] += c.Units
		if c.AllocID == "" {
			reserved[PoolKey{c.NodeID, c.Group}] += c.Units
		}
	}
	for _, c := range live {
		units[PoolKey{c.NodeID, c.Group}] -= c.Units
	}
	for pool, n := range units {
		if n != 0 && (!coming || n < 0 || n > reserved[pool]) {
			return true
		}
	}
	return false
}

// settled tells and forgets what follows from a settlement.
func (w *Watcher) settled(job JobKey, live []store.Claim, coming bool) {
	if len(live) > 0 {
		if w.Hooks.Adopted != nil {
			w.Hooks.Adopted(job)
		}
		return
	}
	if !coming {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.known, job)
	}
}

// sameHolding reports whether settling would change nothing. Doing it all the same would be worse than idle: what
// another instance, which is ahead of this one, confirmed or released in between would be undone.
func sameHolding(held store.Reservation, live []store.Claim, coming bool) bool {
	type key struct{ alloc, node, group, task string }
	units := map[key]int{}
	for _, c := range held.Claims {
		if c.AllocID == "" {
			if !coming && held.State != store.Reserved {
				return false
			}
			continue
		}
		units[key{c.AllocID, c.NodeID, c.Group, c.Task}] += c.Units
	}
	for _, c := range live {
		units[key{c.AllocID, c.NodeID, c.Group, c.Task}] -= c.Units
	}
	for _, n := range units {
		if n != 0 {
			return false
		}
	}
	return true
}

// keptPlaces is what failed members of a gang held: it stays theirs until Nomad has replaced them, or is known not to, so
// that nobody takes a place to which a member comes back.
func (w *Watcher) keptPlaces(ctx context.Context, job JobKey) ([]store.Claim, error) {
	failed, undecided := w.World.awaited(job, w.Clock.Now())
	if len(failed) == 0 {
		return nil, nil
	}
	row, err := w.Store.Job(ctx, job.Namespace, job.ID)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, fmt.Errorf("read job %s/%s: %w", job.Namespace, job.ID, err)
	}
	var placed struct {
		Gang []any `json:"gang"` // as admission stores it
	}
	if row.State != store.JobSubmitted || json.Unmarshal(row.Injection, &placed) != nil || len(placed.Gang) == 0 {
		return nil, nil
	}
	if undecided { // it is looked at again with the next that are, which are seconds away
		w.mu.Lock()
		w.dirty[job] = true
		w.mu.Unlock()
	}
	var out []store.Claim
	for _, a := range failed {
		out = append(out, a.Claims()...)
	}
	return out, nil
}

// Coming reports whether Nomad may still make allocations for what the job reserved: it has an evaluation to come, or
// another instance of the service registered it and the end of that evaluation was not seen here yet.
func (w *Watcher) Coming(ctx context.Context, job JobKey) (bool, error) {
	if w.evals.open(job) {
		return true, nil
	}
	row, err := w.Store.Job(ctx, job.Namespace, job.ID)
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read job %s/%s: %w", job.Namespace, job.ID, err)
	}
	return row.State == store.JobSubmitted && row.EvalID != "" && !w.evals.ended(row.EvalID), nil
}

// confirm asks Nomad where this instance and the ledger disagree in a way that another instance, which is ahead of
// this one, may have brought about: allocations that the ledger has no claim for may have ended, and their room may be
// another job's by now; allocations that the ledger knows and this instance does not may just have begun.
func (w *Watcher) confirm(ctx context.Context, job JobKey, held store.Reservation, live []store.Claim) ([]store.Claim, error) {
	inLedger, inWorld := map[string]bool{}, map[string]bool{}
	expected := 0
	for _, c := range held.Claims {
		if c.AllocID == "" {
			expected++
			continue
		}
		inLedger[c.AllocID] = true
	}
	for _, c := range live {
		inWorld[c.AllocID] = true
	}
	for id := range inWorld {
		if inLedger[id] {
			continue
		}
		if expected > 0 { // it is what was reserved
			expected--
			continue
		}
		a, err := w.askFor(ctx, job, id)
		if err != nil {
			return nil, err
		}
		if a == nil || !a.Live() {
			live = slices.DeleteFunc(live, func(c store.Claim) bool { return c.AllocID == id })
		}
	}
	for id := range inLedger {
		if inWorld[id] {
			continue
		}
		a := w.World.find(id) // it may have been heard of since live was listed
		if a == nil {
			var err error
			if a, err = w.askFor(ctx, job, id); err != nil {
				return nil, err
			}
		}
		if a != nil && a.Live() {
			live = append(live, a.Claims()...)
		}
	}
	return live, nil
}

// askFor asks Nomad for an allocation; nil when it does not have it.
func (w *Watcher) askFor(ctx context.Context, job JobKey, id string) (*Alloc, error) {
	a, err := w.Nomad.Alloc(ctx, job.Namespace, id)
	if nomadapi.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	now := allocOf(a)
	w.World.setAlloc(now, w.Clock.Now())
	return now, nil
}

// reconcileLoop is the safety net under the events.
func (w *Watcher) reconcileLoop(ctx context.Context) error {
	tick := w.Clock.NewTicker(Reconcile)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
		}
		if err := w.ReconcileOnce(ctx); err != nil && ctx.Err() == nil {
			w.log.Warn("reconcile interrupted", "error", err)
		}
	}
}

// ReconcileOnce lists the allocations anew, settles every job that holds or reserved something, and lets expire
// what nobody used.
func (w *Watcher) ReconcileOnce(ctx context.Context) error {
	if _, err := w.list(ctx); err != nil {
		return err
	}
	jobs := map[JobKey]bool{}
	for _, job := range w.World.JobsWithDevices() {
		jobs[job] = true
	}
	page := store.Page{Limit: 500}
	for {
		list, next, err := w.Store.OpenReservations(ctx, page)
		if err != nil {
			return err
		}
		for _, r := range list {
			jobs[JobKey{r.Namespace, r.JobID}] = true
		}
		if next == "" {
			break
		}
		page.Cursor = next
	}
	for job := range jobs {
		w.Settle(job)
	}
	now := w.Clock.Now()
	expired, err := w.Store.Expire(ctx, now)
	if err != nil {
		return err
	}
	for _, r := range expired {
		w.log.Warn("reservation expired", "namespace", r.Namespace, "job_id", r.JobID, "tenant", r.Tenant)
	}
	if _, err := w.Store.ExpireIntents(ctx, now.Add(-IntentLife)); err != nil {
		return err
	}
	if _, err := w.Store.ForgetClosed(ctx, now.Add(-closedKept)); err != nil {
		return err
	}
	if _, err := w.Store.ForgetGangsBefore(ctx, now.Add(-gangKept)); err != nil {
		return err
	}
	fixed, err := w.Store.RecountPools(ctx)
	if err != nil {
		return err
	}
	if fixed > 0 {
		w.log.Warn("pools recounted", "fixed", fixed)
	}
	w.room()
	return nil
}

// closedKept is how long released and expired reservations can still be looked up.
const closedKept = 24 * time.Hour

// gangKept is how long it is known of the members of a gang that they began together, if their job is not stopped before:
// longer than a training runs.
const gangKept = 365 * 24 * time.Hour

// IntentLife is how long a node has to take on and finish an intent.
const IntentLife = 2 * time.Minute

func compareClaims(a, b store.Claim) int {
	return cmp.Or(
		cmp.Compare(a.AllocID, b.AllocID), cmp.Compare(a.NodeID, b.NodeID), cmp.Compare(a.Group, b.Group),
		cmp.Compare(a.TaskGroup, b.TaskGroup), cmp.Compare(a.Task, b.Task), cmp.Compare(a.Units, b.Units),
	)
}
