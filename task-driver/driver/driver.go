// Package driver is the task driver "heteroflow" as Nomad sees it: configuration, admission of a task's
// accelerators, start, recovery, events, statistics and exec, over the runtimes docker and process. How a container or
// a process is run lives in the packages beside it; detecting cards and deciding where a job runs do not belong here.
package driver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/hclspec"
	"github.com/heteroflow/heteroflow/task-driver/access"
	"github.com/heteroflow/heteroflow/task-driver/docker"
	"github.com/heteroflow/heteroflow/task-driver/process"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/supervisor"
)

// Name is the driver's name in jobs. In 2.0 and 1.6 Nomad finds a plugin block by file name: install the binary
// under this name.
const Name = "heteroflow"

// Driver is the plugin.
type Driver struct {
	version  string
	log      hclog.Logger
	launcher supervisor.Launcher
	cgroups  string // root of the cgroup file system
	events   *events
	tool     share.Tool
	backends func(share.Host) []share.Backend // nil: all there are
	maker    string                           // this process, in the ledger of shares
	done     context.Context                  // ends with the process
	cancel   context.CancelFunc

	mu       sync.Mutex
	settings settings
	tasks    map[string]*task
	starting map[string]chan struct{} // ids in Start, which the sweep must not touch; closed when Start ends
	networks map[string]bool          // allocations for which this process made or found a network
	runtimes map[string]runtime
	manager  *share.Manager

	shareLook  shareLook
	dockerSeen atomic.Bool // the daemon has answered this process
	began      time.Time
}

var _ nomadplugin.Driver = (*Driver)(nil)

// Options are what the binary, or a test, gives the driver.
type Options struct {
	Version  string
	Log      hclog.Logger
	Launcher supervisor.Launcher // how supervisors are started
	Cgroups  string              // root of the cgroup file system; empty for /sys/fs/cgroup
	Tool     share.Tool          // runs makers' tools; nil for those of this machine
	// Backends make shares; nil for all that there are.
	Backends func(share.Host) []share.Backend
}

// New makes a driver with the default config.
func New(o Options) *Driver {
	ctx, cancel := context.WithCancel(context.Background())
	d := &Driver{
		version: o.Version, log: o.Log, launcher: o.Launcher, cgroups: o.Cgroups, tool: o.Tool, backends: o.Backends, maker: makerOf(self()), began: time.Now(), done: ctx, cancel: cancel,
		events: newEvents(), tasks: map[string]*task{}, starting: map[string]chan struct{}{}, networks: map[string]bool{},
	}
	if d.log == nil {
		d.log = hclog.NewNullLogger()
	}
	if d.tool == nil {
		d.tool = share.Exec{}
	}
	if d.cgroups == "" {
		d.cgroups = "/sys/fs/cgroup"
	}
	if err := d.Configure(nil); err != nil {
		d.log.Error("default config", "error", err)
	}
	return d
}

// Close ends what the driver watches. Tasks run on.
func (d *Driver) Close() { d.cancel() }

// Info names the plugin.
func (d *Driver) Info() nomadplugin.Info {
	return nomadplugin.Info{Name: Name, Version: d.version}
}

// ConfigSchema is the schema of the plugin's config block.
func (d *Driver) ConfigSchema() *hclspec.Spec { return configSchema() }

// TaskConfigSchema is the schema of a task's config block.
func (d *Driver) TaskConfigSchema() *hclspec.Spec { return taskConfigSchema() }

// Capabilities says what the driver can do. Isolation is by image for both runtimes, since Nomad knows one answer per
// driver: the process runtime turns the paths back into the host's.
func (d *Driver) Capabilities() *driverpb.DriverCapabilities {
	c := &driverpb.DriverCapabilities{
		SendSignals: true, Exec: true, FsIsolation: driverpb.DriverCapabilities_IMAGE, MountConfigs: driverpb.DriverCapabilities_ANY_MOUNTS,
		NetworkIsolationModes: []driverpb.NetworkIsolationSpec_NetworkIsolationMode{driverpb.NetworkIsolationSpec_HOST},
	}
	if _, err := d.containers(); err == nil { // see network.go
		c.NetworkIsolationModes = append(c.NetworkIsolationModes, driverpb.NetworkIsolationSpec_GROUP)
		c.MustCreateNetwork = true
	}
	return c
}

// Configure takes the plugin's config. Nothing is touched: no folder is made, no daemon asked.
func (d *Driver) Configure(msgpack []byte) error {
	var c Config
	if err := nomadplugin.DecodeConfig(msgpack, &c); err != nil {
		return fmt.Errorf("plugin config: %w", err)
	}
	if err := refusedDocker(msgpack); err != nil {
		return fmt.Errorf("plugin config: %w", err)
	}
	s, err := c.settle()
	if err != nil {
		return fmt.Errorf("plugin config: %w", err)
	}
	runtimes := map[string]runtime{}
	if s.Docker.Enabled {
		engine, err := docker.DialTLS(s.Docker.Endpoint, s.Docker.TLS)
		if err != nil {
			return fmt.Errorf("plugin config: %w", err)
		}
		probe := func(runtimes, cdiDirs []string) (access.Host, error) { return access.Probe("/", runtimes, cdiDirs) }
		runtimes[runtimeDocker] = &dockerRuntime{engine: engine, options: s.Docker, stateDir: s.StateDir, modelsDir: s.cache.Dir, cgroups: d.cgroups, procfs: "/proc", probe: probe, log: d.log,
			images: newImageKeeper(d.done, engine, s.Docker.imageDelay, clock.System(), d.log)}
	}
	if s.Process.Enabled {
		runtimes[runtimeProcess] = &processRuntime{options: s.Process, cgroups: d.cgroups, mode: process.Detect(d.cgroups)}
	}
	s.models = s.newModels(d.log)
	manager, err := d.newManager(s)
	if err != nil {
		return fmt.Errorf("plugin config: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.settings, d.runtimes, d.manager = s, runtimes, manager
	return nil
}

// current are the settings and runtimes at this moment.
func (d *Driver) current() (settings, map[string]runtime) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.settings, d.runtimes
}

// runtimeFor finds the runtime a task asks for.
func (d *Driver) runtimeFor(name string) (runtime, error) {
	_, all := d.current()
	if r, ok := all[name]; ok {
		return r, nil
	}
	switch name {
	case runtimeProcess:
		return nil, errors.New(`runtime "process" is switched off on this node: write process { enabled = true } in the plugin's config, or use runtime = "docker"`)
	case runtimeDocker:
		return nil, errors.New(`runtime "docker" is switched off on this node: write docker { enabled = true } in the plugin's config, or use runtime = "process"`)
	}
	return nil, fmt.Errorf("runtime %q is not known", name)
}

// get finds a task.
func (d *Driver) get(id string) (*task, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if t, ok := d.tasks[id]; ok {
		return t, nil
	}
	return nil, fmt.Errorf("%w: %s", nomadplugin.ErrTaskNotFound, id)
}

// asked is get for a call of Nomad, which therefore knows of the task.
func (d *Driver) asked(id string) (*task, error) {
	t, err := d.get(id)
	if err == nil {
		t.asked.Store(true)
	}
	return t, err
}

// Wait blocks until the task has ended.
func (d *Driver) Wait(ctx context.Context, id string) (*driverpb.ExitResult, error) {
	t, err := d.asked(id)
	if err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-t.ended:
	}
	exit := t.exit()
	if exit.Err != "" {
		return exitResult(exit), errors.New(exit.Err)
	}
	return exitResult(exit), nil
}

func exitResult(e supervisor.Exit) *driverpb.ExitResult {
	return &driverpb.ExitResult{ExitCode: int32(e.Code), Signal: int32(e.Signal), OomKilled: e.OOMKilled}
}

// Signal sends a signal to the task.
func (d *Driver) Signal(ctx context.Context, id, signal string) error {
	t, err := d.asked(id)
	if err != nil {
		return err
	}
	if _, err := signalNumber(signal); err != nil {
		return err
	}
	if t.hasEnded() {
		return errors.New("the task has ended, it takes no signal")
	}
	return t.runtime.signal(ctx, t, signal)
}

// Stop ends the task: the signal, the timeout, then a kill. It returns when the task has ended.
func (d *Driver) Stop(ctx context.Context, id string, timeout time.Duration, signal string) error {
	t, err := d.asked(id)
	if err != nil {
		return err
	}
	if t.hasEnded() {
		return nil
	}
	t.endProbes() // what is being stopped need not answer
	signal = t.config.stopSignal(signal)
	if _, err := signalNumber(signal); err != nil {
		d.log.Warn("stop signal is not known, SIGTERM is sent", "task_id", id, "signal", signal)
		signal = "SIGTERM"
	}
	if timeout > 0 {
		if err := t.runtime.stop(ctx, t, signal); err != nil && !t.hasEnded() {
			d.log.Warn("stop signal not sent, the task is killed", "task_id", id, "error", err)
			timeout = 0
		}
	}
	if timeout > 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		select {
		case <-t.ended:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
	}
	if err := t.runtime.kill(ctx, t); err != nil && !t.hasEnded() {
		return fmt.Errorf("kill task: %w", err)
	}
	select {
	case <-t.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Inspect says what is known of a task.
func (d *Driver) Inspect(ctx context.Context, id string) (*driverpb.TaskStatus, map[string]string, error) {
	t, err := d.asked(id)
	if err != nil {
		return nil, nil, err
	}
	attrs := t.runtime.inspect(ctx, t)
	if held := describeShares(t.record.Shares); held != "" {
		attrs["shares"] = held
	}
	if t.probes != nil {
		maps.Copy(attrs, t.probes.Attributes())
	}
	return t.status(), attrs, nil
}
