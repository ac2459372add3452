package client

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
)

// healthPoll is how often conditions are looked at that nobody announces, such as Consul's checks.
const healthPoll = 200 * time.Millisecond

// healthTracker finds out whether an allocation is healthy in its deployment, once for each deployment.
type healthTracker struct {
	alloc *allocRunner

	mu      sync.Mutex
	healthy *bool
	of      string // deployment
}

func newHealthTracker(ar *allocRunner) *healthTracker { return &healthTracker{alloc: ar} }

func (h *healthTracker) restore(healthy *bool, of string) { h.healthy, h.of = healthy, of }

func (h *healthTracker) verdict() (*bool, string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.healthy, h.of
}

// run watches until ctx ends; a new deployment starts the watch again.
func (h *healthTracker) run(ctx context.Context) {
	for ctx.Err() == nil {
		alloc, tg := h.alloc.desired()
		if _, of := h.verdict(); alloc.DeploymentID == "" || of == alloc.DeploymentID {
			select {
			case <-ctx.Done():
				return
			case <-h.alloc.changes():
			}
			continue
		}
		u := tg.Update
		if u == nil {
			u = alloc.Job.Update
		}
		healthy, known := h.watch(ctx, alloc.DeploymentID, healthRule(u))
		if !known {
			continue
		}
		h.mu.Lock()
		h.healthy, h.of = &healthy, alloc.DeploymentID
		h.mu.Unlock()
		h.alloc.changed()
	}
}

// rule is how an update block wants health to be found.
type rule struct {
	checks, manual bool
	min, deadline  time.Duration
}

func healthRule(u *api.UpdateStrategy) rule {
	r := rule{checks: true, min: 10 * time.Second, deadline: 5 * time.Minute}
	if u == nil {
		return r
	}
	r.min, r.deadline = deref(u.MinHealthyTime, r.min), deref(u.HealthyDeadline, r.deadline)
	switch deref(u.HealthCheck, "checks") {
	case "task_states":
		r.checks = false
	case "manual":
		r.manual = true
	}
	return r
}

// watch answers known = false when the deployment changed or ctx ended before there was an answer.
func (h *healthTracker) watch(ctx context.Context, deployment string, r rule) (healthy, known bool) {
	deadline := time.NewTimer(r.deadline)
	defer deadline.Stop()
	tick := time.NewTicker(healthPoll)
	defer tick.Stop()
	var since time.Time
	var restarts uint64
	for {
		next := h.alloc.changes()
		if alloc, _ := h.alloc.desired(); alloc.DeploymentID != deployment {
			return false, false
		}
		running, dead, count := h.alloc.taskHealth()
		switch {
		case dead:
			return false, true
		case !running || count != restarts || (r.checks && !h.alloc.checksPass()):
			since, restarts = time.Time{}, count
		case since.IsZero():
			since = time.Now()
		}
		if !r.manual && !since.IsZero() && time.Since(since) >= r.min {
			return true, true
		}
		select {
		case <-ctx.Done():
			return false, false
		case <-deadline.C:
			if r.manual {
				return false, false
			}
			return false, true
		case <-next:
		case <-tick.C:
		}
	}
}

// taskHealth says whether every task is where it should be, whether the allocation can no longer become healthy, and
// how often tasks were restarted.
func (ar *allocRunner) taskHealth() (running, dead bool, restarts uint64) {
	running = true
	for _, t := range ar.tasks {
		s := t.snapshot().State
		restarts += s.Restarts
		role := roleOf(t.task)
		switch {
		case s.State == taskDead && s.Failed:
			return false, true, restarts
		case role == rolePoststop:
		case role == rolePrestart || role == rolePoststart:
			running = running && s.State == taskDead
		case s.State == taskDead:
			return false, true, restarts
		default:
			running = running && s.State == taskRunning
		}
	}
	return running, false, restarts
}
