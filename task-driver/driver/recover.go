package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/supervisor"
)

// Recover takes over a task that an earlier process of the driver started: running, or ended with its result kept. An
// error means that nothing of the task runs any more.
func (d *Driver) Recover(ctx context.Context, h *driverpb.TaskHandle) error {
	id := h.GetConfig().GetId()
	if _, err := d.asked(id); err == nil {
		return nil
	}
	var r record
	if err := json.Unmarshal(h.GetDriverState(), &r); err != nil {
		return fmt.Errorf("read the task's handle: %w", err)
	}
	if r.Version != 1 {
		return fmt.Errorf("the task's handle has version %d, which this driver does not know: drain the node before going back to an older driver", r.Version)
	}
	run, err := d.runtimeFor(r.Runtime)
	if err != nil {
		return err
	}
	s, _ := d.current()
	t := &task{
		id: id, cfg: h.GetConfig(), record: r, runtime: run,
		dir: supervisor.Dir(s.tasksDir(), id), ended: make(chan struct{}),
	}
	status, err := d.find(ctx, t)
	if err != nil {
		return fmt.Errorf("recover task: %w", err)
	}
	if len(r.Cards) > 0 {
		lease := grant.Lease{TaskID: id, AllocID: t.cfg.GetAllocId(), Cards: r.Cards, Forms: r.Forms, Since: r.StartedAt, Maker: d.maker}
		if err := grant.WriteLease(s.leasesDir(), lease); err != nil {
			d.log.Error("lease not renewed", "task_id", id, "error", err)
		}
	}
	if c, ok := run.(*dockerRuntime); ok && r.Image != "" {
		c.images.use(id, r.Image, r.ImagePulled)
	}
	if status.Phase != supervisor.Exited {
		if err := d.shares().Adopt(ctx, r.Shares...); err != nil {
			d.log.Error("shares not noted in the ledger", "task_id", id, "error", err)
		}
	}
	d.adopt(t.cfg, r.config(), d.recoveredEnv(t.cfg, r), r, run, status).asked.Store(true)
	d.log.Info("task recovered", "task_id", id, "phase", status.Phase)
	return nil
}

// recoveredEnv is the environment of a recovered task, for exec sessions: its cards are those of the device environment,
// the rest is in the record. The grant was checked when the task started.
func (d *Driver) recoveredEnv(cfg *driverpb.TaskConfig, r record) map[string]string {
	sh, err := admit(cfg, r.config(), nil, false)
	if err != nil {
		d.log.Warn("reservation of a running task not read, exec sessions see no card", "task_id", cfg.GetId(), "error", err)
	}
	sh.memoryMiB, sh.computePct, sh.qos = r.MemoryMiB, r.ComputePct, r.QoS
	setup := share.Combined{}
	if r.Setup != nil {
		setup = *r.Setup
	}
	return taskEnv(cfg, r.config(), sh, setup)
}

// find reads the state of a task, and puts a new supervisor in the place of one that has died.
func (d *Driver) find(ctx context.Context, t *task) (supervisor.Status, error) {
	status, err := supervisor.ReadStatus(t.dir)
	switch {
	case errors.Is(err, supervisor.ErrNoState):
		return d.replace(ctx, t)
	case err != nil:
		return status, err
	case status.TaskID != t.id:
		return status, fmt.Errorf("state folder belongs to task %s", status.TaskID)
	case status.Phase == supervisor.Exited || status.Supervisor.Alive() && status.Phase == supervisor.Running:
		return status, nil
	}
	return d.replace(ctx, t)
}

// errNothingLeft is said of a task of which neither a workload nor a result is left.
var errNothingLeft = errors.New("nothing of it is left on the node")

// lostExit is the end of a task whose result cannot be learned.
func lostExit(cause error) supervisor.Exit {
	return supervisor.Exit{Code: 137, Signal: int(syscall.SIGKILL), Err: cause.Error()}
}

// replace settles a task whose supervisor is gone: the workload is taken over by a new one, or its end is noted.
func (d *Driver) replace(ctx context.Context, t *task) (supervisor.Status, error) {
	spec, exit, err := t.runtime.orphaned(ctx, t)
	if errors.Is(err, errNothingLeft) {
		status, settleErr := supervisor.Settle(t.dir, lostExit(err))
		if errors.Is(settleErr, supervisor.ErrNoState) {
			return supervisor.Status{}, err
		}
		return status, settleErr
	}
	if err != nil {
		return supervisor.Status{}, err
	}
	if spec != nil {
		spec.TaskID, spec.Stdout, spec.Stderr, spec.Resume = t.id, t.cfg.GetStdoutPath(), t.cfg.GetStderrPath(), true
		d.log.Warn("the task's supervisor is gone, a new one takes over", "task_id", t.id)
		return d.launcher.Launch(ctx, t.dir, *spec)
	}
	status, err := supervisor.Settle(t.dir, *exit)
	if errors.Is(err, supervisor.ErrNoState) {
		// The folder is gone as well: the end is known here only, until the task is destroyed.
		return supervisor.Status{Version: 1, TaskID: t.id, Phase: supervisor.Exited, StartedAt: t.record.StartedAt, EndedAt: time.Now().UTC(), Exit: exit}, nil
	}
	return status, err
}

// retryWatch is how long the driver waits before it asks again about a task whose state it could not learn.
const retryWatch = time.Second

// watch follows a task until it has ended.
func (d *Driver) watch(t *task) {
	defer t.releaseLogs()
	for {
		status, err := supervisor.Watch(d.done, t.dir)
		if d.done.Err() != nil {
			return
		}
		if s := t.supervised(); errors.Is(err, supervisor.ErrNoState) && s.Phase == supervisor.Exited {
			status, err = s, nil
		}
		if err != nil {
			if status, err = d.replaceUnlessDestroyed(t); errors.Is(err, errDestroyed) {
				return
			}
		}
		switch {
		case errors.Is(err, errNothingLeft):
			exit := lostExit(err)
			t.finish(supervisor.Status{TaskID: t.id, Phase: supervisor.Exited, StartedAt: t.record.StartedAt, EndedAt: time.Now().UTC(), Exit: &exit})
			return
		case err != nil:
			d.log.Error("task state cannot be learned", "task_id", t.id, "error", err)
			timer := time.NewTimer(retryWatch)
			select {
			case <-d.done.Done():
				timer.Stop()
				return
			case <-t.ended: // destroyed meanwhile
				timer.Stop()
				return
			case <-timer.C:
			}
		case status.Phase == supervisor.Exited:
			t.finish(status)
			return
		default:
			t.setStatus(status)
		}
	}
}

var errDestroyed = errors.New("the task was destroyed")

// replaceUnlessDestroyed keeps a destroyed task from being taken over.
func (d *Driver) replaceUnlessDestroyed(t *task) (supervisor.Status, error) {
	t.life.Lock()
	defer t.life.Unlock()
	if t.destroyed {
		return supervisor.Status{}, errDestroyed
	}
	return d.replace(d.done, t)
}

// Destroy forgets a task and removes everything it has on the node. Without force a running task is refused.
func (d *Driver) Destroy(ctx context.Context, id string, force bool) error {
	if err := d.started(ctx, id); err != nil { // whoever asked for it may be gone, and never hear that it runs
		return err
	}
	s, all := d.current()
	t, err := d.get(id)
	if err != nil {
		// Nomad also destroys what it could not recover: whatever is left of it goes.
		clean := func(ctx context.Context, id string, r *record) error {
			var errs []error
			for _, run := range all {
				errs = append(errs, run.clean(ctx, id, r))
			}
			return errors.Join(errs...)
		}
		return d.remove(ctx, id, supervisor.Dir(s.tasksDir(), id), clean, &record{})
	}
	if !t.hasEnded() {
		if !force {
			return errors.New("the task still runs: stop it first, or destroy it with force")
		}
		if err := t.runtime.kill(ctx, t); err != nil && !t.hasEnded() {
			d.log.Warn("task not killed before it is destroyed", "task_id", id, "error", err)
		}
	}
	t.life.Lock()
	defer t.life.Unlock()
	t.destroyed = true
	if err := d.remove(ctx, id, t.dir, t.runtime.clean, &t.record); err != nil {
		t.destroyFailed.Store(true)
		if errors.Is(err, errSharesStay) {
			d.events.emit(t.cfg, "The task's share is not given back yet, it is tried again: "+err.Error(), nil)
		}
		return fmt.Errorf("destroy task: %w", err)
	}
	d.mu.Lock()
	delete(d.tasks, id)
	d.mu.Unlock()
	t.finish(supervisor.Status{TaskID: id, Phase: supervisor.Exited, EndedAt: time.Now().UTC(), Exit: &supervisor.Exit{Code: 137, Signal: 9}})
	d.log.Info("task destroyed", "task_id", id)
	return nil
}
