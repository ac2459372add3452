package driver

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/supervisor"
)

// leased are the tasks that have a lease.
func (r *rig) leased() map[string]bool {
	r.t.Helper()
	all, err := grant.Leases(filepath.Join(r.state, "leases"))
	if err != nil {
		r.t.Fatal(err)
	}
	out := map[string]bool{}
	for _, l := range all {
		out[l.TaskID] = true
	}
	return out
}

// A driver dies during a start, and another during a destroy, of which Nomad speaks no more: their cards are free again with
// the next look. Leases of tasks that run stay, brought back or not, and those of a driver that goes on beside this one.
func TestLeases_OfTheDead(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	running := r.job(shell("exec sleep 1000"), withSlices(t, 20))
	r.start(running)
	destroyed := r.job(shell("exec sleep 1000"), func(c *driverpb.TaskConfig) { c.DeviceEnv = reserve(t, slicesOf(accel.NVIDIA, "GPU-2", 1, 20)) })
	r.start(destroyed)
	if err := r.Stop(r.ctx, destroyed.cfg.Id, 0, ""); err != nil {
		t.Fatal(err)
	}
	gone, beside := supervisor.Proc{PID: os.Getpid(), Start: 1, Boot: "another"}, self()
	for id, maker := range map[string]string{"started by the dead": makerOf(gone), "started beside": makerOf(beside), "of an older driver": ""} {
		lease := grant.Lease{TaskID: id, Cards: []string{"GPU-9"}, Since: time.Now(), Maker: maker}
		if err := grant.WriteLease(filepath.Join(r.state, "leases"), lease); err != nil {
			t.Fatal(err)
		}
	}
	r.restart()
	r.maker = "another process of the driver"
	look := func(when string, want map[string]bool) {
		t.Helper()
		if err := r.dropDeadLeases(r.ctx); err != nil {
			t.Fatal(err)
		}
		got := map[string]bool{}
		for id := range r.leased() {
			switch id {
			case running.cfg.Id:
				id = "running"
			case destroyed.cfg.Id:
				id = "destroyed"
			}
			got[id] = true
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	look("the share is not given back yet", map[string]bool{"running": true, "destroyed": true, "started beside": true, "of an older driver": true})
	// The two leases were written by this process of the test, which lives: let them be those of a dead one.
	for _, id := range []string{running.cfg.Id, destroyed.cfg.Id} {
		lease := grant.Lease{TaskID: id, Cards: []string{"GPU-9"}, Since: time.Now(), Maker: makerOf(gone)}
		if err := grant.WriteLease(filepath.Join(r.state, "leases"), lease); err != nil {
			t.Fatal(err)
		}
	}
	r.reconcile()
	if diff := cmp.Diff(map[string]share.State{running.cfg.Id: share.Confirmed}, r.entries()); diff != "" {
		t.Errorf("ledger (-want +got):\n%s", diff)
	}
	look("the share is given back", map[string]bool{"running": true, "started beside": true, "of an older driver": true})
}
