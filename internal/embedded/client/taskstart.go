package client

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"
	"google.golang.org/protobuf/proto"

	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
)

// reserveTimeout bounds the wait for a device plugin that is being started again.
const reserveTimeout = time.Minute

// recover finds a task again that an earlier engine started. A task that cannot be found is made sure to be gone.
func (t *taskRunner) recover(ctx context.Context) bool {
	st := t.snapshot()
	if len(st.Handle) == 0 {
		if st.Starting != "" && t.dropStarting(ctx) {
			t.update(func(s *taskState) { s.Starting = "" })
		}
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
	inst, err := t.recoverBy(ctx, h, nil)
	if inst == nil {
		return false
	}
	if err == nil {
		t.setHandle(h, inst)
		t.log.Info("task recovered", "task_id", h.GetConfig().GetId())
		t.alloc.taskStarted(t)
		return true
	}
	if ctx.Err() != nil {
		return false
	}
	t.log.Warn("task not recovered and started again", "error", err)
	t.destroyBy(ctx, h, inst)
	t.update(func(s *taskState) { s.Handle = nil }, newEvent(api.TaskTerminated, "Task was gone when the engine came back"))
	return false
}

// dropStarting has the driver remove what a start may have left whose answer was lost: the task is started again under
// another id, and nobody else would ever end this one.
func (t *taskRunner) dropStarting(ctx context.Context) bool {
	id := t.snapshot().Starting
	inst, err := t.driver.instance(ctx, nil)
	if err == nil {
		_, err = inst.DestroyTask(ctx, &driverpb.DestroyTaskRequest{TaskId: id, Force: true})
	}
	if err != nil {
		t.log.Warn("what an unfinished start left is not removed", "task_id", id, "error", err)
	}
	return err == nil
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
	t.update(func(s *taskState) { s.Starting = cfg.GetId() }) // kept before the driver hears of it
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
		s.Handle, s.TaskID, s.Starting = b, cfg.GetId(), ""
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
	t.update(func(s *taskState) {
		if !pluginGone(err) {
			s.Starting = "" // the driver says itself that nothing runs
		}
	}, eventDriverFailure(err))
	if !nomadplugin.IsRecoverable(err) {
		t.end(true, eventNotRestarting("Error was unrecoverable"))
		return false
	}
	return t.again(ctx, false)
}

// newTaskID names one start of a task.
func newTaskID(allocID, task string) (string, error) {
	var b [4]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", fmt.Errorf("name the task: %w", err)
	}
	return allocID + "/" + task + "/" + hex.EncodeToString(b[:]), nil
}
