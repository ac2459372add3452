package driver

import (
	"context"
	"time"

	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/task-driver/docker"
	"github.com/heteroflow/heteroflow/task-driver/supervisor"
)

// sweep removes what was left for tasks nobody asked for again: containers with our label, state folders and leases, of
// earlier processes of this driver and of starts that could not be undone. It waits long enough for Nomad to bring back every
// task it knows. And it goes on to try destroys that failed, twice as often as leftovers are looked for: Nomad does not ask a
// second time, and the cards of those tasks stay leased until they succeed.
func (d *Driver) sweep(ctx context.Context) {
	s, _ := d.current()
	var orphans <-chan time.Time
	if s.orphanAfter > 0 {
		every := time.NewTicker(s.orphanAfter)
		defer every.Stop()
		orphans = every.C
	}
	ticker := time.NewTicker(s.reconcileEvery / 2)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-orphans:
			d.sweepNow(ctx, now.Add(-s.orphanAfter))
		case <-ticker.C:
			d.retryDestroys(ctx)
		}
	}
}

// retryDestroys destroys again what could not be destroyed.
func (d *Driver) retryDestroys(ctx context.Context) {
	d.mu.Lock()
	var failed []string
	for id, t := range d.tasks {
		if t.destroyFailed.Load() {
			failed = append(failed, id)
		}
	}
	d.mu.Unlock()
	for _, id := range failed {
		if err := d.Destroy(ctx, id, true); err != nil {
			d.log.Warn("task still cannot be destroyed", "task_id", id, "error", err)
		}
	}
}

// sweepNow removes leftovers that are older than the given moment.
func (d *Driver) sweepNow(ctx context.Context, before time.Time) {
	s, runtimes := d.current()
	gone := map[string]bool{}
	// What is of this process is known: what else seems to come from the future was there before the clock was set back.
	future := time.Now().Add(time.Minute)
	old := func(t time.Time) bool { return t.Before(before) || t.After(future) }
	states, err := supervisor.List(s.tasksDir())
	if err != nil {
		d.log.Warn("sweep: task states not read", "error", err)
	}
	for _, st := range states {
		if old(st.StartedAt) && !d.known(st.TaskID) {
			gone[st.TaskID] = true
		}
	}
	leases, err := grant.Leases(s.leasesDir())
	if err != nil {
		d.log.Warn("sweep: leases not read", "error", err)
	}
	for _, l := range leases {
		if old(l.Since) && !d.known(l.TaskID) {
			gone[l.TaskID] = true
		}
	}
	users, err := s.models.Users()
	if err != nil {
		d.log.Warn("sweep: users of models not read", "error", err)
	}
	for _, u := range users {
		if u.Since.Before(before) && !d.known(u.TaskID) {
			gone[u.TaskID] = true
		}
	}
	if r, ok := runtimes[runtimeDocker].(*dockerRuntime); ok {
		found, err := r.engine.List(ctx, docker.LabelState, r.stateDir)
		if err != nil {
			d.log.Debug("sweep: containers not listed", "error", err)
		}
		for _, c := range found {
			if old(c.CreatedAt) && c.TaskID != "" && !d.known(c.TaskID) {
				gone[c.TaskID] = true
			}
		}
	}
	for id := range gone {
		d.log.Warn("removing what is left of a task that nomad no longer knows", "task_id", id)
		if err := d.Destroy(ctx, id, true); err != nil {
			d.log.Error("leftover not removed", "task_id", id, "error", err)
		}
	}
}

func (d *Driver) known(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.tasks[id] != nil || d.starting[id] != nil
}
