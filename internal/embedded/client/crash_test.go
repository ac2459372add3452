package client

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/host"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/nomadplugintest/sample"
)

func TestDevicePlugin_CrashIsRelaunched(t *testing.T) {
	t.Parallel()
	r := start(t, testConfig(t))
	pid := devicePid(t, r, 0)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	devicePid(t, r, pid)
	if len(r.up.lastNode().NodeResources.Devices) != 1 {
		t.Error("devices are gone after a crash")
	}
	r.SetAllocs([]*api.Allocation{newAlloc("echo $SAMPLE_DEVICES", batch, withDevice("sample-0"))})
	r.status(t, "complete")
}

// devicePid waits for a device plugin process other than the given one.
func devicePid(t *testing.T, r *rig, not int) int {
	t.Helper()
	pid := 0
	until(t, "a device plugin", func() bool {
		d := r.devices[0]
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.running != nil {
			pid = d.running.ReattachInfo().Pid
		}
		return pid != 0 && pid != not
	})
	return pid
}

func TestDevicePlugin_EndOfStreamRemovesItsDevices(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	sample.Install(t, cfg.PluginDir, "ending", "ending-device")
	cfg.Plugins = []PluginConfig{{Name: "ending-device"}}
	r := start(t, cfg)
	until(t, "the removal", func() bool { return len(r.up.lastNode().NodeResources.Devices) == 0 })
}

func TestDriver_CrashKeepsTheTask(t *testing.T) {
	t.Parallel()
	r := start(t, testConfig(t))
	alloc := newAlloc("echo started; " + forever)
	r.SetAllocs([]*api.Allocation{alloc})
	r.status(t, "running")
	until(t, "the start", func() bool { return r.log(t, "stdout") == "started\n" })
	d := r.drivers["sample-driver"]
	old, err := d.instance(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(old.plugin.ReattachInfo().Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := d.instance(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	until(t, "the task in the new driver", func() bool {
		ar, err := r.runner(allocID)
		if err != nil {
			return false
		}
		_, inst := ar.tasks[0].current()
		return inst != old
	})
	r.SetAllocs([]*api.Allocation{stopped(alloc)})
	u := r.status(t, "complete")
	if u.TaskStates["web"].Restarts != 0 || r.log(t, "stdout") != "started\n" {
		t.Errorf("the task was started again: %s", eventTypes(u.TaskStates["web"]))
	}
}

// The driver ends again before it has taken the task over: the one after it is asked, and the task is not started anew.
func TestDriver_CrashesInARowKeepTheTask(t *testing.T) {
	t.Parallel()
	r := start(t, testConfig(t))
	alloc := newAlloc("echo started; " + forever)
	r.SetAllocs([]*api.Allocation{alloc})
	r.status(t, "running")
	until(t, "the start", func() bool { return r.log(t, "stdout") == "started\n" })
	d := r.drivers["sample-driver"]
	var inst *driverInstance
	for range 8 {
		var err error
		if inst, err = d.instance(t.Context(), inst); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(inst.plugin.ReattachInfo().Pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	last, err := d.instance(t.Context(), inst)
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the task in the last driver", func() bool {
		ar, err := r.runner(allocID)
		if err != nil {
			return false
		}
		_, inst := ar.tasks[0].current()
		return inst == last
	})
	r.SetAllocs([]*api.Allocation{stopped(alloc)})
	u := r.status(t, "complete")
	if u.TaskStates["web"].Restarts != 0 || r.log(t, "stdout") != "started\n" {
		t.Errorf("the task was started again: %s", eventTypes(u.TaskStates["web"]))
	}
}

// engine is a client in a process of its own, which can be killed.
type engine struct {
	cmd     *exec.Cmd
	updates chan AllocUpdate
}

func startEngine(t *testing.T, cfg Config, allocs ...*api.Allocation) *engine {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cfg.Logger, cfg.Up = nil, nil
	path := filepath.Join(t.TempDir(), "engine.json")
	if err := writeJSON(path, map[string]any{"Config": cfg, "Allocs": allocs}); err != nil {
		t.Fatal(err)
	}
	e := &engine{cmd: exec.Command(self), updates: make(chan AllocUpdate, 1000)}
	e.cmd.Env = append(os.Environ(), "TEST_ENGINE="+path)
	e.cmd.Stderr = os.Stderr
	out, err := e.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := e.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		for sc := bufio.NewScanner(out); sc.Scan(); {
			var u AllocUpdate
			if json.Unmarshal(sc.Bytes(), &u) == nil {
				e.updates <- u
			}
		}
	}()
	return e
}

func (e *engine) kill(t *testing.T) {
	t.Helper()
	if err := e.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := e.cmd.Wait(); err == nil {
		t.Error("killed engine ended well")
	}
}

func (e *engine) await(t *testing.T, status string) AllocUpdate {
	t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		select {
		case u := <-e.updates:
			if u.ClientStatus == status {
				return u
			}
		case <-timeout:
			t.Fatalf("engine did not tell %s", status)
		}
	}
}

func TestEngineKilled_TaskIsTakenOver(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	alloc := newAlloc(`i=0; echo "on $SAMPLE_DEVICES"; while :; do i=$((i+1)); echo tick $i; sleep 0.02; done`, withDevice("sample-1"))
	first := startEngine(t, cfg, alloc)
	first.await(t, "running")
	first.kill(t)
	var before map[string]host.ReattachInfo
	if _, err := readJSON(filepath.Join(cfg.DataDir, "plugins.json"), &before); err != nil {
		t.Fatal(err)
	}

	r := start(t, cfg)
	u := r.status(t, "running")
	if u.TaskStates["web"].Restarts != 0 {
		t.Errorf("the task was restarted: %s", eventTypes(u.TaskStates["web"]))
	}
	inst, err := r.drivers["sample-driver"].instance(t.Context(), nil)
	if err != nil || inst.plugin.ReattachInfo() != before["sample-driver"] {
		t.Errorf("driver %+v, want the one from before, %+v", inst.plugin.ReattachInfo(), before["sample-driver"])
	}
	if pid := devicePid(t, r, 0); pid == before["sample-device"].Pid {
		t.Error("the old device plugin was kept")
	}
	r.SetAllocs([]*api.Allocation{stopped(alloc)})
	r.status(t, "complete")
	lines := strings.Split(strings.TrimSpace(r.log(t, "stdout")), "\n")
	if lines[0] != "on sample-1" {
		t.Errorf("first line %q", lines[0])
	}
	for i, line := range lines[1:] {
		if want := fmt.Sprintf("tick %d", i+1); line != want {
			t.Fatalf("line %d is %q, want %q: the log has a gap", i+1, line, want)
		}
	}
}

// The engine dies when the driver has started the task and before its answer is kept. The next engine starts the task
// under another id, and the first copy must not stay.
func TestEngineKilled_WhileATaskIsStarted(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	dir := t.TempDir()
	pids, answer := filepath.Join(dir, "pids"), filepath.Join(dir, "answer")
	alloc := newAlloc("echo $$ >> "+pids+"; "+forever, func(_ *api.Allocation, _ *api.TaskGroup, task *api.Task) {
		task.Env = map[string]string{sample.HoldStart: answer}
	})
	started := func() []int {
		b, err := os.ReadFile(pids)
		if err != nil {
			return nil
		}
		var out []int
		for _, line := range strings.Fields(string(b)) {
			pid, err := strconv.Atoi(line)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, pid)
		}
		return out
	}
	first := startEngine(t, cfg, alloc)
	until(t, "the first copy", func() bool { return len(started()) == 1 })
	first.kill(t)
	if err := os.WriteFile(answer, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := start(t, cfg)
	r.SetAllocs([]*api.Allocation{alloc})
	until(t, "the second copy", func() bool { return len(started()) == 2 })
	r.status(t, "running")
	until(t, "the end of the first copy", func() bool { return syscall.Kill(started()[0], 0) != nil })
	if n := len(started()); n != 2 || syscall.Kill(started()[1], 0) != nil {
		t.Errorf("%d copies were started, the second is to run", n)
	}
}

// The engine is ended while a task is being started: it is not left running.
func TestStopOnExit_WhileATaskIsStarted(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	dir := t.TempDir()
	file, answer := filepath.Join(dir, "pid"), filepath.Join(dir, "answer")
	r := start(t, cfg)
	r.SetAllocs([]*api.Allocation{newAlloc("echo $$ > "+file+"; "+forever, func(_ *api.Allocation, _ *api.TaskGroup, task *api.Task) {
		task.Env = map[string]string{sample.HoldStart: answer}
	})})
	var pid int
	until(t, "the task", func() bool {
		b, err := os.ReadFile(file)
		if err == nil {
			pid, err = strconv.Atoi(strings.TrimSpace(string(b)))
		}
		return err == nil
	})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.stop()
	}()
	// The runner goes as its context ends, before the driver answers.
	ar, err := r.runner(allocID)
	if err != nil {
		t.Fatal(err)
	}
	<-ar.done.ch
	if err := os.WriteFile(answer, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	<-ended
	if state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && !strings.Contains(string(state), ") Z ") {
		t.Errorf("the task, process %d, still runs", pid)
	}
}

func TestEngineAndDriverKilled_TaskIsRecovered(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	alloc := newAlloc(`echo "on $SAMPLE_DEVICES"; `+forever, withDevice("sample-1"))
	first := startEngine(t, cfg, alloc)
	first.await(t, "running")
	first.kill(t)
	var before map[string]host.ReattachInfo
	if _, err := readJSON(filepath.Join(cfg.DataDir, "plugins.json"), &before); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(before["sample-driver"].Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r := start(t, cfg)
	r.status(t, "running")
	until(t, "the log", func() bool { return r.log(t, "stdout") != "" })
	r.SetAllocs([]*api.Allocation{stopped(alloc)})
	if u := r.status(t, "complete"); u.TaskStates["web"].Restarts != 0 || r.log(t, "stdout") != "on sample-1\n" {
		t.Errorf("the task was started again: %s, log %q", eventTypes(u.TaskStates["web"]), r.log(t, "stdout"))
	}
}

func TestStopOnExit_StartsAgain(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	alloc := newAlloc(`echo "on $SAMPLE_DEVICES"; `+forever, withDevice("sample-1"))
	r := start(t, cfg)
	r.SetAllocs([]*api.Allocation{alloc})
	r.status(t, "running")
	until(t, "the log", func() bool { return r.log(t, "stdout") != "" })
	r.stop()
	r = start(t, cfg)
	r.SetAllocs([]*api.Allocation{alloc})
	until(t, "the second start", func() bool { return strings.Count(r.log(t, "stdout"), "on sample-1") == 2 })
	b, err := os.ReadFile(filepath.Join(filepath.Dir(cfg.DataDir), "reserve.log"))
	if err != nil || string(b) != "sample-1\n" {
		t.Errorf("reserved %q, %v, want once", b, err)
	}
}

// TestCleanEnd lets a context end before anything was given to run.
func TestCleanEnd(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.Up = newUplink()
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Run(ctx); err != nil {
		t.Errorf("run: %v", err)
	}
}
