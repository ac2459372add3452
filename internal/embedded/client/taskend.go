package client

import (
	"context"
	"time"

	"github.com/hashicorp/nomad/api"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
)

// die marks a task dead that never ran.
func (t *taskRunner) die(failed bool) {
	t.end(failed)
	t.done.open()
	t.alloc.taskDied(t)
}

// end marks the task dead for good. Its log is whole by then: who hears of the death may read it.
func (t *taskRunner) end(failed bool, events ...*api.TaskEvent) {
	if t.logs != nil {
		t.logs.stop()
	}
	t.update(func(s *taskState) {
		s.State.State, s.State.Failed, s.State.FinishedAt = taskDead, failed, time.Now().UTC()
	}, events...)
}

// again asks the restart policy and waits out its delay.
func (t *taskRunner) again(ctx context.Context, success bool) bool {
	t.mu.Lock()
	v := t.policy.decide(&t.st.Restart, success, time.Now())
	t.mu.Unlock()
	if !v.again {
		var events []*api.TaskEvent
		if v.failed {
			events = append(events, eventNotRestarting(v.reason))
		}
		t.end(v.failed, events...)
		return false
	}
	t.update(func(s *taskState) {
		s.State.State = taskPending
		s.State.Restarts++
		s.State.LastRestart = time.Now().UTC()
	}, eventRestarting(v.reason, v.delay))
	timer := time.NewTimer(v.delay)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.killed.ch:
		t.finishKill(nil)
		return false
	case <-t.restarts:
	case <-timer.C:
	}
	return true
}

func (t *taskRunner) finishKill(err error) {
	t.end(false, eventKilled(err))
}

// wait blocks until the task has ended. When the driver's process ends meanwhile, the next one takes the task over.
func (t *taskRunner) wait(ctx context.Context) (*driverpb.ExitResult, string) {
	for {
		h, inst := t.current()
		id := h.GetConfig().GetId()
		resp, err := inst.WaitTask(ctx, &driverpb.WaitTaskRequest{TaskId: id})
		if err == nil {
			return resp.GetResult(), resp.GetErr()
		}
		if ctx.Err() != nil || !pluginGone(err) {
			return nil, rpcText(err)
		}
		next, err := t.recoverBy(ctx, h, inst)
		if next != nil {
			t.setHandle(h, next)
		}
		switch {
		case next == nil:
			return nil, err.Error()
		case err != nil:
			return nil, "driver lost the task: " + rpcText(err)
		}
	}
}

// recoverBy hands the task to the process of the driver that follows gone, and to the one after it when that ends too before it
// has answered. next is nil when there is none; with an error beside it, it does not have the task.
func (t *taskRunner) recoverBy(ctx context.Context, h *driverpb.TaskHandle, gone *driverInstance) (next *driverInstance, err error) {
	for {
		if next, err = t.driver.instance(ctx, gone); err != nil {
			return nil, err
		}
		_, err = next.RecoverTask(ctx, &driverpb.RecoverTaskRequest{Handle: h})
		if err == nil || ctx.Err() != nil || !pluginGone(err) {
			return next, err
		}
		gone = next
	}
}

// stop ends the running task because it was killed.
func (t *taskRunner) stop(ctx context.Context) error {
	t.mu.Lock()
	why := t.killBy
	t.mu.Unlock()
	if why != nil {
		t.event(why)
	}
	t.event(eventKilling(t.killTimeout()))
	t.alloc.taskStopping(ctx, t)
	return t.callStop(ctx)
}

func (t *taskRunner) killTimeout() time.Duration { return deref(t.task.KillTimeout, 5*time.Second) }

// callStop asks the driver to stop the task, again with growing waits when it cannot.
func (t *taskRunner) callStop(ctx context.Context) error {
	waits := []time.Duration{5 * time.Second, 20 * time.Second, 80 * time.Second, 2 * time.Minute}
	for n := 0; ; n++ {
		h, inst := t.current()
		_, err := inst.StopTask(ctx, &driverpb.StopTaskRequest{
			TaskId: h.GetConfig().GetId(), Timeout: durationpb.New(t.killTimeout()), Signal: t.task.KillSignal,
		})
		if err == nil || ctx.Err() != nil || n == len(waits) {
			return err
		}
		if pluginGone(err) {
			// wait takes the task over to the next process; its id is known there then.
			clock.Sleep(ctx, clock.System(), 100*time.Millisecond)
			if _, now := t.current(); now != inst {
				continue
			}
		}
		t.log.Warn("task not stopped and tried again", "error", err, "in", waits[n].String())
		clock.Sleep(ctx, clock.System(), waits[n])
	}
}

// destroyTimeout is how long it is tried to have a task destroyed while the driver's process ends again and again.
const destroyTimeout = time.Minute

// destroy has the driver remove what it has of the task; one that ends meanwhile leaves that to the next.
func (t *taskRunner) destroy(ctx context.Context) {
	h, inst := t.current()
	t.destroyBy(ctx, h, inst)
}

func (t *taskRunner) destroyBy(ctx context.Context, h *driverpb.TaskHandle, inst *driverInstance) {
	ctx, cancel := context.WithTimeout(ctx, destroyTimeout)
	defer cancel()
	for {
		_, err := inst.DestroyTask(ctx, &driverpb.DestroyTaskRequest{TaskId: h.GetConfig().GetId(), Force: true})
		if err == nil {
			return
		}
		if ctx.Err() == nil && pluginGone(err) {
			if next, gone := t.driver.instance(ctx, inst); gone == nil {
				inst = next
				continue
			}
		}
		t.log.Warn("task not destroyed", "error", err)
		return
	}
}
