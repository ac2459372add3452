package driver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/task-driver/access"
	"github.com/heteroflow/heteroflow/task-driver/cgroup"
	"github.com/heteroflow/heteroflow/task-driver/docker"
	"github.com/heteroflow/heteroflow/task-driver/supervisor"
)

// dockerRuntime runs tasks as containers.
type dockerRuntime struct {
	engine    *docker.Engine
	options   *Docker
	stateDir  string
	modelsDir string
	cgroups   string // where the kernel shows control groups
	procfs    string // and processes
	images    *imageKeeper
	probe     func(runtimes, cdiDirs []string) (access.Host, error) // looks at the host
	log       hclog.Logger
}

var _ runtime = (*dockerRuntime)(nil)

func (r *dockerRuntime) check(p *plan) error {
	if _, err := p.share.image(p.tc); err != nil {
		return err
	}
	if err := p.checkGroup(); err != nil {
		return err
	}
	ref, err := p.share.image(p.tc)
	if err != nil {
		return err
	}
	if r.options.RequireDigest && !pinned(ref) {
		return fmt.Errorf(`config.image: %s is not pinned, which this node asks for: write name@sha256:… ("docker images --digests" shows it)`, ref)
	}
	_, err = r.container(p, build{})
	return err
}

func (r *dockerRuntime) prepare(ctx context.Context, p *plan, rec *record, event func(string)) (supervisor.Spec, error) {
	b, err := r.look(ctx, p)
	if err != nil {
		return supervisor.Spec{}, err
	}
	if b.image, err = p.share.image(p.tc); err != nil {
		return supervisor.Spec{}, err
	}
	image, err := r.fetch(ctx, p, rec, b.image, event)
	if err != nil {
		return supervisor.Spec{}, err
	}
	b.unset = unset(image, p.env)
	container, err := r.container(p, b)
	if err != nil {
		return supervisor.Spec{}, err
	}
	if err := errors.Join(r.makeFolders(p, container.Mounts), r.readyGroup(ctx, p)); err != nil {
		return supervisor.Spec{}, err
	}
	id, err := r.create(ctx, p, container)
	if err != nil {
		return supervisor.Spec{}, err
	}
	rec.Container, rec.Host = id, r.engine.Host()
	return r.spec(p.cfg.GetId(), rec, time.Time{})
}

// look works out the access by what the daemon said when its health was last looked at, since the answer takes it longer than
// to make a container. When that does not do it is asked: it may have got a runtime since.
func (r *dockerRuntime) look(ctx context.Context, p *plan) (build, error) {
	now := time.Now()
	info, err := r.engine.RecentInfo(ctx, 2*lookEvery)
	if err != nil {
		return build{}, err
	}
	given, err := r.access(p, info)
	if err != nil && info.At.Before(now) {
		if info, err = r.engine.Info(ctx); err != nil {
			return build{}, err
		}
		given, err = r.access(p, info)
	}
	return build{dataRoot: info.RootDir, access: given}, err
}

// access works out how the container gets to its cards on this node.
func (r *dockerRuntime) access(p *plan, info docker.Info) (access.Access, error) {
	if want := p.tc.OCIRuntime; want != "" && !slices.Contains(info.Runtimes, want) {
		return access.Access{}, fmt.Errorf("config.oci_runtime: the Docker daemon has no runtime %q: write one of %s", want, strings.Join(info.Runtimes, ", "))
	}
	host, err := r.probe(info.Runtimes, info.CDIDirs)
	if err != nil {
		r.log.Warn("CDI specifications left out", "error", err)
	}
	host.Names = r.options.runtimeNames()
	return access.Plan(host, p.accessCards(), p.tc.OCIRuntime)
}

// create makes the container. One that has ended and holds its name is removed when it is ours: an earlier start whose
// end nobody saw.
func (r *dockerRuntime) create(ctx context.Context, p *plan, c docker.Container) (string, error) {
	for attempt := 0; ; attempt++ {
		id, err := r.engine.Create(ctx, c)
		if !errors.Is(err, docker.ErrNameInUse) || attempt >= p.tc.NameAttempts {
			return id, err
		}
		found, listErr := r.engine.List(ctx, docker.LabelTask, p.cfg.GetId())
		if listErr != nil {
			return "", errors.Join(err, listErr)
		}
		removed := false
		for _, f := range found {
			if f.StateDir == r.stateDir && !f.Running {
				removed, err = true, errors.Join(err, r.engine.Remove(ctx, f.ID))
			}
		}
		if !removed {
			return "", err
		}
	}
}

func (r *dockerRuntime) spec(taskID string, rec *record, since time.Time) (supervisor.Spec, error) {
	body, err := json.Marshal(docker.Follow{
		Host: cmp.Or(rec.Host, r.engine.Host()), Container: rec.Container, Since: since, Mark: r.mark(taskID),
		TLS: r.options.TLS, NoLogs: r.options.NoLogs,
	})
	if err != nil {
		return supervisor.Spec{}, fmt.Errorf("encode container: %w", err)
	}
	return supervisor.Spec{Kind: runtimeDocker, Body: body}, nil
}

// mark is the file that keeps how far a task's output was written.
func (r *dockerRuntime) mark(taskID string) string {
	return filepath.Join(r.taskDir(taskID), docker.MarkFile)
}

// taskDir is the task's state folder.
func (r *dockerRuntime) taskDir(taskID string) string {
	return supervisor.Dir(filepath.Join(r.stateDir, "tasks"), taskID)
}

// makeFolders makes the folders below the task's own that a bind mount names, as the daemon does for absolute paths.
func (r *dockerRuntime) makeFolders(p *plan, mounts []docker.Mount) error {
	for _, m := range mounts {
		if m.Type != "bind" || !within(p.cfg.GetAllocDir(), m.Source) {
			continue
		}
		if _, err := os.Lstat(m.Source); err == nil {
			continue
		}
		if err := os.MkdirAll(m.Source, 0o777); err != nil {
			return fmt.Errorf("make folder for mount %s: %w", m.Target, err)
		}
	}
	return nil
}

// network tells the container's own address, for services that ask for it.
func (r *dockerRuntime) network(ctx context.Context, p *plan, rec *record) *driverpb.NetworkOverride {
	state, err := r.engine.State(ctx, rec.Container)
	if err != nil || state.IP == "" {
		return nil
	}
	ports := map[string]int32{}
	for _, label := range portLabels(p.tc) {
		for _, port := range p.cfg.GetResources().GetPorts() {
			if port.GetLabel() == label {
				ports[label] = int32(containerPort(port, p.tc.PortMap))
			}
		}
	}
	addr := state.IP
	if p.tc.AdvertiseIPv6 && state.IPv6 != "" {
		addr = state.IPv6
	}
	return &driverpb.NetworkOverride{PortMap: ports, Addr: addr}
}

func (r *dockerRuntime) signal(ctx context.Context, t *task, signal string) error {
	return r.engine.Signal(ctx, t.record.Container, signal)
}

func (r *dockerRuntime) stop(ctx context.Context, t *task, signal string) error {
	err := r.engine.Signal(ctx, t.record.Container, signal)
	if errors.Is(err, docker.ErrNotRunning) {
		return nil // it has just ended, its supervisor is about to say so
	}
	return err
}

func (r *dockerRuntime) kill(ctx context.Context, t *task) error { return r.stop(ctx, t, "SIGKILL") }

// orphaned takes a container over: it does not depend on its supervisor. Output of the moments without one is read
// from the daemon's own copy.
func (r *dockerRuntime) orphaned(ctx context.Context, t *task) (*supervisor.Spec, *supervisor.Exit, error) {
	rec := t.record
	if rec.Container == "" {
		return nil, nil, errors.New("the handle names no container")
	}
	state, err := r.engine.State(ctx, rec.Container)
	switch {
	case errors.Is(err, docker.ErrNotFound):
		return nil, nil, fmt.Errorf("the container is gone: %w", errNothingLeft)
	case err != nil:
		return nil, nil, err
	case state.TaskID != t.id:
		return nil, nil, fmt.Errorf("container %.12s belongs to another task", rec.Container)
	case !state.Running:
		exit := docker.ExitOf(state)
		return nil, &exit, nil
	}
	since := docker.ReadMark(r.mark(t.id))
	if since.IsZero() {
		since = time.Now()
	}
	spec, err := r.spec(t.id, &rec, since)
	return &spec, nil, err
}

// clean removes every container of the task. One with another label of ours, or none, is foreign, unless the task's own handle
// names it: images hand their labels on, and two drivers may have one daemon.
func (r *dockerRuntime) clean(ctx context.Context, taskID string, rec *record) error {
	found, err := r.engine.List(ctx, docker.LabelTask, taskID)
	if err != nil {
		var down *docker.UnreachableError
		if errors.As(err, &down) && rec.Container == "" {
			return nil // nothing of ours is known there; the sweep looks again when the daemon is back
		}
		return err
	}
	remove := r.engine.Remove
	if r.options.keepEnded && !rec.StartedAt.IsZero() { // one that was never started shows nothing
		remove = r.end
	}
	var errs []error
	for _, c := range found {
		if c.StateDir == r.stateDir || c.ID == rec.Container {
			errs = append(errs, remove(ctx, c.ID))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	r.images.leave(taskID)
	return nil
}

// end kills a container and leaves it there.
func (r *dockerRuntime) end(ctx context.Context, id string) error {
	err := r.engine.Signal(ctx, id, "SIGKILL")
	if err == nil {
		err = r.engine.WaitExit(ctx, id)
	}
	if errors.Is(err, docker.ErrNotRunning) || errors.Is(err, docker.ErrNotFound) {
		return nil
	}
	return err
}

func (r *dockerRuntime) exec(ctx context.Context, t *task, s *nomadplugin.ExecStream) (*driverpb.ExitResult, error) {
	ended, stop := context.WithCancel(ctx)
	defer stop()
	sizes := sizesOf(ended, s, func(size nomadplugin.TerminalSize) docker.Size { return docker.Size(size) })
	code, err := r.engine.Exec(ctx, t.record.Container, docker.ExecSpec{Command: s.Command, TTY: s.TTY}, s.Stdin, s.Stdout, s.Stderr, sizes)
	if err != nil {
		return nil, err
	}
	return &driverpb.ExitResult{ExitCode: int32(code)}, nil
}

func (r *dockerRuntime) stats(ctx context.Context, t *task, m *meter) (*driverpb.TaskStats, error) {
	if m.use == nil {
		var err error
		if m.use, err = r.counters(ctx, t.record.Container); err != nil {
			return nil, err
		}
	}
	use, err := m.use(ctx)
	if err != nil {
		return nil, err
	}
	at := use.At
	if at.IsZero() {
		at = time.Now()
	}
	const second = float64(time.Second)
	rate := m.read("", at, float64(use.CPUTotalNS)/second, float64(use.CPUUserNS)/second, float64(use.CPUSysNS)/second)
	usage := &driverpb.TaskResourceUsage{Cpu: cpuUsage(rate, m.mhz), Memory: containerMemory(use)}
	usage.Cpu.ThrottledPeriods, usage.Cpu.ThrottledTime = use.ThrottledPeriods, use.ThrottledNS
	usage.Cpu.MeasuredFields = append(usage.Cpu.MeasuredFields, driverpb.CPUUsage_THROTTLED_PERIODS, driverpb.CPUUsage_THROTTLED_TIME)
	return taskStats(t.id, at, usage, nil), nil
}

// counters are what reads the container's use: the kernel's files, or the daemon where they are not to be had, as when it is on
// another machine or this process sees no control groups but its own.
func (r *dockerRuntime) counters(ctx context.Context, id string) (func(context.Context) (cgroup.Use, error), error) {
	state, err := r.engine.State(ctx, id)
	if err != nil {
		return nil, err
	}
	if state.PID <= 0 {
		return nil, fmt.Errorf("container %.12s does not run", id)
	}
	group, err := cgroup.Of(r.cgroups, r.procfs, state.PID, id)
	if err != nil {
		r.log.Debug("statistics are asked of the daemon", "container", id, "error", err)
		return func(ctx context.Context) (cgroup.Use, error) { return r.engine.Use(ctx, id) }, nil
	}
	return func(context.Context) (cgroup.Use, error) { return group.Read() }, nil
}

func containerMemory(use cgroup.Use) *driverpb.MemoryUsage {
	m := &driverpb.MemoryUsage{Usage: use.MemoryUsage, MeasuredFields: []driverpb.MemoryUsage_Fields{driverpb.MemoryUsage_USAGE}}
	tell := func(field driverpb.MemoryUsage_Fields, to, from *uint64) {
		if from != nil {
			*to = *from
			m.MeasuredFields = append(m.MeasuredFields, field)
		}
	}
	tell(driverpb.MemoryUsage_RSS, &m.Rss, use.MemoryRSS)
	tell(driverpb.MemoryUsage_CACHE, &m.Cache, use.MemoryCache)
	tell(driverpb.MemoryUsage_SWAP, &m.Swap, use.MemorySwap)
	tell(driverpb.MemoryUsage_MAX_USAGE, &m.MaxUsage, use.MemoryMax)
	tell(driverpb.MemoryUsage_KERNEL_USAGE, &m.KernelUsage, use.KernelUsage)
	tell(driverpb.MemoryUsage_KERNEL_MAX_USAGE, &m.KernelMaxUsage, use.KernelMax)
	return m
}

func (r *dockerRuntime) inspect(ctx context.Context, t *task) map[string]string {
	out := map[string]string{
		"runtime": runtimeDocker, "container_id": t.record.Container, "cards": strings.Join(t.record.Cards, ","),
	}
	if state, err := r.engine.State(ctx, t.record.Container); err == nil {
		out["running"], out["oom_killed"], out["image"] = strconv.FormatBool(state.Running), strconv.FormatBool(state.OOMKilled), state.Image
	}
	return out
}
