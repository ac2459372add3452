package driver

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/task-driver/supervisor"
)

func TestStart_RunsLogsAndExits(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	j := r.job(shell("echo out; echo err >&2; exit 5"))
	h := r.start(j)
	if h.Version < 1 || h.Config == nil || len(h.DriverState) == 0 || len(h.DriverState) > 4096 {
		t.Errorf("handle: version %d, config %v, %d bytes of state", h.Version, h.Config != nil, len(h.DriverState))
	}
	for range 2 { // the answer can be asked for again until the task is destroyed
		if exit := r.wait(j.cfg.Id); exit.ExitCode != 5 || exit.Signal != 0 || exit.OomKilled {
			t.Errorf("exit = %v", exit)
		}
	}
	if out, errOut := <-j.stdout, <-j.stderr; out != "out\n" || errOut != "err\n" {
		t.Errorf("stdout %q, stderr %q", out, errOut)
	}
	status, attrs, err := r.Inspect(r.ctx, j.cfg.Id)
	if err != nil || status.State != driverpb.TaskState_EXITED || status.Result.ExitCode != 5 || attrs["runtime"] != "process" {
		t.Errorf("inspect = %v, %v, %v", status, attrs, err)
	}
	if err := r.Destroy(r.ctx, j.cfg.Id, false); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Wait(r.ctx, j.cfg.Id); !errors.Is(err, nomadplugin.ErrTaskNotFound) {
		t.Errorf("wait after destroy: %v", err)
	}
	if left, err := os.ReadDir(filepath.Join(r.state, "tasks")); err != nil || len(left) != 0 {
		t.Errorf("left in the state folder: %v, %v", left, err)
	}
}

func TestStart_EnvironmentAndPaths(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	config := shell("env; pwd")
	config["env"] = map[string]any{"NVIDIA_VISIBLE_DEVICES": "all", "CONF": "/local/app.conf", "MINE": "1"}
	config["args"] = []string{"-c", "env; pwd; echo arg $1", "x", "--file=/secrets/key"}
	j := r.job(config, func(c *driverpb.TaskConfig) {
		c.Env["NVIDIA_VISIBLE_DEVICES"], c.Env["NOMAD_PORT_my_http"], c.Env["NOMAD_PORT_other_task"] = "all", "8000", "1"
		c.DeviceEnv = reserve(t, slicesOf(accel.NVIDIA, "GPU-1", 0, 2))
		c.Resources.Ports = []*driverpb.PortMapping{{Label: "my-http", Value: 25123, To: 8000}}
	})
	r.start(j)
	r.wait(j.cfg.Id)
	out := <-j.stdout
	task := filepath.Join(j.cfg.AllocDir, "web")
	for _, want := range []string{
		"NVIDIA_VISIBLE_DEVICES=GPU-1\n", "CUDA_VISIBLE_DEVICES=GPU-1\n", "ASCEND_VISIBLE_DEVICES=void\n", "HETEROFLOW_MEMORY_MIB=2048\n", "MINE=1\n", "NOMAD_PORT_my_http=25123\n", "NOMAD_PORT_other_task=1\n",
		"NOMAD_ALLOC_DIR=" + j.cfg.AllocDir + "/alloc\n", "NOMAD_TASK_DIR=" + task + "/local\n", "CONF=" + task + "/local/app.conf\n",
		"\n" + task + "\n", "arg --file=" + task + "/secrets/key\n", "PATH=" + defaultPath,
	} {
		if !strings.Contains(out, want) {
			t.Errorf("output lacks %q:\n%s", want, out)
		}
	}
}

func TestStart_LeaseLastsUntilDestroy(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	leases := func() []grant.Lease {
		t.Helper()
		all, err := grant.Leases(filepath.Join(r.state, "leases"))
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	j := r.job(shell("exec sleep 1000"), func(c *driverpb.TaskConfig) {
		c.DeviceEnv = reserve(t, whole(accel.Ascend, "A-1"), slicesOf(accel.NVIDIA, "GPU-1", 0, 2))
	})
	h := r.start(j)
	got := leases()
	if len(got) != 1 || got[0].TaskID != j.cfg.Id || got[0].AllocID != allocID || len(got[0].Cards) != 2 {
		t.Fatalf("leases = %+v", got)
	}
	r.restart()
	if err := r.Recover(r.ctx, h); err != nil {
		t.Fatal(err)
	}
	// The device plugin keeps a card in the form in which a task has it, whatever its config says after a restart.
	want := map[string]accel.Form{"A-1": accel.Whole, "GPU-1": accel.Shared}
	if again := leases()[0].Forms; !maps.Equal(got[0].Forms, want) || !maps.Equal(again, want) {
		t.Errorf("forms: %v, and after a recovery %v", got[0].Forms, again)
	}
	if err := r.Stop(r.ctx, j.cfg.Id, time.Second, ""); err != nil {
		t.Fatal(err)
	}
	if len(leases()) != 1 {
		t.Error("the lease went before the task was destroyed")
	}
	if err := r.Destroy(r.ctx, j.cfg.Id, true); err != nil {
		t.Fatal(err)
	}
	if got := leases(); len(got) != 0 {
		t.Errorf("left over: %+v", got)
	}
}

func TestStart_FailureLeavesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	j := r.job(map[string]any{"runtime": "process", "command": "/does/not/exist"}, func(c *driverpb.TaskConfig) {
		c.DeviceEnv = reserve(t, whole(accel.NVIDIA, "GPU-1"))
	})
	_, _, err := r.Start(r.ctx, j.cfg)
	if err == nil || !strings.Contains(err.Error(), "does not exist on this node") || nomadplugin.IsRecoverable(err) {
		t.Errorf("start: %v", err)
	}
	leases, err := grant.Leases(filepath.Join(r.state, "leases"))
	if err != nil || len(leases) != 0 {
		t.Errorf("leases: %v, %v", leases, err)
	}
	if left, err := os.ReadDir(filepath.Join(r.state, "tasks")); err != nil || len(left) != 0 {
		t.Errorf("state: %v, %v", left, err)
	}
}

func TestStart_Refusals(t *testing.T) {
	t.Parallel()
	key := testKey(t)
	r := newRig(t, map[string]any{"process": map[string]any{"enabled": false}, "grant_public_key": base64.StdEncoding.EncodeToString(publicOf(key))})
	r2 := newRig(t, nil)
	for name, c := range map[string]struct {
		rig    *rig
		config map[string]any
		change func(*driverpb.TaskConfig)
		want   string
	}{
		"process switched off": {r, shell("true"), nil, "process { enabled = true }"},
		"docker switched off":  {r, map[string]any{"image": "x"}, nil, "docker { enabled = true }"},
		"a grant, and no key": {r2, map[string]any{"runtime": "process", "command": "x", "grant": sign(t, key, granted())}, func(c *driverpb.TaskConfig) {
			c.DeviceEnv = reserve(t, slicesOf(accel.NVIDIA, "GPU-1", 0, 20))
		}, grant.ErrNoKey.Error()},
		"not admitted": {r2, map[string]any{"runtime": "process", "command": "x", "accelerator": map[string]any{"memory": "1GiB"}}, nil, "was not admitted"},
		"a volume_mount": {r2, shell("true"), func(c *driverpb.TaskConfig) {
			c.Mounts = []*driverpb.Mount{{HostPath: "/srv", TaskPath: "/srv"}}
		}, "cannot mount volumes"},
	} {
		t.Run(name, func(t *testing.T) {
			var change []func(*driverpb.TaskConfig)
			if c.change != nil {
				change = append(change, c.change)
			}
			_, _, err := c.rig.Start(c.rig.ctx, c.rig.job(c.config, change...).cfg)
			if err == nil || !strings.Contains(err.Error(), c.want) || nomadplugin.IsRecoverable(err) {
				t.Errorf("start: %v, want %q", err, c.want)
			}
		})
	}
}

func TestStart_TwiceIsOneTask(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	j := r.job(shell("exec sleep 1000"))
	r.start(j)
	_, before, err := r.Inspect(r.ctx, j.cfg.Id)
	if err != nil {
		t.Fatal(err)
	}
	r.start(j)
	if _, after, err := r.Inspect(r.ctx, j.cfg.Id); err != nil || after["pid"] != before["pid"] {
		t.Errorf("a second process was started: %v, %v, %v", before, after, err)
	}
}

// A driver that was killed in StartTask is launched again and asked to start the same task once more.
func TestStart_AfterAKilledStartBeginsAnew(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	j := r.job(shell("exec sleep 1000"))
	r.start(j)
	first := r.task(j.cfg.Id).supervised()
	r.restart() // the handle never reached Nomad
	r.start(j)
	eventually(t, func() bool { return !first.Task.Alive() && !first.Supervisor.Alive() }, "the first copy still runs")
	if !r.task(j.cfg.Id).supervised().Task.Alive() {
		t.Error("the second copy does not run")
	}
}

func (r *rig) task(id string) *task {
	r.t.Helper()
	t, err := r.get(id)
	if err != nil {
		r.t.Fatal(err)
	}
	return t
}

func TestRecover(t *testing.T) {
	t.Parallel()
	t.Run("running", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil)
		j := r.job(shell("trap 'echo bye; exit 7' TERM; echo up; echo ready > local/ready; while true; do sleep 0.05; done"))
		h := r.start(j)
		ready := filepath.Join(j.cfg.AllocDir, "web/local/ready")
		eventually(t, func() bool { body, err := os.ReadFile(ready); return err == nil && len(body) > 0 }, "the task is not ready")
		h.Config.MsgpackDriverConfig = nil // Nomad does not store it
		r.restart()
		for range 2 { // a second time it is already known
			if err := r.Recover(r.ctx, h); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Stop(r.ctx, j.cfg.Id, 20*time.Second, ""); err != nil {
			t.Fatal(err)
		}
		if exit := r.wait(j.cfg.Id); exit.ExitCode != 7 {
			t.Errorf("exit = %v", exit)
		}
		if out := <-j.stdout; out != "up\nbye\n" {
			t.Errorf("output before and after the driver's death: %q", out)
		}
	})
	t.Run("ended meanwhile", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil)
		j := r.job(shell("read line < local/go; exit 9"))
		gate := filepath.Join(j.cfg.AllocDir, "web/local/go")
		if err := unix.Mkfifo(gate, 0o600); err != nil {
			t.Fatal(err)
		}
		h := r.start(j)
		status := r.task(j.cfg.Id).supervised()
		r.Close() // nobody watches while the task ends
		if err := os.WriteFile(gate, []byte("go\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() bool { return !status.Supervisor.Alive() }, "the task does not end")
		r.restart()
		if err := r.Recover(r.ctx, h); err != nil {
			t.Fatal(err)
		}
		if exit := r.wait(j.cfg.Id); exit.ExitCode != 9 {
			t.Errorf("exit = %v", exit)
		}
	})
	t.Run("supervisor killed meanwhile", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil)
		j := r.job(shell("sleep 1000 & exec sleep 1000"))
		h := r.start(j)
		status := r.task(j.cfg.Id).supervised()
		r.Close()
		if err := status.Supervisor.Signal(unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() bool { return !status.Supervisor.Alive() }, "the supervisor still lives")
		r.restart()
		if err := r.Recover(r.ctx, h); err != nil {
			t.Fatal(err)
		}
		exit, err := r.Wait(r.ctx, j.cfg.Id)
		if err == nil || !strings.Contains(err.Error(), "supervisor was killed") || exit.GetExitCode() == 0 {
			t.Errorf("wait = %v, %v", exit, err)
		}
		if left := status.Task.Session(); len(left) != 0 {
			t.Errorf("left running: %+v", left)
		}
	})
	t.Run("nothing is known", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil)
		j := r.job(shell("exec sleep 1000"))
		h := r.start(j)
		if err := r.Destroy(r.ctx, j.cfg.Id, true); err != nil {
			t.Fatal(err)
		}
		if err := r.Recover(r.ctx, h); err == nil {
			t.Error("a destroyed task was recovered")
		}
	})
	t.Run("bad handles", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil)
		cfg := &driverpb.TaskConfig{Id: "a/b/c"}
		for name, state := range map[string]string{"empty": "", "newer": `{"version":9}`, "runtime": `{"version":1,"runtime":"vm"}`} {
			if err := r.Recover(r.ctx, &driverpb.TaskHandle{Version: 1, Config: cfg, DriverState: []byte(state)}); err == nil {
				t.Errorf("%s: accepted", name)
			}
		}
	})
}

func TestSupervisorKilled_WhileTheDriverWatches(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	j := r.job(shell("sleep 1000 & exec sleep 1000"))
	r.start(j)
	status := r.task(j.cfg.Id).supervised()
	if err := status.Supervisor.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Wait(r.ctx, j.cfg.Id); err == nil || !strings.Contains(err.Error(), "supervisor was killed") {
		t.Errorf("wait: %v", err)
	}
	if left := status.Task.Session(); len(left) != 0 {
		t.Errorf("left running: %+v", left)
	}
}

func TestStop(t *testing.T) {
	t.Parallel()
	// The task says when it is ready for signals.
	script := "trap 'echo term; exit 0' TERM; trap 'echo usr; exit 0' USR1; echo ready > local/ready; while true; do sleep 0.05; done"
	for name, c := range map[string]struct {
		script    string
		config    string
		signal    string
		timeout   time.Duration
		wantOut   string
		wantCode  int32
		wantSigno int32
	}{
		"SIGTERM by default":           {script: script, timeout: 20 * time.Second, wantOut: "term\n"},
		"the config's signal":          {script: script, config: "SIGUSR1", timeout: 20 * time.Second, wantOut: "usr\n"},
		"nomad's signal wins":          {script: script, config: "SIGTERM", signal: "SIGUSR1", timeout: 20 * time.Second, wantOut: "usr\n"},
		"an unknown signal is SIGTERM": {script: script, signal: "SIGWHAT", timeout: 20 * time.Second, wantOut: "term\n"},
		"killed after the timeout":     {script: "trap '' TERM; echo ready > local/ready; while true; do sleep 0.05; done", timeout: 200 * time.Millisecond, wantCode: 137, wantSigno: 9},
		"killed at once":               {script: script, timeout: 0, wantCode: 137, wantSigno: 9},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			config := shell(c.script)
			if c.config != "" {
				config["stop_signal"] = c.config
			}
			j := r.job(config)
			r.start(j)
			ready := filepath.Join(j.cfg.AllocDir, "web/local/ready")
			eventually(t, func() bool { body, err := os.ReadFile(ready); return err == nil && len(body) > 0 }, "the task is not ready")
			if err := r.Stop(r.ctx, j.cfg.Id, c.timeout, c.signal); err != nil {
				t.Fatal(err)
			}
			if exit := r.wait(j.cfg.Id); exit.ExitCode != c.wantCode || exit.Signal != c.wantSigno {
				t.Errorf("exit = %v", exit)
			}
			if out := <-j.stdout; out != c.wantOut {
				t.Errorf("output %q, want %q", out, c.wantOut)
			}
			if err := r.Stop(r.ctx, j.cfg.Id, c.timeout, c.signal); err != nil {
				t.Errorf("a second stop: %v", err)
			}
		})
	}
}

func TestSignal(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	j := r.job(shell("trap 'exit 42' HUP; echo ready > local/ready; while true; do sleep 0.05; done"))
	r.start(j)
	ready := filepath.Join(j.cfg.AllocDir, "web/local/ready")
	eventually(t, func() bool { body, err := os.ReadFile(ready); return err == nil && len(body) > 0 }, "the task is not ready")
	if err := r.Signal(r.ctx, j.cfg.Id, "SIGNOTHING"); err == nil || !strings.Contains(err.Error(), "write a name such as SIGTERM") {
		t.Errorf("unknown signal: %v", err)
	}
	if err := r.Signal(r.ctx, j.cfg.Id, "SIGHUP"); err != nil {
		t.Fatal(err)
	}
	if exit := r.wait(j.cfg.Id); exit.ExitCode != 42 {
		t.Errorf("exit = %v", exit)
	}
	if err := r.Signal(r.ctx, j.cfg.Id, "SIGHUP"); err == nil {
		t.Error("an ended task took a signal")
	}
}

func TestUnknownTask(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	if err := r.Destroy(r.ctx, "no/such/task", true); err != nil {
		t.Errorf("destroy clears what may be left, and nothing is: %v", err)
	}
	_, waitErr := r.Wait(r.ctx, "x")
	_, _, inspectErr := r.Inspect(r.ctx, "x")
	_, _, _, execErr := r.Exec(r.ctx, "x", []string{"true"}, 0)
	for name, err := range map[string]error{
		"wait": waitErr, "inspect": inspectErr, "exec": execErr, "stop": r.Stop(r.ctx, "x", 0, ""), "signal": r.Signal(r.ctx, "x", "SIGHUP"),
		"stats": r.Stats(r.ctx, "x", time.Second, nil),
	} {
		if !errors.Is(err, nomadplugin.ErrTaskNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDestroy_RunningNeedsForce(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	j := r.job(shell("sleep 1000 & exec sleep 1000"))
	r.start(j)
	status := r.task(j.cfg.Id).supervised()
	if err := r.Destroy(r.ctx, j.cfg.Id, false); err == nil || !strings.Contains(err.Error(), "stop it first") {
		t.Errorf("destroy: %v", err)
	}
	waited := make(chan error, 1)
	tk := r.task(j.cfg.Id)
	go func() { <-tk.ended; waited <- nil }()
	if err := r.Destroy(r.ctx, j.cfg.Id, true); err != nil {
		t.Fatal(err)
	}
	<-waited // whoever waits is let go
	if left := status.Task.Session(); len(left) != 0 || status.Supervisor.Alive() {
		t.Errorf("left running: %+v", left)
	}
}

func TestExec(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	config := shell("exec sleep 1000")
	config["env"] = map[string]any{"FROM_CONFIG": "/local/x"}
	j := r.job(config, func(c *driverpb.TaskConfig) { c.DeviceEnv = reserve(t, slicesOf(accel.NVIDIA, "GPU-1", 0, 1)) })
	h := r.start(j)
	check := func(t *testing.T) {
		t.Helper()
		out, errOut, exit, err := r.Exec(r.ctx, j.cfg.Id, []string{"/bin/sh", "-c", "echo $FROM_CONFIG $CUDA_VISIBLE_DEVICES $HETEROFLOW_MEMORY_MIB; pwd; echo e >&2; exit 3"}, 20*time.Second)
		want := fmt.Sprintf("%s/web/local/x GPU-1 1024\n%s/web\n", j.cfg.AllocDir, j.cfg.AllocDir)
		if err != nil || exit.ExitCode != 3 || string(out) != want || string(errOut) != "e\n" {
			t.Errorf("exec = %v, %v\n out %q\nwant %q\n err %q", exit, err, out, want, errOut)
		}
	}
	check(t)
	h.Config.MsgpackDriverConfig = nil
	r.restart()
	if err := r.Recover(r.ctx, h); err != nil {
		t.Fatal(err)
	}
	check(t)
	if _, _, _, err := r.Exec(r.ctx, j.cfg.Id, []string{"/bin/sleep", "1000"}, 100*time.Millisecond); err == nil || !strings.Contains(err.Error(), "did not end within 100ms") {
		t.Errorf("timeout: %v", err)
	}
	if _, _, _, err := r.Exec(r.ctx, j.cfg.Id, []string{"no-such-command"}, 0); err == nil {
		t.Error("a command that does not exist was run")
	}
	var out bytes.Buffer
	resize := make(chan nomadplugin.TerminalSize, 1)
	resize <- nomadplugin.TerminalSize{Height: 11, Width: 22}
	exit, err := r.ExecStream(r.ctx, j.cfg.Id, &nomadplugin.ExecStream{
		Command: []string{"/bin/sh", "-c", `for i in $(seq 500); do s=$(stty size); test "$s" = "11 22" && break; sleep 0.01; done; echo $s`},
		TTY:     true, Stdin: strings.NewReader(""), Stdout: &out, Resize: resize,
	})
	if err != nil || exit.ExitCode != 0 || strings.TrimSpace(out.String()) != "11 22" {
		t.Errorf("terminal: %v, %v, %q", exit, err, out.String())
	}
}

func TestStats(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	j := r.job(shell("while true; do :; done"))
	r.start(j)
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	err := r.Stats(ctx, j.cfg.Id, 20*time.Millisecond, func(s *driverpb.TaskStats) error {
		agg := s.AggResourceUsage
		if !s.Timestamp.IsValid() || len(agg.Cpu.MeasuredFields) == 0 || len(agg.Memory.MeasuredFields) == 0 {
			t.Errorf("sample lacks a part: %v", s)
		}
		if agg.Cpu.Percent > 1 && agg.Cpu.TotalTicks > 0 && agg.Memory.Rss > 0 && len(s.ResourceUsageByPid) == 1 {
			cancel()
		}
		return nil
	})
	if err != nil || r.ctx.Err() != nil {
		t.Errorf("stats: %v, %v", err, r.ctx.Err())
	}
	if err := r.Stop(r.ctx, j.cfg.Id, 0, ""); err != nil {
		t.Fatal(err)
	}
	if err := r.Stats(r.ctx, j.cfg.Id, time.Hour, func(*driverpb.TaskStats) error { return nil }); err != nil {
		t.Errorf("the stream of an ended task ends well: %v", err)
	}
}

// Nomad's client may die between the answer to a start and noting it: the task is in no handle then, and the driver outlives
// the client.
func TestSweep_RemovesWhatNomadNeverHeardOf(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	start := func(suffix, card string) string {
		j := r.job(shell("exec sleep 1000"), func(c *driverpb.TaskConfig) {
			c.Id += suffix
			c.AllocId += suffix
			c.DeviceEnv = reserve(t, whole(accel.NVIDIA, card))
		})
		r.start(j)
		return j.cfg.Id
	}
	lost, kept := start("0", "GPU-1"), start("1", "GPU-2")
	if _, _, err := r.Inspect(r.ctx, kept); err != nil {
		t.Fatal(err)
	}
	status := r.task(lost).supervised()
	r.sweepNow(r.ctx, time.Now().Add(-time.Hour))
	if !status.Task.Alive() {
		t.Fatal("a task was removed of which Nomad may be about to hear")
	}
	r.sweepNow(r.ctx, time.Now().Add(time.Hour))
	if _, err := r.get(lost); !errors.Is(err, nomadplugin.ErrTaskNotFound) || status.Task.Alive() {
		t.Errorf("a task that Nomad never heard of still runs: %v", err)
	}
	if leases, err := grant.Leases(filepath.Join(r.state, "leases")); err != nil || len(leases) != 1 || leases[0].TaskID != kept {
		t.Errorf("leases = %v, %v", leases, err)
	}
	if !r.task(kept).supervised().Task.Alive() {
		t.Error("a task that Nomad asked for was removed")
	}
}

func TestSweep_RemovesWhatNobodyAsksFor(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	lost := r.job(shell("exec sleep 1000"), func(c *driverpb.TaskConfig) { c.DeviceEnv = reserve(t, whole(accel.NVIDIA, "GPU-1")) })
	kept := r.job(shell("exec sleep 1000"), func(c *driverpb.TaskConfig) { c.Id += "0" })
	r.start(lost)
	h := r.start(kept)
	status := r.task(lost.cfg.Id).supervised()
	r.restart()
	if err := r.Recover(r.ctx, h); err != nil {
		t.Fatal(err)
	}
	r.sweepNow(r.ctx, time.Now().Add(-time.Hour))
	if !status.Task.Alive() {
		t.Fatal("a young task was removed")
	}
	r.sweepNow(r.ctx, time.Now().Add(time.Hour))
	if status.Task.Alive() || status.Supervisor.Alive() {
		t.Error("the lost task still runs")
	}
	if leases, err := grant.Leases(filepath.Join(r.state, "leases")); err != nil || len(leases) != 0 {
		t.Errorf("leases = %v, %v", leases, err)
	}
	if !r.task(kept.cfg.Id).supervised().Task.Alive() {
		t.Error("a known task was removed")
	}
}

func TestSecrets_StayOutOfLogsAndState(t *testing.T) {
	t.Parallel()
	key := testKey(t)
	r := newRig(t, map[string]any{"grant_public_key": base64.StdEncoding.EncodeToString(publicOf(key))})
	g := granted()
	g.MemoryMiB, g.Vendors = 1024, nil
	token := sign(t, key, g)
	config := shell("exec sleep 1000")
	config["grant"] = token
	config["auth"] = map[string]any{"username": "u", "password": "s3cret-password"}
	j := r.job(config, func(c *driverpb.TaskConfig) {
		c.Env["DB_PASSWORD"] = "s3cret-env"
		c.DeviceEnv = reserve(t, slicesOf(accel.NVIDIA, "GPU-1", 0, 1))
	})
	h := r.start(j)
	r.restart()
	if err := r.Recover(r.ctx, h); err != nil {
		t.Fatal(err)
	}
	if err := r.Destroy(r.ctx, j.cfg.Id, true); err != nil {
		t.Fatal(err)
	}
	for where, text := range map[string]string{"log": r.log.String(), "handle": string(h.DriverState)} {
		for _, secret := range []string{"s3cret-env", "s3cret-password", token} {
			if strings.Contains(text, secret) {
				t.Errorf("the %s holds %q", where, secret)
			}
		}
	}
}

func TestFingerprint_Process(t *testing.T) {
	t.Parallel()
	r := newRig(t, map[string]any{"orphan_after": "0s"})
	first := make(chan *driverpb.FingerprintResponse, 1)
	ctx, cancel := context.WithCancel(r.ctx)
	done := make(chan error, 1)
	go func() {
		done <- r.Fingerprint(ctx, func(f *driverpb.FingerprintResponse) error { first <- f; return nil })
	}()
	f := <-first
	if f.Health != driverpb.FingerprintResponse_HEALTHY || f.HealthDescription != "ready: process; grants are refused: the plugin's config has no grant_public_key" {
		t.Errorf("health = %v %q", f.Health, f.HealthDescription)
	}
	for name, want := range map[string]string{"version": "0.1.0", "runtime.process": "true", "runtime.process.limits": "none", "runtime.docker": ""} {
		if got := f.Attributes["driver.heteroflow."+name].GetStringVal(); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	select {
	case err := <-done:
		t.Fatalf("the stream ended by itself: %v", err)
	default:
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestFingerprint_NothingSwitchedOn(t *testing.T) {
	t.Parallel()
	r := newRig(t, map[string]any{"process": map[string]any{"enabled": false}})
	if f := r.look(r.ctx); f.Health != driverpb.FingerprintResponse_UNDETECTED {
		t.Errorf("health = %v %q", f.Health, f.HealthDescription)
	}
}

func TestFingerprint_SaysThatGrantsAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, map[string]any{"grant_public_key": base64.StdEncoding.EncodeToString(publicOf(testKey(t)))})
	if f := r.look(r.ctx); f.HealthDescription != "ready: process" {
		t.Errorf("with a key: %q", f.HealthDescription)
	}
}

func TestEvents_LoseTheOldest(t *testing.T) {
	t.Parallel()
	e := newEvents()
	e.emit(&driverpb.TaskConfig{Id: "x"}, "nobody listens", nil)
	ch, stop := e.listen()
	defer stop()
	for i := range eventBuffer + 10 {
		e.emit(&driverpb.TaskConfig{Id: "x", AllocId: "a", Name: "n"}, fmt.Sprint(i), nil)
	}
	if first := <-ch; first.Message != "10" || first.AllocId != "a" || first.TaskName != "n" || !first.Timestamp.IsValid() {
		t.Errorf("first = %v", first)
	}
}

func TestWorkload_UnknownKind(t *testing.T) {
	t.Parallel()
	for _, spec := range []supervisor.Spec{{Kind: "vm"}, {Kind: "process", Body: []byte("{")}, {Kind: "docker", Body: []byte("[")}} {
		if _, err := Workload(spec); err == nil {
			t.Errorf("%s was accepted", spec.Kind)
		}
	}
}

// Whoever asked for a start may be gone, and never hear that the task runs: a destroy waits for the start to end.
func TestDestroy_WaitsForAStart(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	const id = "an/unfinished/start"
	leases := filepath.Join(r.state, "leases")
	if !r.claim(id) {
		t.Fatal("the task is being started already")
	}
	destroyed := make(chan error, 1)
	go func() { destroyed <- r.Destroy(r.ctx, id, true) }()
	select {
	case err := <-destroyed:
		t.Fatalf("destroyed while it was being started: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	if err := grant.WriteLease(leases, grant.Lease{TaskID: id, AllocID: allocID, Cards: []string{"GPU-1"}, Since: time.Now()}); err != nil {
		t.Fatal(err)
	}
	r.release(id)
	if err := <-destroyed; err != nil {
		t.Fatal(err)
	}
	if left, err := grant.Leases(leases); err != nil || len(left) != 0 {
		t.Errorf("left over: %+v, %v", left, err)
	}
}
