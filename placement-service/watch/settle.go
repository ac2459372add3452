package watch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

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
			select {
			case <-ctx.Done():
				return nil
			case <-w.Clock.After(pause):
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
	for job := range jobs {
		if err := w.settle(ctx, job); err != nil {
			failed = append(failed, err)
			w.mu.Lock()
			w.dirty[job] = true
			w.mu.Unlock()
		}
	}
	w.room()
	return errors.Join(failed...)
}

// settle makes the ledger of one job what Nomad's allocations say.
func (w *Watcher) settle(ctx context.Context, job JobKey) error {
	pending := 0
	if w.evals.open(job) {
		pending = allPending
	}
	var live []store.Claim
	for _, a := range w.World.LiveAllocs(job) {
		live = append(live, a.Claims()...)
	}
	slices.SortFunc(live, compareClaims)
	if err := w.Store.Settle(ctx, job.Namespace, job.ID, live, pending); err != nil {
		return fmt.Errorf("settle job %s/%s: %w", job.Namespace, job.ID, err)
	}
	if len(live) > 0 {
		if w.Hooks.Adopted != nil {
			w.Hooks.Adopted(job)
		}
	} else if pending == 0 {
		w.mu.Lock()
		delete(w.known, job)
		w.mu.Unlock()
	}
	return nil
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
		list, next, err := w.Store.Reservations(ctx, "", page)
		if err != nil {
			return err
		}
		for _, r := range list {
			if r.State == store.Reserved || r.State == store.Submitted || r.State == store.Confirmed {
				jobs[JobKey{r.Namespace, r.JobID}] = true
			}
		}
		if next == "" {
			break
		}
		page.Cursor = next
	}
	for _, job := range slices.Collect(maps.Keys(jobs)) {
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
	if _, err := w.Store.ForgetClosed(ctx, now.Add(-24*time.Hour)); err != nil {
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

// IntentLife is how long a node has to take on and finish an intent.
const IntentLife = 2 * time.Minute

func compareClaims(a, b store.Claim) int {
	for _, c := range []int{
		compareText(a.AllocID, b.AllocID), compareText(a.NodeID, b.NodeID), compareText(a.Group, b.Group),
		compareText(a.TaskGroup, b.TaskGroup), compareText(a.Task, b.Task),
	} {
		if c != 0 {
			return c
		}
	}
	return a.Units - b.Units
}

func compareText(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
