package driver

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/task-driver/docker/dockertest"
)

// machine is the life of one task under any order of calls, deaths of driver and supervisor, and restarts of the
// daemon. model says what must hold.
type machine struct {
	r      *rig
	fake   *dockertest.Engine
	cfg    *driverpb.TaskConfig
	handle *driverpb.TaskHandle // what Nomad has stored; nil before a start and after a destroy
	known  bool                 // to the present driver process
	ended  bool                 // must have, for sure
	killed bool                 // the supervisor of a process was killed: the result is an error
}

func (m *machine) id() string { return m.cfg.Id }

func TestTaskLife_AnyOrder(t *testing.T) {
	for _, kind := range []string{runtimeProcess, runtimeDocker} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(rt *rapid.T) {
				m := newMachine(t, kind)
				rt.Repeat(map[string]func(*rapid.T){
					"start": m.start, "stop": m.stop, "kill": m.stopAtOnce, "destroy": m.destroy, "restart driver": m.restartDriver,
					"kill supervisor": m.killSupervisor, "wait when ended": m.wait,
					"reconcile": m.reconcile, "wipe ledger": m.wipe, "": m.check,
				})
				m.finish(rt)
			})
		})
	}
}

func newMachine(t *testing.T, kind string) *machine {
	m := &machine{}
	config := shell("exec sleep 1000")
	if kind == runtimeDocker {
		m.r, m.fake = dockerRig(t, nil)
		config = app("sleep")
	} else {
		m.r = newRig(t, nil)
	}
	m.cfg = m.r.taskConfig(config, func(c *driverpb.TaskConfig) { c.DeviceEnv = reserve(t, slicesOf(accel.NVIDIA, "GPU-1", 0, 20)) })
	m.cfg.StdoutPath, m.cfg.StderrPath = os.DevNull, os.DevNull
	return m
}

func (m *machine) start(t *rapid.T) {
	if m.handle != nil && !m.known {
		t.Skip("Nomad recovers a task it has a handle of")
	}
	h, _, err := m.r.Start(m.r.ctx, m.cfg)
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	if m.handle == nil {
		m.ended, m.killed = false, false
	}
	m.handle, m.known = h, true
}

func (m *machine) stop(t *rapid.T) {
	err := m.r.Stop(m.r.ctx, m.id(), time.Minute, "")
	m.expectKnown(t, "stop", err)
	m.ended = m.ended || m.known
}

func (m *machine) stopAtOnce(t *rapid.T) {
	err := m.r.Stop(m.r.ctx, m.id(), 0, "")
	m.expectKnown(t, "stop at once", err)
	m.ended = m.ended || m.known
}

func (m *machine) destroy(t *rapid.T) {
	if err := m.r.Destroy(m.r.ctx, m.id(), true); err != nil {
		t.Fatalf("destroy: %v", err)
	}
	m.handle, m.known = nil, false
}

func (m *machine) restartDriver(t *rapid.T) {
	m.r.restart()
	m.known = false
	if rapid.Bool().Draw(t, "reconcile first") {
		m.reconcile(t)
	}
	if m.handle == nil {
		return
	}
	if err := m.r.Recover(m.r.ctx, m.handle); err != nil {
		t.Fatalf("recover: %v", err)
	}
	m.known = true
}

func (m *machine) reconcile(t *rapid.T) {
	if err := m.r.shares().Reconcile(m.r.ctx, m.r.liveShares); err != nil {
		t.Fatalf("reconcile: %v", err)
	}
}

// wipe loses the ledger of shares; what the driver knows of its tasks brings it back.
func (m *machine) wipe(t *rapid.T) {
	if err := os.RemoveAll(filepath.Join(m.r.state, "shares")); err != nil {
		t.Fatal(err)
	}
}

func (m *machine) killSupervisor(t *rapid.T) {
	if !m.known {
		t.Skip("there is none")
	}
	tk, err := m.r.get(m.id())
	if err != nil {
		t.Fatal(err)
	}
	before := tk.supervised()
	if err := before.Supervisor.Signal(9); err != nil {
		if !errors.Is(err, os.ErrProcessDone) {
			t.Fatal(err)
		}
		return // it had written its result
	}
	if m.fake == nil && !m.ended {
		m.ended, m.killed = true, true
	}
	if m.fake != nil && !m.ended {
		eventually(m.r.t, func() bool { now := tk.supervised(); return now.Supervisor != before.Supervisor || tk.hasEnded() }, "no new supervisor")
	}
}

func (m *machine) wait(t *rapid.T) {
	if !m.known || !m.ended {
		t.Skip("it would not return")
	}
	exit, err := m.r.Wait(m.r.ctx, m.id())
	if m.r.ctx.Err() != nil {
		t.Fatal("an ended task does not say so")
	}
	if exit == nil || exit.ExitCode == 0 && exit.Signal == 0 && err == nil {
		t.Fatalf("wait = %v, %v: a task that was ended has ended well", exit, err)
	}
	if m.killed && err == nil {
		t.Fatalf("wait = %v: the lost result is not reported", exit)
	}
}

func (m *machine) expectKnown(t *rapid.T, what string, err error) {
	if m.known && err != nil || !m.known && !errors.Is(err, nomadplugin.ErrTaskNotFound) {
		t.Fatalf("%s of a task known=%v: %v", what, m.known, err)
	}
}

// check is what holds between any two steps.
func (m *machine) check(t *rapid.T) {
	_, _, err := m.r.Inspect(m.r.ctx, m.id())
	m.expectKnown(t, "inspect", err)
	leases, err := grant.Leases(filepath.Join(m.r.state, "leases"))
	if err != nil || (len(leases) == 1) != (m.handle != nil) || len(leases) > 1 {
		t.Fatalf("task there=%v, leases %v, %v", m.handle != nil, leases, err)
	}
	if parts := m.r.parts(); m.handle == nil && len(parts) > 0 || m.handle != nil && !m.ended && len(parts) != 1 {
		t.Fatalf("task there=%v, ended=%v, parts of the card %v", m.handle != nil, m.ended, parts)
	}
	if m.fake != nil && m.handle == nil && m.fake.Containers() != 0 {
		t.Fatalf("%d containers are left of a destroyed task", m.fake.Containers())
	}
	if m.fake != nil && m.fake.Containers() > 1 {
		t.Fatalf("%d containers of one task", m.fake.Containers())
	}
}

// finish destroys the task and looks for leftovers.
func (m *machine) finish(t *rapid.T) {
	var last *task
	if m.known {
		last = m.r.task(m.id())
	}
	m.destroy(t)
	m.check(t)
	if last != nil && (last.supervised().Supervisor.Alive() || len(last.supervised().Task.Session()) != 0) {
		t.Fatal("something still runs")
	}
	if left, err := os.ReadDir(filepath.Join(m.r.state, "tasks")); err != nil && !errors.Is(err, os.ErrNotExist) || len(left) != 0 {
		t.Fatalf("left in the state folder: %v, %v", left, err)
	}
	m.r.Close()
	if m.fake != nil {
		m.fake.Down()
	}
}
