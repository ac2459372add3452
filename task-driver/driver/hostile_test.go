package driver

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/task-driver/access"
	"github.com/heteroflow/heteroflow/task-driver/docker"
	"github.com/heteroflow/heteroflow/task-driver/docker/dockertest"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/supervisor"
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

// The node's own places are refused by every path that leads to them: links on either side, and the folders around them.
func TestDocker_NodesPlacesByOtherPaths(t *testing.T) {
	t.Parallel()
	disk, err := filepath.EvalSymlinks(t.TempDir()) // where the data are in truth, as on nodes with a second disk
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(disk, link); err != nil {
		t.Fatal(err)
	}
	r, fake := dockerRig(t, map[string]any{"volumes_enabled": true})
	socket := strings.TrimPrefix(fake.Host, "unix://")
	r.config["state_dir"] = filepath.Join(link, "heteroflow")
	r.restart()
	fake.SetRootDir(filepath.Join(link, "docker"))
	fine := t.TempDir()
	for name, c := range map[string]struct {
		source, want string
	}{
		"the state folder's true place":  {filepath.Join(disk, "heteroflow/shares"), "belongs to the node itself"},
		"around it":                      {disk, "belongs to the node itself"},
		"the state folder by its link":   {filepath.Join(link, "heteroflow"), "belongs to the node itself"},
		"another allocation's folder":    {filepath.Join(disk, "nomad/alloc/other/web/secrets"), "belongs to the node itself"},
		"the folder of docker's socket":  {filepath.Dir(socket), "docker { allow_docker_socket = true }"},
		"docker's data":                  {filepath.Join(disk, "docker/volumes"), "belongs to the node itself"},
		"docker's data by their link":    {filepath.Join(link, "docker"), "belongs to the node itself"},
		"what is below no place is fine": {fine, ""},
	} {
		t.Run(name, func(t *testing.T) {
			inNomad := func(cfg *driverpb.TaskConfig) {
				dir := filepath.Join(disk, "nomad/alloc", allocID)
				if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink(cfg.AllocDir, dir); err != nil && !os.IsExist(err) {
					t.Fatal(err)
				}
				cfg.AllocDir = filepath.Join(link, "nomad/alloc", allocID)
			}
			config := with(map[string]any{"volumes": []string{c.source + ":/x"}})
			if c.want == "" {
				made(t, r, fake, config)
				return
			}
			refusedStart(t, r, config, c.want, inNomad)
		})
	}
}

// What a share and a card mount stays theirs: a job that mounts below it would put its own limits in their place, or its own
// library.
func TestContainer_JobMountsNothingIntoAShare(t *testing.T) {
	t.Parallel()
	job := []docker.Mount{
		{Type: "bind", Source: "/a", Target: "/local"},
		{Type: "bind", Source: "/a", Target: "/etc/vdev/vdev0.conf"},
		{Type: "tmpfs", Target: "/etc/../etc/vdev/sub/"},
		{Type: "bind", Source: "/a", Target: "/etc/ld.so.preload"},
		{Type: "bind", Source: "/a", Target: "/etc/vdevices"},
		{Type: "bind", Source: "/a", Target: "/etc"},
		{Type: "bind", Source: "/a", Target: "/opt/driver/lib64"},
	}
	c := docker.Container{Mounts: job}
	applyAccess(&c, access.Access{Mounts: []access.Mount{{Path: "/opt/driver"}}})
	p := &plan{setup: share.Combined{Setup: share.Setup{Mounts: []share.Mount{
		{Source: "/s/preload", Target: "/etc/ld.so.preload", ReadOnly: true},
		{Source: "/s/vdev", Target: "/etc/vdev", ReadOnly: true},
		{Source: "/s/inner", Target: "/opt/driver/tools"},
		{Source: "/s/own", Target: "/etc/vdev/own"},
	}}}}
	p.applyShare(&c)
	var got []string
	for _, m := range c.Mounts {
		got = append(got, m.Source+" "+m.Target)
	}
	want := []string{"/a /local", "/a /etc/vdevices", "/a /etc", "/opt/driver /opt/driver", "/s/preload /etc/ld.so.preload", "/s/vdev /etc/vdev", "/s/inner /opt/driver/tools", "/s/own /etc/vdev/own"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
}

// A name that holds "=" is another variable once it stands in a list, and one that a runtime reads last.
func TestTaskEnv_NoVariableInANamesDisguise(t *testing.T) {
	t.Parallel()
	cfg := &driverpb.TaskConfig{Env: map[string]string{"NVIDIA_VISIBLE_DEVICES=all": "", "NVIDIA_VISIBLE_DEVICES=0,1": "2", "A=\x00": "", "FINE": "a=b"}}
	for _, pair := range envList(taskEnv(cfg, TaskConfig{Runtime: runtimeDocker}, admission{}, share.Combined{})) {
		if name, value, _ := strings.Cut(pair, "="); name == "NVIDIA_VISIBLE_DEVICES" && value != "void" || name == "A" {
			t.Errorf("the task has %q", pair)
		}
	}
}

// NVIDIA's runtime brings more than cards when variables ask: every InfiniBand device, which are the administrator's to
// allow, and the switches between all cards of the node.
func TestTaskEnv_NoOtherDevicesByVariables(t *testing.T) {
	t.Parallel()
	cfg := &driverpb.TaskConfig{Env: map[string]string{"NVIDIA_MOFED": "enabled", "NVIDIA_NVSWITCH": "enabled", "NVIDIA_DRIVER_CAPABILITIES": "all"}}
	env := taskEnv(cfg, TaskConfig{Runtime: runtimeDocker}, admission{}, share.Combined{})
	if env["NVIDIA_MOFED"] != "" || env["NVIDIA_NVSWITCH"] != "" || env["NVIDIA_DRIVER_CAPABILITIES"] != "all" {
		t.Errorf("env = %v", env)
	}
	if got := unset(docker.Image{Env: []string{"NVIDIA_MOFED=enabled"}}, env); len(got) != 1 {
		t.Errorf("of the image's variables stay all but %v", got)
	}
}

// What is told of a task cannot be read: it may run, and keeps its share until somebody destroys it.
func TestShares_OfATaskWhoseStateCannotBeRead(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	j := r.job(shell("exec sleep 1000"), func(c *driverpb.TaskConfig) { c.DeviceEnv = reserve(t, slicesOf(accel.NVIDIA, "GPU-1", 0, 4)) })
	h := r.start(j)
	status := filepath.Join(supervisor.Dir(filepath.Join(r.state, "tasks"), j.cfg.Id), "status.json")
	good, err := os.ReadFile(status)
	if err != nil {
		t.Fatal(err)
	}
	r.restart()
	if err := os.WriteFile(status, []byte(`{"version":7}`), 0o600); err != nil { // by a later driver, which was taken back
		t.Fatal(err)
	}
	if err := r.shares().Reconcile(r.ctx, r.liveShares); err != nil {
		t.Error(err)
	}
	if parts := r.cards.Parts(); len(parts) != 1 {
		t.Errorf("the share of a task that may run: %v", parts)
	}
	if err := os.WriteFile(status, good, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.Recover(r.ctx, h); err != nil {
		t.Fatal(err)
	}
	if err := r.Destroy(r.ctx, j.cfg.Id, true); err != nil {
		t.Fatal(err)
	}
	if parts := r.cards.Parts(); len(parts) != 0 {
		t.Errorf("left: %v", parts)
	}
}

// The clock was set back: what was left before that seems to come from the future, and is as old as it is.
func TestSweep_AfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	future := time.Now().Add(1000 * time.Hour).UTC()
	if err := grant.WriteLease(filepath.Join(r.state, "leases"), grant.Lease{TaskID: "gone/web/1", AllocID: "gone", Cards: []string{"GPU-1"}, Since: future}); err != nil {
		t.Fatal(err)
	}
	r.sweepNow(r.ctx, time.Now().Add(-time.Minute))
	if leases, err := grant.Leases(filepath.Join(r.state, "leases")); err != nil || len(leases) != 0 {
		t.Errorf("leases = %v, %v", leases, err)
	}
}

// A task that has its whole folder can put a link in the place of local, which its next start would follow.
func TestDocker_TaskFoldersAreNoLinks(t *testing.T) {
	t.Parallel()
	r, _ := dockerRig(t, nil)
	for _, folder := range []string{"web/local", "web/secrets", "alloc"} {
		refusedStart(t, r, app("sleep"), "is a link", func(c *driverpb.TaskConfig) {
			path := filepath.Join(c.AllocDir, folder)
			if err := errors.Join(os.Rename(path, path+"-was"), os.Symlink("/", path)); err != nil {
				t.Fatal(err)
			}
		})
	}
	made := filepath.Join(t.TempDir(), "real")
	r.start(r.job(app("sleep"), func(c *driverpb.TaskConfig) { // Nomad's own folder may lie behind one
		if err := os.Symlink(c.AllocDir, made); err != nil {
			t.Fatal(err)
		}
		c.AllocDir = made
	}))
}

// Another task of the allocation can put a link in the place of a shared folder after it was looked at.
func TestDocker_NothingBelowWhatOtherTasksWrite(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, nil)
	below, all := with(map[string]any{"volumes": []string{"../alloc/data:/data"}}), with(map[string]any{"volumes": []string{"../alloc:/shared", "local/x:/x"}})
	sidecar := func(c *driverpb.TaskConfig) {
		if err := os.MkdirAll(filepath.Join(c.AllocDir, "sidecar/local"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	made(t, r, fake, below, func(c *driverpb.TaskConfig) { c.Id += "0" })
	made(t, r, fake, all, sidecar, func(c *driverpb.TaskConfig) { c.Id += "1" })
	refusedStart(t, r, below, "/alloc/data", sidecar)
}
