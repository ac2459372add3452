//go:build unix

package sample

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/hclspec"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/structspb"
)

// Driver runs tasks as plain processes. The command "refuse" fails the start, "refuse-for-now" fails it recoverably.
type Driver struct {
	info  nomadplugin.Info
	log   hclog.Logger
	mu    sync.Mutex
	dir   string
	tasks map[string]*task
}

type task struct {
	cfg *driverpb.TaskConfig
	dir string // files of the supervisor
	pid int    // supervisor
}

type taskConfig struct {
	Command string   `codec:"command"`
	Args    []string `codec:"args"`
}

// driverState is what a handle carries.
type driverState struct {
	Dir string `json:"dir"`
	Pid int    `json:"pid"`
}

var _ nomadplugin.Driver = (*Driver)(nil)

// NewDriver returns a driver without tasks.
func NewDriver(info nomadplugin.Info, log hclog.Logger) *Driver {
	return &Driver{info: info, log: log, dir: os.TempDir(), tasks: map[string]*task{}}
}

// Info names the plugin.
func (d *Driver) Info() nomadplugin.Info { return d.info }

// ConfigSchema has one option, the folder of the supervisors.
func (d *Driver) ConfigSchema() *hclspec.Spec {
	return nomadplugin.Object(nomadplugin.Fields{"state_dir": nomadplugin.OptString("state_dir", os.TempDir())})
}

// Configure reads the folder.
func (d *Driver) Configure(msgpack []byte) error {
	var cfg struct {
		StateDir string `codec:"state_dir"`
	}
	if err := nomadplugin.DecodeConfig(msgpack, &cfg); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if cfg.StateDir != "" {
		d.dir = cfg.StateDir
	}
	return nil
}

// TaskConfigSchema describes taskConfig.
func (d *Driver) TaskConfigSchema() *hclspec.Spec {
	return nomadplugin.Object(nomadplugin.Fields{
		"command": nomadplugin.Attr("command", "string", true),
		"args":    nomadplugin.Attr("args", "list(string)", false),
	})
}

// Capabilities are those of a driver without isolation.
func (d *Driver) Capabilities() *driverpb.DriverCapabilities {
	return &driverpb.DriverCapabilities{SendSignals: true, Exec: true, FsIsolation: driverpb.DriverCapabilities_NONE}
}

// Fingerprint is healthy once.
func (d *Driver) Fingerprint(ctx context.Context, send func(*driverpb.FingerprintResponse) error) error {
	err := send(&driverpb.FingerprintResponse{
		Health: driverpb.FingerprintResponse_HEALTHY, HealthDescription: "ready",
		Attributes: map[string]*structspb.Attribute{
			"driver." + d.info.Name + ".version": {Value: &structspb.Attribute_StringVal{StringVal: d.info.Version}},
			"driver." + d.info.Name + ".memory":  {Value: &structspb.Attribute_IntVal{IntVal: 80}, Unit: "GiB"},
		},
	})
	if err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// HoldStart names a variable of a task's environment. The task runs, but its start is not answered until the file
// exists that the variable names.
const HoldStart = "SAMPLE_HOLD_START"

// Start launches a supervisor that runs the command.
func (d *Driver) Start(_ context.Context, cfg *driverpb.TaskConfig) (*driverpb.TaskHandle, *driverpb.NetworkOverride, error) {
	var tc taskConfig
	if err := nomadplugin.DecodeConfig(cfg.MsgpackDriverConfig, &tc); err != nil {
		return nil, nil, err
	}
	switch tc.Command {
	case "refuse":
		return nil, nil, errors.New("this command is refused")
	case "refuse-for-now":
		return nil, nil, nomadplugin.Recoverable(errors.New("this command is refused for now"))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	dir := filepath.Join(d.dir, strings.ReplaceAll(cfg.Id, "/", "_"))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, nil, err
	}
	spec := superviseSpec{Command: append([]string{tc.Command}, tc.Args...), Stdout: cfg.StdoutPath, Stderr: cfg.StderrPath, Dir: filepath.Join(cfg.AllocDir, cfg.Name)}
	for k, v := range cfg.Env {
		spec.Env = append(spec.Env, k+"="+v)
	}
	if err := writeJSON(filepath.Join(dir, "spec.json"), spec); err != nil {
		return nil, nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(self, dir)
	cmd.Env = append(os.Environ(), envKind+"=supervisor")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	go cmd.Wait() // reaps it; its result is in the files
	t := &task{cfg: cfg, dir: dir, pid: cmd.Process.Pid}
	state, err := json.Marshal(driverState{Dir: dir, Pid: t.pid})
	if err != nil {
		return nil, nil, err
	}
	d.tasks[cfg.Id] = t
	for until := time.Now().Add(time.Minute); cfg.Env[HoldStart] != "" && time.Now().Before(until); time.Sleep(pollEvery) {
		if _, err := os.Stat(cfg.Env[HoldStart]); err == nil {
			break
		}
	}
	return &driverpb.TaskHandle{Version: 1, Config: cfg, State: driverpb.TaskState_RUNNING, DriverState: state}, nil, nil
}

// Recover takes a task over when its supervisor runs or has left a result.
func (d *Driver) Recover(_ context.Context, h *driverpb.TaskHandle) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.tasks[h.Config.Id] != nil {
		return nil
	}
	var s driverState
	if err := json.Unmarshal(h.DriverState, &s); err != nil {
		return err
	}
	t := &task{cfg: h.Config, dir: s.Dir, pid: s.Pid}
	if _, err := os.Stat(s.Dir); err != nil {
		return fmt.Errorf("task %s was destroyed: %w", h.Config.Id, err)
	}
	if _, done := t.result(); !done && !alive(t.pid) {
		return fmt.Errorf("task %s is gone", h.Config.Id)
	}
	d.tasks[h.Config.Id] = t
	return nil
}

func (d *Driver) task(id string) (*task, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if t := d.tasks[id]; t != nil {
		return t, nil
	}
	return nil, fmt.Errorf("task %s: %w", id, nomadplugin.ErrTaskNotFound)
}

// Wait polls for the result.
func (d *Driver) Wait(ctx context.Context, id string) (*driverpb.ExitResult, error) {
	t, err := d.task(id)
	if err != nil {
		return nil, err
	}
	for {
		if r, done := t.result(); done {
			return &driverpb.ExitResult{ExitCode: int32(r.Code), Signal: int32(r.Signal)}, nil
		}
		if !alive(t.pid) {
			if _, done := t.result(); !done {
				return nil, errors.New("the supervisor is gone")
			}
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pollEvery):
		}
	}
}

// Stop sends the signal, and SIGKILL after the timeout.
func (d *Driver) Stop(ctx context.Context, id string, timeout time.Duration, signal string) error {
	t, err := d.task(id)
	if err != nil {
		return err
	}
	if signal == "" {
		signal = "SIGTERM"
	}
	if err := t.kill(signal); err != nil {
		return err
	}
	deadline, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if _, err := d.Wait(deadline, id); errors.Is(err, context.DeadlineExceeded) {
		return t.kill("SIGKILL")
	}
	return nil
}

// Destroy forgets the task and removes its files.
func (d *Driver) Destroy(_ context.Context, id string, force bool) error {
	t, err := d.task(id)
	if err != nil {
		return err
	}
	if _, done := t.result(); !done {
		if !force {
			return fmt.Errorf("task %s is running", id)
		}
		if err := t.kill("SIGKILL"); err != nil {
			return err
		}
		// The supervisor writes the result into the folder that is removed next.
		for done := false; !done && alive(t.pid); time.Sleep(pollEvery) {
			_, done = t.result()
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.tasks, id)
	return os.RemoveAll(t.dir)
}

// Inspect tells the state.
func (d *Driver) Inspect(_ context.Context, id string) (*driverpb.TaskStatus, map[string]string, error) {
	t, err := d.task(id)
	if err != nil {
		return nil, nil, err
	}
	st := &driverpb.TaskStatus{Id: id, Name: t.cfg.Name, State: driverpb.TaskState_RUNNING}
	if _, done := t.result(); done {
		st.State = driverpb.TaskState_EXITED
	}
	return st, nil, nil
}

// Stats sends a fixed sample.
func (d *Driver) Stats(ctx context.Context, id string, every time.Duration, send func(*driverpb.TaskStats) error) error {
	if _, err := d.task(id); err != nil {
		return err
	}
	for {
		if err := send(&driverpb.TaskStats{AggResourceUsage: &driverpb.TaskResourceUsage{
			Cpu:    &driverpb.CPUUsage{Percent: 1.5, MeasuredFields: []driverpb.CPUUsage_Fields{driverpb.CPUUsage_PERCENT}},
			Memory: &driverpb.MemoryUsage{Rss: 4096, MeasuredFields: []driverpb.MemoryUsage_Fields{driverpb.MemoryUsage_RSS}},
		}}); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
	}
}

// Events has none.
func (d *Driver) Events(ctx context.Context, _ func(*driverpb.DriverTaskEvent) error) error {
	<-ctx.Done()
	return nil
}

// Signal passes a signal on.
func (d *Driver) Signal(_ context.Context, id, signal string) error {
	t, err := d.task(id)
	if err != nil {
		return err
	}
	return t.kill(signal)
}

// Exec runs a command beside the task.
func (d *Driver) Exec(ctx context.Context, id string, cmd []string, timeout time.Duration) (stdout, stderr []byte, res *driverpb.ExitResult, err error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	var out, errOut bytes.Buffer
	res, err = d.ExecStream(ctx, id, &nomadplugin.ExecStream{Command: cmd, Stdout: &out, Stderr: &errOut})
	return out.Bytes(), errOut.Bytes(), res, err
}

// ExecStream does so with streams.
func (d *Driver) ExecStream(ctx context.Context, id string, s *nomadplugin.ExecStream) (*driverpb.ExitResult, error) {
	t, err := d.task(id)
	if err != nil {
		return nil, err
	}
	c := exec.CommandContext(ctx, s.Command[0], s.Command[1:]...)
	for k, v := range t.cfg.Env {
		c.Env = append(c.Env, k+"="+v)
	}
	c.Stdin, c.Stdout, c.Stderr = s.Stdin, s.Stdout, s.Stderr
	// A user who never closes stdin must not hold up the end.
	c.WaitDelay = 10 * pollEvery
	err = c.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return &driverpb.ExitResult{ExitCode: int32(exit.ExitCode())}, nil
	}
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return nil, err
	}
	return &driverpb.ExitResult{}, nil
}

func (t *task) result() (result, bool) {
	var r result
	return r, readJSON(filepath.Join(t.dir, "exit.json"), &r) == nil
}

// kill signals the command once it runs.
func (t *task) kill(signal string) error {
	sig := unix.SignalNum(signal)
	if sig == 0 {
		return fmt.Errorf("unknown signal %q", signal)
	}
	for {
		if _, done := t.result(); done {
			return nil
		}
		var pid int
		if readJSON(filepath.Join(t.dir, "pid.json"), &pid) == nil {
			if err := syscall.Kill(-pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
				return err
			}
			return nil
		}
		if !alive(t.pid) {
			return nil
		}
		time.Sleep(pollEvery)
	}
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }
