package driver

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/task-driver/docker"
	"github.com/heteroflow/heteroflow/task-driver/docker/dockertest"
)

// Containers that carry a task's label and not this driver's are somebody else's: an image hands its labels on to every
// container that is made of it.
func TestDocker_CleaningLeavesForeignContainers(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, nil)
	j := r.job(app("sleep"))
	old := time.Now().Add(-time.Hour)
	fake.Seed("unlabelled", map[string]string{docker.LabelTask: j.cfg.Id}, old)
	fake.Seed("another-driver", map[string]string{docker.LabelTask: j.cfg.Id, docker.LabelState: "/other"}, old)
	fake.Seed("ours", map[string]string{docker.LabelTask: j.cfg.Id, docker.LabelState: r.state}, old)
	r.start(j)
	if !fake.Asked("DELETE /containers/ours") {
		t.Error("an earlier start's container stays")
	}
	if err := r.Destroy(r.ctx, j.cfg.Id, true); err != nil {
		t.Fatal(err)
	}
	if fake.Containers() != 2 || fake.Asked("DELETE /containers/(unlabelled|another)") {
		t.Errorf("%d containers left; requests %v", fake.Containers(), fake.Requests())
	}
}

// A container whose label names an earlier state folder is the task's all the same: its handle has its id.
func TestDocker_StateFolderMoved(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, nil)
	j := r.job(app("sleep"))
	h := r.start(j)
	r.state = t.TempDir()
	r.config["state_dir"] = r.state
	r.restart()
	if err := r.Recover(r.ctx, h); err != nil {
		t.Fatal(err)
	}
	if err := r.Destroy(r.ctx, j.cfg.Id, true); err != nil {
		t.Fatal(err)
	}
	if fake.Containers() != 0 {
		t.Errorf("%d containers left", fake.Containers())
	}
}

// A start that fails and cannot be undone at once is undone later: Nomad asks for another task, never again for this one.
func TestStart_WhatCouldNotBeUndoneIsUndoneLater(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, nil)
	r.config["orphan_after"] = "100ms"
	r.restart()
	fake.Break(dockertest.Fault{Match: "POST /containers/.*/start", Status: 500, Text: "it is broken"})
	fake.Break(dockertest.Fault{Match: "DELETE /containers/", Status: 500, Text: "it is broken"})
	go r.sweep(r.ctx)
	j := r.job(app("sleep"), func(c *driverpb.TaskConfig) { c.DeviceEnv = reserve(t, whole(accel.NVIDIA, "GPU-1")) })
	eventually(t, func() bool { return fake.Asked("GET /containers/json") }, "the sweep never looked")
	if _, _, err := r.Start(r.ctx, j.cfg); err == nil {
		t.Fatal("it starts")
	}
	fake.Repair()
	eventually(t, func() bool {
		leases, err := grant.Leases(filepath.Join(r.state, "leases"))
		return err == nil && len(leases) == 0 && fake.Containers() == 0
	}, "the card stays leased, or the container stays")
}

// A lease that was written before its start failed goes with it.
func TestStart_LeaseGoesWithAReservationThatCannotBeTaken(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	env := reserve(t, whole(accel.NVIDIA, "GPU-1"))
	for name := range env { // a folder in the place of the mark cannot be removed as a file can
		if err := os.MkdirAll(filepath.Join(r.state, "leases", name+".reserved.json", "x"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	j := r.job(shell("true"), func(c *driverpb.TaskConfig) { c.DeviceEnv = env })
	if _, _, err := r.Start(r.ctx, j.cfg); err == nil {
		t.Fatal("it starts")
	}
	if leases, err := grant.Leases(filepath.Join(r.state, "leases")); err != nil || len(leases) != 0 {
		t.Errorf("leases = %v, %v", leases, err)
	}
}
