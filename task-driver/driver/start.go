package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/supervisor"
)

// handleVersion is the version of the handles this driver writes.
const handleVersion = 1

// Start checks the task, takes a lease on its cards and starts it under a supervisor. What was begun is undone when a
// step fails. A second Start of one task, which follows a driver that was killed in the first, begins anew.
func (d *Driver) Start(ctx context.Context, cfg *driverpb.TaskConfig) (*driverpb.TaskHandle, *driverpb.NetworkOverride, error) {
	p, run, err := d.plan(cfg)
	if err != nil {
		return nil, nil, err
	}
	id := cfg.GetId()
	if known, err := d.get(id); err == nil {
		handle, err := known.handle()
		return handle, nil, err
	}
	if !d.claim(id) {
		return nil, nil, fmt.Errorf("task %s is being started already", id)
	}
	defer d.release(id)
	if err := d.endFormer(ctx, cfg); err != nil {
		return nil, nil, nomadplugin.Recoverable(err)
	}

	r := newRecord(p)
	status, err := d.begin(ctx, p, run, &r)
	if err != nil {
		return nil, nil, recoverable(err)
	}
	r.StartedAt = status.StartedAt
	t := d.adopt(cfg, p.tc, p.env, r, run, status)
	handle, err := t.handle()
	if err != nil {
		return nil, nil, err
	}
	d.log.Info("task started", "task_id", id, "runtime", r.Runtime, "cards", len(r.Cards))
	return handle, run.network(ctx, p, &r), nil
}

// plan checks everything that can be checked before anything is touched.
func (d *Driver) plan(cfg *driverpb.TaskConfig) (*plan, runtime, error) {
	tc, err := readTaskConfig(cfg.GetMsgpackDriverConfig())
	if err != nil {
		return nil, nil, err
	}
	s, _ := d.current()
	run, err := d.runtimeFor(tc.Runtime)
	if err != nil {
		return nil, nil, err
	}
	sh, err := admit(cfg, tc, s.key, s.RequireGrant)
	if err != nil {
		return nil, nil, err
	}
	for i := range sh.asks {
		sh.asks[i].Container = tc.Runtime == runtimeDocker
	}
	p := &plan{cfg: cfg, tc: tc, share: sh}
	if err := errors.Join(p.placeModel(s), p.checkPorts(), s.checkGang(p)); err != nil {
		return nil, nil, err
	}
	p.env = taskEnv(cfg, p.tc, sh, share.Combined{})
	if err := run.check(p); err != nil {
		return nil, nil, err
	}
	return p, run, nil
}

// begin does the steps of a start, and undoes them all when one fails.
func (d *Driver) begin(ctx context.Context, p *plan, run runtime, r *record) (supervisor.Status, error) {
	s, _ := d.current()
	id := p.cfg.GetId()
	dir := supervisor.Dir(s.tasksDir(), id)
	if err := errors.Join(supervisor.Remove(ctx, dir), run.clean(ctx, id, r)); err != nil {
		return supervisor.Status{}, fmt.Errorf("clear what an earlier start left: %w", err)
	}
	undo := func(cause error) error {
		// The start may have failed because its context ended; clearing up must not.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		return errors.Join(cause, d.remove(ctx, id, dir, run.clean, r))
	}
	if len(r.Cards) > 0 {
		lease := grant.Lease{TaskID: id, AllocID: p.cfg.GetAllocId(), Cards: r.Cards, Forms: r.Forms, Since: time.Now().UTC(), Maker: d.maker}
		if err := errors.Join(grant.WriteLease(s.leasesDir(), lease), grant.TakeReserved(s.leasesDir(), p.cfg.GetDeviceEnv())); err != nil {
			return supervisor.Status{}, undo(err)
		}
	}
	event := func(text string) { d.events.emit(p.cfg, text, nil) }
	if err := d.fetchModel(ctx, p, event); err != nil { // before the shares: it may take an hour
		return supervisor.Status{}, undo(err)
	}
	if err := d.makeShares(ctx, p, r, event); err != nil {
		return supervisor.Status{}, undo(err)
	}
	if err := d.meet(ctx, p, run, r, event); err != nil {
		return supervisor.Status{}, undo(err)
	}
	spec, err := run.prepare(ctx, p, r, event)
	if err != nil {
		return supervisor.Status{}, undo(err)
	}
	spec.TaskID, spec.Stdout, spec.Stderr = id, p.cfg.GetStdoutPath(), p.cfg.GetStderrPath()
	status, err := d.launcher.Launch(ctx, dir, spec)
	if containers, ok := run.(*dockerRuntime); ok && err == nil {
		err = containers.checkShares(ctx, p, r)
	}
	if err == nil && ctx.Err() != nil {
		err = fmt.Errorf("the start was given up, nobody would hear of the task: %w", ctx.Err())
	}
	if err != nil {
		return supervisor.Status{}, undo(err)
	}
	return status, nil
}

// makeShares makes the task's shares, and takes what they need into the plan and the record.
func (d *Driver) makeShares(ctx context.Context, p *plan, r *record, event func(string)) error {
	made, err := d.shares().Prepare(ctx, p.share.asks, event)
	if err != nil {
		return err
	}
	r.Shares = heldOf(made)
	if err := p.use(made); err != nil {
		return err
	}
	r.QoS, r.Setup = p.share.qos, &p.setup
	if held := describeShares(r.Shares); held != "" {
		event("Shares ready: " + held)
	}
	return nil
}

// remove removes all that a task has on the node. The lease goes last: until then its cards are not free.
func (d *Driver) remove(ctx context.Context, id, dir string, clean func(context.Context, string, *record) error, r *record) error {
	s, _ := d.current()
	if err := errors.Join(supervisor.Remove(ctx, dir), clean(ctx, id, r)); err != nil {
		return err // something of it may still use its share
	}
	if err := d.giveBack(ctx, id, r.Shares...); err != nil {
		return err
	}
	return errors.Join(s.models.Release(id), grant.RemoveLease(s.leasesDir(), id))
}

// recoverable marks what may pass by itself, so that the task's restart policy applies.
func recoverable(err error) error {
	var temporary interface{ Temporary() bool }
	var said *supervisor.StartError
	if errors.As(err, &temporary) && temporary.Temporary() || errors.As(err, &said) && said.Again {
		return nomadplugin.Recoverable(err)
	}
	return err
}

func (d *Driver) claim(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.starting[id] != nil {
		return false
	}
	d.starting[id] = make(chan struct{})
	return true
}

func (d *Driver) release(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.starting[id])
	delete(d.starting, id)
}

// started waits until a Start of the task that is under way has ended.
func (d *Driver) started(ctx context.Context, id string) error {
	d.mu.Lock()
	under := d.starting[id]
	d.mu.Unlock()
	if under == nil {
		return nil
	}
	select {
	case <-under:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the start of task %s: %w", id, ctx.Err())
	}
}

// adopt makes a started task known and watches it.
func (d *Driver) adopt(cfg *driverpb.TaskConfig, tc TaskConfig, env map[string]string, r record, run runtime, status supervisor.Status) *task {
	s, _ := d.current()
	t := &task{
		id: cfg.GetId(), cfg: cfg, config: tc, env: env, record: r, runtime: run,
		dir: supervisor.Dir(s.tasksDir(), cfg.GetId()), ended: make(chan struct{}), last: status,
		endProbes: func() {},
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if known, ok := d.tasks[t.id]; ok {
		return known
	}
	d.tasks[t.id] = t
	t.holdLogs()
	go d.watch(t)
	if status.Phase != supervisor.Exited {
		d.startProbes(t)
	}
	return t
}

// handle is what Nomad stores of the task and brings back to Recover.
func (t *task) handle() (*driverpb.TaskHandle, error) {
	state, err := json.Marshal(t.record)
	if err != nil {
		return nil, fmt.Errorf("encode task state: %w", err)
	}
	return &driverpb.TaskHandle{Version: handleVersion, Config: t.cfg, State: driverpb.TaskState_RUNNING, DriverState: state}, nil
}
