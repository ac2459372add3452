package driver

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/task-driver/docker"
	"github.com/heteroflow/heteroflow/task-driver/supervisor"
)

// sweep removes what was left for tasks nobody asked for again: containers with our label, state folders and leases, of
// earlier processes of this driver and of starts that could not be undone, and tasks that run here and that Nomad never heard
// of, since it died before the answer to their start. It waits long enough for Nomad to bring back every task it knows. And it goes on to try destroys that failed, twice as often as leftovers are looked for: Nomad does not ask a
// second time, and the cards of those tasks stay leased until they succeed.
func (d *Driver) sweep(ctx context.Context) {
	s, _ := d.current()
	ticks := func(every time.Duration) (<-chan time.Time, func()) {
		if every <= 0 {
			return nil, func() {}
		}
		t := time.NewTicker(every)
		return t.C, t.Stop
	}
	orphans, stopOrphans := ticks(s.orphanAfter)
	defer stopOrphans()
	dangling, stopDangling := ticks(cmp.Or(s.Docker.dangling.period, s.orphanAfter))
	defer stopDangling()
	ticker := time.NewTicker(s.reconcileEvery / 2)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-orphans:
			d.sweepNow(ctx, now.Add(-s.orphanAfter))
		case now := <-dangling:
			d.sweepContainers(ctx, now.Add(-cmp.Or(s.Docker.dangling.grace, s.orphanAfter)))
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
	s, _ := d.current()
	gone := map[string]bool{}
	states, err := supervisor.List(s.tasksDir())
	if err != nil {
		d.log.Warn("sweep: task states not read", "error", err)
	}
	for _, st := range states {
		if old(st.StartedAt, before) && !d.wanted(st.TaskID) {
			gone[st.TaskID] = true
		}
	}
	leases, err := grant.Leases(s.leasesDir())
	if err != nil {
		d.log.Warn("sweep: leases not read", "error", err)
	}
	for _, l := range leases {
		if old(l.Since, before) && !d.wanted(l.TaskID) {
			gone[l.TaskID] = true
		}
	}
	users, err := s.models.Users()
	if err != nil {
		d.log.Warn("sweep: users of models not read", "error", err)
	}
	for _, u := range users {
		if u.Since.Before(before) && !d.wanted(u.TaskID) {
			gone[u.TaskID] = true
		}
	}
	d.removeGone(ctx, gone)
}

// sweepContainers removes containers that are older than the given moment and whose task, or allocation, is not known.
func (d *Driver) sweepContainers(ctx context.Context, before time.Time) {
	r, err := d.containers()
	if err != nil || r.options.dangling.off {
		return
	}
	found, err := r.engine.List(ctx, docker.LabelState, r.stateDir)
	if err != nil {
		d.log.Debug("sweep: containers not listed", "error", err)
	}
	gone := map[string]bool{}
	for _, c := range found {
		of := cmp.Or(c.TaskID, c.Network)
		switch {
		case !old(c.CreatedAt, before) || of == "" || d.known(c.TaskID) || c.Network != "" && d.knownAlloc(c.Network):
		case c.TaskID != "" && !c.Running && r.options.keepEnded:
		case r.options.dangling.dryRun:
			d.log.Info("would remove a container that nomad no longer knows: docker { gc { dangling_containers { dry_run } } } is set", "container", c.ID, "of", of)
		case c.TaskID != "":
			gone[c.TaskID] = true
		default:
			d.log.Warn("removing the network of an allocation that nomad no longer knows", "alloc_id", c.Network)
			if err := r.engine.Remove(ctx, c.ID); err != nil {
				d.log.Error("network not removed", "alloc_id", c.Network, "error", err)
			}
		}
	}
	d.removeGone(ctx, gone)
}

// old says whether something is from before a moment. What is of this process is known: what else seems to come from the future was
// there before the clock was set back.
func old(at, before time.Time) bool {
	return at.Before(before) || at.After(time.Now().Add(time.Minute))
}

// removeGone removes what is left of tasks.
func (d *Driver) removeGone(ctx context.Context, gone map[string]bool) {
	for id := range gone {
		d.log.Warn("removing what is left of a task that nomad no longer knows", "task_id", id)
		if err := d.Destroy(ctx, id, true); err != nil {
			d.log.Error("leftover not removed", "task_id", id, "error", err)
		}
	}
}

// knownAlloc says whether an allocation has tasks here, or a network that this process was asked for.
func (d *Driver) knownAlloc(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	of := func(task string) bool { return strings.HasPrefix(task, id+"/") }
	return d.networks[id] || slices.ContainsFunc(slices.Collect(maps.Keys(d.tasks)), of) || slices.ContainsFunc(slices.Collect(maps.Keys(d.starting)), of)
}

// wanted says whether Nomad asked for a task, or may be about to: it asks for each that it hears of.
func (d *Driver) wanted(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.starting[id] != nil || d.tasks[id] != nil && d.tasks[id].asked.Load()
}

func (d *Driver) known(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.tasks[id] != nil || d.starting[id] != nil
}
