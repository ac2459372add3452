package client

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
)

// Words of a task's state.
const (
	taskPending = "pending"
	taskRunning = "running"
	taskDead    = "dead"
)

// reserveTimeout bounds the wait for a device plugin that is being started again.
const reserveTimeout = time.Minute

// taskRunner takes one task through its life. Its goroutine owns the flow; what others read is under mu.
type taskRunner struct {
	alloc  *allocRunner
	task   *api.Task
	driver *driverPlugin
	policy restartPolicy
	log    hclog.Logger
	logs   *collector

	killed   *latch
	restarts chan restartAsk
	done     *latch
	stats    atomic.Pointer[driverpb.TaskStats]

	mu     sync.Mutex
	st     *taskState
	handle *driverpb.TaskHandle
	inst   *driverInstance // the process that last answered for the task
	killBy *api.TaskEvent  // said before Killing, when there is a reason
	// What a device reservation gave besides environment.
	mounts  []*driverpb.Mount
	devices []*driverpb.Device
}

// update changes the state under the lock, keeps it and tells the allocation.
func (t *taskRunner) update(change func(*taskState), events ...*api.TaskEvent) {
	t.mu.Lock()
	change(t.st)
	for _, e := range events {
		t.log.Debug("task event", "type", e.Type, "text", e.DisplayMessage)
		appendEvent(t.st.State, e)
	}
	t.mu.Unlock()
	t.alloc.changed()
}

func (t *taskRunner) event(events ...*api.TaskEvent) { t.update(func(*taskState) {}, events...) }

// snapshot copies what is persisted and told.
func (t *taskRunner) snapshot() *taskState {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := *t.st
	state := *t.st.State
	state.Events = append([]*api.TaskEvent(nil), t.st.State.Events...)
	out.State = &state
	out.DeviceEnv = maps.Clone(t.st.DeviceEnv)
	return &out
}

func (t *taskRunner) state() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.st.State.State
}

func (t *taskRunner) failed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.st.State.Failed
}

// kill asks the task to end. why is told first when it is not nil.
func (t *taskRunner) kill(why *api.TaskEvent) {
	t.mu.Lock()
	if t.killBy == nil {
		t.killBy = why
	}
	t.mu.Unlock()
	t.killed.open()
}

// restartAsk is a wish to start a running task again. One that counts is subject to the restart policy.
type restartAsk struct {
	reason string
	counts bool
}

// restart asks for a restart. A second wish while one is waiting changes nothing.
func (t *taskRunner) restart(ask restartAsk) {
	select {
	case t.restarts <- ask:
	default:
	}
}

// run goes on until the task is dead for good. When ctx ends first, the task is left as it is for the next engine.
func (t *taskRunner) run(ctx context.Context) {
	if t.state() == taskDead {
		t.done.open()
		// Once more: the engine may have been killed between the death and its consequences.
		t.alloc.taskDied(t)
		return
	}
	watch, stopWatch := context.WithCancel(ctx)
	defer stopWatch()
	running := t.recover(ctx)
	if len(t.snapshot().State.Events) == 0 {
		t.event(newEvent(api.TaskReceived, "Task received by client"))
	}
	if !running && !t.alloc.mayStart(ctx, t) {
		if ctx.Err() == nil {
			t.die(false)
		}
		return
	}
	watching := false
	for ctx.Err() == nil {
		if !running {
			if t.killed.is() {
				t.finishKill(nil)
				break
			}
			if err := t.start(ctx); err != nil {
				if ctx.Err() != nil {
					return
				}
				if t.startFailed(ctx, err) {
					continue
				}
				break
			}
		}
		if !watching && t.logs != nil {
			watching = true
			go t.logs.watch(watch)
		}
		running = false
		if !t.await(ctx) {
			break
		}
	}
	if ctx.Err() != nil {
		return
	}
	t.done.open()
	t.alloc.taskDied(t)
}

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

// recover finds a task again that an earlier engine started. A task that cannot be found is made sure to be gone.
func (t *taskRunner) recover(ctx context.Context) bool {
	st := t.snapshot()
	if len(st.Handle) == 0 {
		return false
	}
	h := &driverpb.TaskHandle{}
	if err := proto.Unmarshal(st.Handle, h); err != nil {
		t.log.Error("task handle does not read", "error", err)
		t.update(func(s *taskState) { s.Handle = nil })
		return false
	}
	if t.logs != nil {
		if err := t.logs.ensure(); err != nil {
			t.log.Error("log collector not started", "error", err)
		}
	}
	inst, err := t.driver.instance(ctx, nil)
	if err != nil {
		return false
	}
	if _, err = inst.RecoverTask(ctx, &driverpb.RecoverTaskRequest{Handle: h}); err == nil {
		t.setHandle(h, inst)
		t.log.Info("task recovered", "task_id", h.GetConfig().GetId())
		t.alloc.taskStarted(t)
		return true
	}
	if ctx.Err() != nil {
		return false
	}
	t.log.Warn("task not recovered and started again", "error", err)
	if _, err := inst.DestroyTask(ctx, &driverpb.DestroyTaskRequest{TaskId: h.GetConfig().GetId(), Force: true}); err != nil {
		t.log.Warn("task not destroyed", "error", err)
	}
	t.update(func(s *taskState) { s.Handle = nil }, newEvent(api.TaskTerminated, "Task was gone when the engine came back"))
	return false
}

func (t *taskRunner) setHandle(h *driverpb.TaskHandle, inst *driverInstance) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.handle, t.inst = h, inst
}

func (t *taskRunner) current() (*driverpb.TaskHandle, *driverInstance) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.handle, t.inst
}

// setupError is one that no restart helps against.
type setupError struct{ err error }

func (e *setupError) Error() string { return e.err.Error() }
func (e *setupError) Unwrap() error { return e.err }

// start prepares the task and starts it.
func (t *taskRunner) start(ctx context.Context) error {
	inst, err := t.driver.instance(ctx, nil)
	if err != nil {
		return err
	}
	if t.state() == taskPending && t.snapshot().TaskID == "" {
		t.event(newEvent(api.TaskSetup, "Building Task Directory"))
	}
	cfg, err := t.prepare(ctx, inst)
	if err != nil {
		return &setupError{err}
	}
	for {
		resp, err := inst.StartTask(ctx, &driverpb.StartTaskRequest{Task: cfg})
		if err == nil {
			return t.started(resp.GetHandle(), cfg, inst)
		}
		if !pluginGone(err) || ctx.Err() != nil {
			return err
		}
		// The driver died under the call: its next process is asked once more.
		if inst, err = t.driver.instance(ctx, inst); err != nil {
			return err
		}
	}
}

func (t *taskRunner) started(h *driverpb.TaskHandle, cfg *driverpb.TaskConfig, inst *driverInstance) error {
	if h.GetConfig() == nil {
		return errors.New("driver answered without a handle")
	}
	b, err := proto.Marshal(h)
	if err != nil {
		return fmt.Errorf("keep handle: %w", err)
	}
	t.setHandle(h, inst)
	t.update(func(s *taskState) {
		s.Handle, s.TaskID = b, cfg.GetId()
		s.State.State, s.State.StartedAt = taskRunning, time.Now().UTC()
	}, newEvent(api.TaskStarted, "Task started by client"))
	t.alloc.taskStarted(t)
	return nil
}

// startFailed says whether the start is tried again, after the wait that the policy asks for.
func (t *taskRunner) startFailed(ctx context.Context, err error) bool {
	var setup *setupError
	if errors.As(err, &setup) {
		t.end(true, eventSetupFailure(err), eventNotRestarting("Error was unrecoverable"))
		return false
	}
	t.event(eventDriverFailure(err))
	if !nomadplugin.IsRecoverable(err) {
		t.end(true, eventNotRestarting("Error was unrecoverable"))
		return false
	}
	return t.again(ctx, false)
}

// await follows the running task to its end and says whether it is started again.
func (t *taskRunner) await(ctx context.Context) bool {
	stats, stopStats := context.WithCancel(ctx)
	defer stopStats()
	go t.collectStats(stats)
	type end struct {
		result *driverpb.ExitResult
		text   string
	}
	waited := make(chan end, 1)
	go func() {
		result, text := t.wait(ctx)
		waited <- end{result, text}
	}()
	var asked *restartAsk
	var e end
	var stopErr error
	select {
	case <-ctx.Done():
		return false
	case e = <-waited:
	case <-t.killed.ch:
		stopErr = t.stop(ctx)
		e = <-waited
	case ask := <-t.restarts:
		asked = &ask
		signal := newEvent(api.TaskRestartSignal, ask.reason)
		signal.RestartReason, signal.Details["restart_reason"] = ask.reason, ask.reason
		t.event(signal)
		t.alloc.taskStopping(ctx, t)
		if err := t.callStop(ctx); err != nil {
			t.log.Error("task not stopped", "error", err)
		}
		e = <-waited
	}
	if ctx.Err() != nil {
		return false
	}
	t.destroy(ctx)
	t.alloc.taskStopped(t)
	t.update(func(s *taskState) { s.Handle = nil }, eventTerminated(e.result, e.text))
	if t.killed.is() {
		t.finishKill(stopErr)
		return false
	}
	if asked != nil && !asked.counts {
		t.update(func(s *taskState) {
			s.State.State = taskPending
			s.State.Restarts++
			s.State.LastRestart = time.Now().UTC()
		}, eventRestarting("", 0))
		return true
	}
	return t.again(ctx, asked == nil && e.text == "" && e.result.GetExitCode() == 0 && e.result.GetSignal() == 0)
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
		next, err := t.driver.instance(ctx, inst)
		if err != nil {
			return nil, err.Error()
		}
		if _, err := next.RecoverTask(ctx, &driverpb.RecoverTaskRequest{Handle: h}); err != nil {
			t.setHandle(h, next)
			return nil, "driver lost the task: " + rpcText(err)
		}
		t.setHandle(h, next)
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
			pause(ctx, 100*time.Millisecond)
			if _, now := t.current(); now != inst {
				continue
			}
		}
		t.log.Warn("task not stopped and tried again", "error", err, "in", waits[n].String())
		pause(ctx, waits[n])
	}
}

func (t *taskRunner) destroy(ctx context.Context) {
	h, inst := t.current()
	if _, err := inst.DestroyTask(ctx, &driverpb.DestroyTaskRequest{TaskId: h.GetConfig().GetId(), Force: true}); err != nil {
		t.log.Warn("task not destroyed", "error", err)
	}
}

func (t *taskRunner) collectStats(ctx context.Context) {
	defer t.stats.Store(nil)
	for ctx.Err() == nil {
		h, inst := t.current()
		stream, err := inst.TaskStats(ctx, &driverpb.TaskStatsRequest{TaskId: h.GetConfig().GetId(), CollectionInterval: durationpb.New(statsEvery)})
		for err == nil {
			var resp *driverpb.TaskStatsResponse
			if resp, err = stream.Recv(); err == nil {
				t.stats.Store(resp.GetStats())
			}
		}
		if saysNever(err) {
			return
		}
		pause(ctx, statsEvery)
	}
}

// newTaskID names one start of a task.
func newTaskID(allocID, task string) (string, error) {
	var b [4]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", fmt.Errorf("name the task: %w", err)
	}
	return allocID + "/" + task + "/" + hex.EncodeToString(b[:]), nil
}
