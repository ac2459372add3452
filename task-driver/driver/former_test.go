package driver

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/supervisor"
)

// Nomad's client was killed when the task ran and its handle was not noted: the task is started anew under another id. The
// first must not go on beside it; tasks of other allocations, and other tasks of this one, do.
func TestStart_EndsAnEarlierStartThatNomadDoesNotKnow(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	as := func(alloc, task, start string) func(*driverpb.TaskConfig) {
		return func(c *driverpb.TaskConfig) {
			c.AllocId, c.Name, c.Id = alloc, task, alloc+"/"+task+"/"+start
			if err := os.MkdirAll(filepath.Join(c.AllocDir, task), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	sleep := shell("exec sleep 1000")
	first := r.job(sleep, withSlices(t, 20), as("a1", "web", "1111"))
	r.start(first)
	for _, other := range []func(*driverpb.TaskConfig){as("a1", "web-2", "3333"), as("a2", "web", "4444")} {
		r.start(r.job(sleep, other))
	}
	old, err := supervisor.ReadStatus(supervisor.Dir(r.settings.tasksDir(), first.cfg.Id))
	if err != nil {
		t.Fatal(err)
	}
	r.restart()
	second := r.job(sleep, withSlices(t, 20), as("a1", "web", "2222"))
	r.start(second)
	if old.Task.Alive() {
		t.Error("two processes run of one task")
	}
	if diff := cmp.Diff(map[string]share.State{second.cfg.Id: share.Confirmed}, r.entries()); diff != "" {
		t.Errorf("ledger (-want +got):\n%s", diff)
	}
	if got := slices.Collect(maps.Keys(r.leased())); !slices.Equal(got, []string{second.cfg.Id}) {
		t.Errorf("leases of %v", got)
	}
	for _, id := range []string{"a1/web-2/3333", "a2/web/4444"} {
		st, err := supervisor.ReadStatus(supervisor.Dir(r.settings.tasksDir(), id))
		if err != nil || !st.Task.Alive() {
			t.Errorf("%s was ended too: %v", id, err)
		}
		if err := r.Destroy(r.ctx, id, true); err != nil {
			t.Error(err)
		}
	}
}

// leaves is the context of a caller who goes away at a moment.
type leaves struct {
	context.Context
	gone func() bool
}

func (l leaves) Err() error {
	if l.gone() {
		return context.Canceled
	}
	return l.Context.Err()
}

func TestStart_NobodyWouldHearOfTheTask(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	j := r.job(shell("exec sleep 1000"), withSlices(t, 20))
	dir := supervisor.Dir(r.settings.tasksDir(), j.cfg.Id)
	var runs supervisor.Status
	ctx := leaves{Context: r.ctx, gone: func() bool {
		if st, err := supervisor.ReadStatus(dir); err == nil && st.Task.PID != 0 {
			runs = st
		}
		return runs.Task.PID != 0
	}}
	if _, _, err := r.Start(ctx, j.cfg); err == nil {
		t.Fatal("it starts")
	}
	if runs.Task.PID == 0 || runs.Task.Alive() {
		t.Errorf("it runs, and nobody knows: %+v", runs.Task)
	}
	if len(r.parts()) > 0 || len(r.entries()) > 0 || len(r.leased()) > 0 {
		t.Errorf("left: %v, %v, %v", r.parts(), r.entries(), r.leased())
	}
}
