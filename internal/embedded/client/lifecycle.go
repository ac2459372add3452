package client

import (
	"context"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/clock"
)

// Places of a task in its group's life.
const (
	roleMain             = "main"
	rolePrestart         = "prestart"
	rolePrestartSidecar  = "prestart sidecar"
	rolePoststart        = "poststart"
	rolePoststartSidecar = "poststart sidecar"
	rolePoststop         = "poststop"
)

func roleOf(t *api.Task) string {
	if t.Lifecycle == nil || t.Lifecycle.Hook == "" {
		return roleMain
	}
	if t.Lifecycle.Sidecar && t.Lifecycle.Hook != api.TaskLifecycleHookPoststop {
		return t.Lifecycle.Hook + " sidecar"
	}
	return t.Lifecycle.Hook
}

// mayStart waits for a task's turn. It answers false when the task is killed before, or ctx ends.
func (ar *allocRunner) mayStart(ctx context.Context, t *taskRunner) bool {
	for {
		next := ar.changes()
		if t.killed.is() {
			return false
		}
		if ar.turn(t) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-t.killed.ch:
			return false
		case <-next:
		}
	}
}

// turn reports whether everything that comes before the task is done.
func (ar *allocRunner) turn(t *taskRunner) bool {
	ready := func(role string, ok func(*taskRunner) bool) bool {
		for _, o := range ar.tasks {
			if roleOf(o.task) == role && !ok(o) {
				return false
			}
		}
		return true
	}
	began := func(o *taskRunner) bool { return o.state() != taskPending }
	ended := func(o *taskRunner) bool { return o.state() == taskDead }
	switch roleOf(t.task) {
	case roleMain:
		return ready(rolePrestart, func(o *taskRunner) bool { return ended(o) && !o.failed() }) && ready(rolePrestartSidecar, began)
	case rolePoststart, rolePoststartSidecar:
		return ready(roleMain, began)
	case rolePoststop:
		for _, o := range ar.tasks {
			if roleOf(o.task) != rolePoststop && !ended(o) {
				return false
			}
		}
	}
	return true
}

// taskDied draws the consequences for the others.
func (ar *allocRunner) taskDied(t *taskRunner) {
	role := roleOf(t.task)
	killOthers := func(kind, text string) {
		for _, o := range ar.tasks {
			if o != t && roleOf(o.task) != rolePoststop {
				e := newEvent(kind, text)
				if kind == api.TaskSiblingFailed {
					e.FailedSibling = t.task.Name
					e.Details["failed_sibling"] = t.task.Name
				}
				o.kill(e)
			}
		}
	}
	switch {
	case role == rolePoststop:
	case t.failed():
		killOthers(api.TaskSiblingFailed, "Task's sibling \""+t.task.Name+"\" failed")
	case t.task.Leader:
		killOthers(api.TaskLeaderDead, "Leader Task in Group dead")
	case role == roleMain && ar.mainsDead():
		for _, o := range ar.tasks {
			if r := roleOf(o.task); r == rolePrestartSidecar || r == rolePoststartSidecar {
				o.kill(nil)
			}
		}
	}
	ar.wake()
}

func (ar *allocRunner) mainsDead() bool {
	for _, o := range ar.tasks {
		if roleOf(o.task) == roleMain && o.state() != taskDead {
			return false
		}
	}
	return true
}

// taskStarted registers the task's services, and the group's with its first main task.
func (ar *allocRunner) taskStarted(t *taskRunner) {
	ar.addServices(t.task.Name)
	if roleOf(t.task) == roleMain {
		ar.addServices("")
	}
}

// taskStopping takes the services away before the task ends, and waits as long as the job asks in between.
func (ar *allocRunner) taskStopping(ctx context.Context, t *taskRunner) {
	ar.dropServices(ctx, t.task.Name)
	delay := t.task.ShutdownDelay
	ar.mu.Lock()
	if ar.stopped {
		delay = max(delay, deref(ar.tg.ShutdownDelay, 0))
	}
	stopped := ar.stopped
	ar.mu.Unlock()
	if stopped {
		ar.dropServices(ctx, "")
	}
	if delay > 0 {
		clock.Sleep(ctx, clock.System(), delay)
	}
}

// taskStopped takes the services of a task away that ended by itself.
func (ar *allocRunner) taskStopped(t *taskRunner) {
	ar.dropServices(context.Background(), t.task.Name)
}
