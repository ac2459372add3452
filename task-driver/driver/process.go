package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/task-driver/process"
	"github.com/heteroflow/heteroflow/task-driver/supervisor"
)

// processRuntime runs tasks as plain processes of the host.
type processRuntime struct {
	options *Process
	cgroups string
	mode    process.Mode

	sessions supervisor.Sessions // of all tasks, for statistics
}

var _ runtime = (*processRuntime)(nil)

// defaultPath is the PATH of a task that has none: Nomad does not pass the host's on to drivers with image isolation.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func (r *processRuntime) check(p *plan) error {
	if len(p.cfg.GetMounts()) > 0 {
		return errors.New(`the process runtime cannot mount volumes: leave volume_mount out, or use runtime = "docker"`)
	}
	if p.cfg.GetNetworkIsolationSpec().GetMode() == driverpb.NetworkIsolationSpec_GROUP {
		return errors.New(`the process runtime has the host's network: leave mode out of the group's network, or use runtime = "docker"`)
	}
	return nil
}

// command is the process of a plan, with the task's paths turned into the host's.
func (r *processRuntime) command(cfg *driverpb.TaskConfig, tc TaskConfig, env map[string]string, g process.Group) process.Command {
	paths := process.HostPaths(cfg.GetAllocDir(), cfg.GetName())
	env = paths.Env(env)
	for _, p := range cfg.GetResources().GetPorts() {
		// A port's "to" is for a network of the task's own. A process has the host's, and listens at its port there.
		if name := "NOMAD_PORT_" + envName(p.GetLabel()); env[name] != "" {
			env[name] = strconv.Itoa(int(p.GetValue()))
		}
	}
	if env["PATH"] == "" {
		env["PATH"] = defaultPath
	}
	dir := filepath.Join(cfg.GetAllocDir(), cfg.GetName())
	if tc.WorkDir != "" {
		if dir = paths.Value(tc.WorkDir); !filepath.IsAbs(dir) {
			dir = filepath.Join(cfg.GetAllocDir(), cfg.GetName(), dir)
		}
	}
	user := cfg.GetUser()
	if user == "" {
		user = r.options.User
	}
	return process.Command{
		Argv: append([]string{paths.Value(tc.Command)}, paths.Values(tc.Args)...),
		Env:  envList(env), Dir: dir, User: user, Group: g, Limits: processLimits(cfg, tc),
	}
}

// envName is a port label as it stands in the name of a variable.
func envName(label string) string {
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' {
			return c
		}
		return '_'
	}, label)
}

func processLimits(cfg *driverpb.TaskConfig, tc TaskConfig) process.Limits {
	linux := cfg.GetResources().GetLinuxResources()
	l := process.Limits{MemoryBytes: memoryLimit(cfg), MemoryReserveBytes: memoryReserve(cfg), Pids: tc.PidsLimit, CPUShares: linux.GetCpuShares()}
	if tc.CPUHardLimit {
		l.CPUQuotaUS, l.CPUPeriodUS = cpuQuota(linux.GetPercentTicks(), tc.CPUCFSPeriod)
	}
	return l
}

func (r *processRuntime) prepare(_ context.Context, p *plan, rec *record, _ func(string)) (supervisor.Spec, error) {
	given := p.cfg.GetResources().GetLinuxResources().GetCpusetCgroup()
	key := filepath.Base(supervisor.Dir("/", p.cfg.GetId()))
	rec.Group = process.GroupFor(r.cgroups, r.mode, given, key)
	body, err := json.Marshal(r.command(p.cfg, p.tc, p.env, rec.Group))
	if err != nil {
		return supervisor.Spec{}, fmt.Errorf("encode command: %w", err)
	}
	return supervisor.Spec{Kind: runtimeProcess, Cgroups: supervisorCgroups(r.mode, given), Body: body}, nil
}

// supervisorCgroups is where the supervisor goes, so that it leaves the agent's cgroup and keeps to the task's cores.
// In version 2 a cgroup with limited children holds no process itself, hence a leaf of its own. Nomad removes the
// whole tree after the task.
func supervisorCgroups(mode process.Mode, given string) []string {
	switch {
	case given == "" || mode == process.Unlimited:
		return nil
	case mode == process.V2:
		return []string{filepath.Join(given, supervisorLeaf)}
	}
	return []string{given}
}

const supervisorLeaf = "supervisor"

func (r *processRuntime) network(context.Context, *plan, *record) *driverpb.NetworkOverride {
	return nil
}

func (r *processRuntime) signal(_ context.Context, t *task, signal string) error {
	n, err := signalNumber(signal)
	if err != nil {
		return err
	}
	return t.supervised().Task.Signal(n)
}

func (r *processRuntime) stop(_ context.Context, t *task, signal string) error {
	n, err := signalNumber(signal)
	if err != nil {
		return err
	}
	return t.supervised().Task.SignalGroup(n)
}

func (r *processRuntime) kill(_ context.Context, t *task) error {
	t.supervised().Task.KillSession()
	return nil
}

// orphaned ends what runs: without its supervisor nobody would learn how the process ends.
func (r *processRuntime) orphaned(_ context.Context, t *task) (*supervisor.Spec, *supervisor.Exit, error) {
	status, err := supervisor.ReadStatus(t.dir)
	if errors.Is(err, supervisor.ErrNoState) {
		if t.supervised().Task.PID == 0 {
			return nil, nil, fmt.Errorf("its state folder is gone: %w", errNothingLeft)
		}
		status, err = t.supervised(), nil
	}
	if err != nil {
		return nil, nil, err
	}
	status.Task.KillSession()
	if err := t.record.Group.Remove(); err != nil {
		return nil, nil, err
	}
	return nil, &supervisor.Exit{Code: 137, Signal: int(syscall.SIGKILL), Err: supervisor.ErrGone.Error()}, nil
}

func (r *processRuntime) clean(_ context.Context, taskID string, rec *record) error {
	g := rec.Group
	if g.Mode == "" {
		g = process.GroupFor(r.cgroups, r.mode, "", filepath.Base(supervisor.Dir("/", taskID)))
	}
	if g.Mode == process.V2 {
		leaf := process.Group{Mode: process.V2, Paths: []string{filepath.Join(filepath.Dir(g.Paths[0]), supervisorLeaf)}}
		return errors.Join(g.Remove(), leaf.Remove())
	}
	return g.Remove()
}

func (r *processRuntime) exec(ctx context.Context, t *task, s *nomadplugin.ExecStream) (*driverpb.ExitResult, error) {
	c := r.command(t.cfg, t.config, t.env, t.record.Group)
	paths := process.HostPaths(t.cfg.GetAllocDir(), t.cfg.GetName())
	c.Argv = paths.Values(s.Command)
	ended, stop := context.WithCancel(ctx)
	defer stop()
	exit, err := process.Exec(ctx, c, process.Streams{
		TTY: s.TTY, Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr,
		Resize: sizesOf(ended, s, func(size nomadplugin.TerminalSize) process.Size { return process.Size(size) }),
	})
	if err != nil {
		return nil, err
	}
	return exitResult(exit), nil
}

func (r *processRuntime) stats(_ context.Context, t *task, m *meter) (*driverpb.TaskStats, error) {
	now := time.Now()
	byPID := map[string]*driverpb.TaskResourceUsage{}
	var user, system float64
	var rss uint64
	for _, u := range process.Usages(r.sessions.Of(t.supervised().Task)) {
		pid := strconv.Itoa(u.PID)
		byPID[pid] = usageOf(m.read(pid, now, u.UserSeconds+u.SystemSeconds, u.UserSeconds, u.SystemSeconds), u.RSSBytes, m.mhz)
		user, system, rss = user+u.UserSeconds, system+u.SystemSeconds, rss+u.RSSBytes
	}
	m.keep(byPID)
	return taskStats(t.id, now, usageOf(m.sum(byPID), rss, m.mhz), byPID), nil
}

func (r *processRuntime) inspect(_ context.Context, t *task) map[string]string {
	return map[string]string{
		"runtime": runtimeProcess, "pid": strconv.Itoa(t.supervised().Task.PID), "limits": string(t.record.Group.Mode),
		"cards": strings.Join(t.record.Cards, ","),
	}
}

// memoryLimit is the hard limit in bytes; 0 is none.
func memoryLimit(cfg *driverpb.TaskConfig) int64 {
	if cfg.GetResources().GetAllocatedResources().GetMemory().GetMemoryMaxMb() == -1 {
		return 0
	}
	return max(0, cfg.GetResources().GetLinuxResources().GetMemoryLimitBytes())
}

// cpuQuota is the time a task with this share of the node's CPU may use in each period.
func cpuQuota(percentTicks float64, period int64) (quota, outPeriod int64) {
	if period == 0 {
		period = 100000
	}
	if percentTicks <= 0 {
		return 0, 0
	}
	return max(1000, int64(percentTicks*float64(period)*float64(cpus()))), period
}

// cpus is how many cores the node has.
func cpus() int {
	entries, err := filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*")
	if err != nil || len(entries) == 0 {
		return 1
	}
	online := 0
	for _, e := range entries {
		body, err := os.ReadFile(filepath.Join(e, "online"))
		if err != nil || strings.TrimSpace(string(body)) == "1" { // cpu0 often has no such file: it cannot be switched off
			online++
		}
	}
	return max(1, online)
}
