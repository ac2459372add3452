package client

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
)

// Words of a task's state.
const (
	taskPending = "pending"
	taskRunning = "running"
	taskDead    = "dead"
)

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
	var logs sync.WaitGroup
	defer logs.Wait()
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
			logs.Go(func() { t.logs.watch(watch) })
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

// await follows the running task to its end and says whether it is started again.
func (t *taskRunner) await(ctx context.Context) bool {
	stats, stopStats := context.WithCancel(ctx)
	var collecting sync.WaitGroup
	defer collecting.Wait()
	defer stopStats()
	collecting.Go(func() { t.collectStats(stats) })
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
		<-waited
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
		clock.Sleep(ctx, clock.System(), statsEvery)
	}
}
