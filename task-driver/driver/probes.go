package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/hclspec"
	"github.com/heteroflow/heteroflow/task-driver/probe"
)

// ProbeConfig is a readiness or a liveness block of a task.
type ProbeConfig struct {
	Type      string   `codec:"type"`
	Port      string   `codec:"port"`
	Path      string   `codec:"path"`
	Command   []string `codec:"command"`
	Interval  string   `codec:"interval"`
	Timeout   string   `codec:"timeout"`
	Failures  int      `codec:"failures"`
	Grace     string   `codec:"grace"`
	OnFailure string   `codec:"on_failure"`
}

// What becomes of a task that should be ended.
const (
	onFailureRestart = "restart" // it fails, and its restart policy decides
	onFailureReport  = "report"  // it runs on, and an event says so
)

const (
	defaultGrace = 30 * time.Minute // models of hundreds of gigabytes come from slow disks
	leastEvery   = time.Second
	// watchdogStop is how long a task that is ended by its watchdog has for it: it does not answer as it is.
	watchdogStop = 10 * time.Second
)

// probeSchema is the schema of ProbeConfig.
func probeSchema() *hclspec.Spec {
	text := func(name string) *hclspec.Spec { return nomadplugin.Attr(name, "string", false) }
	return nomadplugin.Object(nomadplugin.Fields{
		"type": nomadplugin.OptString("type", probe.HTTP), "port": text("port"), "path": nomadplugin.OptString("path", "/health"),
		"command": nomadplugin.Attr("command", "list(string)", false), "interval": nomadplugin.OptString("interval", "10s"),
		"timeout": nomadplugin.OptString("timeout", "5s"), "failures": nomadplugin.OptNumber("failures", 3),
		"grace": text("grace"), "on_failure": text("on_failure"),
	})
}

// probes turns the blocks of a task into a plan; nil without any. Errors name the key below config.
func (tc TaskConfig) probes() (*probe.Plan, error) {
	if tc.Readiness == nil && tc.Liveness == nil {
		return nil, nil
	}
	plan := &probe.Plan{Grace: defaultGrace}
	var problems []error
	grace, action := "", ""
	for _, b := range []struct {
		key  string
		from *ProbeConfig
		to   **probe.Check
	}{{"readiness", tc.Readiness, &plan.Ready}, {"liveness", tc.Liveness, &plan.Live}} {
		if b.from == nil {
			continue
		}
		c, err := b.from.check(tc)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", b.key, err))
		}
		*b.to = &c
		grace, action = cmp.Or(grace, b.from.Grace), cmp.Or(action, b.from.OnFailure)
		if b.from.Grace != "" && b.from.Grace != grace || b.from.OnFailure != "" && b.from.OnFailure != action {
			problems = append(problems, fmt.Errorf("%s: grace and on_failure are of the task: write each in one of the blocks", b.key))
		}
	}
	if grace != "" {
		d, err := time.ParseDuration(grace)
		if err != nil || d < 0 {
			problems = append(problems, fmt.Errorf(`grace: %q is not a duration: write how long the task may take to be ready, for example "45m"`, grace))
		}
		plan.Grace = d
	}
	if action != "" && action != onFailureRestart && action != onFailureReport {
		problems = append(problems, fmt.Errorf("on_failure: %q is not known: write restart or report", action))
	}
	plan.Report = action == onFailureReport
	return plan, errors.Join(problems...)
}

// check reads one block.
func (c ProbeConfig) check(tc TaskConfig) (probe.Check, error) {
	out := probe.Check{Type: cmp.Or(c.Type, probe.HTTP), Port: c.Port, Path: cmp.Or(c.Path, "/health"), Command: c.Command, Failures: c.Failures}
	var problems []error
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	switch out.Type {
	case probe.HTTP, probe.HTTPS, probe.TCP:
		if c.Port == "" {
			bad(`port is missing: write the label of a port, or its number in the task`)
		}
		if tc.Runtime == runtimeDocker && tc.NetworkMode == "none" {
			bad(`a container without network answers nobody: write type = "exec" with a command`)
		}
		if !strings.HasPrefix(out.Path, "/") || strings.ContainsAny(out.Path, " \r\n") {
			bad("path %q is none: write for example /health", out.Path)
		}
		out.Command = nil
	case probe.Exec:
		if len(c.Command) == 0 || c.Command[0] == "" {
			bad(`command is missing: write for example command = ["/bin/check"]`)
		}
		out.Port, out.Path = "", ""
	case probe.Image:
		if tc.Runtime == runtimeProcess || tc.HealthChecks != nil && tc.HealthChecks.Disable {
			bad(`type "image" asks the HEALTHCHECK of an image, and there is none: write http, https, tcp or exec`)
		}
		out.Port, out.Path, out.Command = "", "", nil
	default:
		bad("type %q is not known: write http, https, tcp, exec or image", c.Type)
	}
	duration := func(key, text string, to *time.Duration) {
		d, err := time.ParseDuration(text)
		if err != nil || d < leastEvery {
			bad(`%s %q is no duration of a second or more: write for example "10s"`, key, text)
		}
		*to = d
	}
	duration("interval", cmp.Or(c.Interval, "10s"), &out.Interval)
	duration("timeout", cmp.Or(c.Timeout, "5s"), &out.Timeout)
	if out.Failures < 1 {
		bad("failures %d is less than 1: write after how many failures the answer counts", c.Failures)
	}
	return out, errors.Join(problems...)
}

// checkPorts holds the ports of the checks against those that the task has.
func (p *plan) checkPorts() error {
	plan, err := p.tc.probes()
	if err != nil || plan == nil {
		return err
	}
	p.probes = plan
	for key, c := range map[string]*probe.Check{"readiness": plan.Ready, "liveness": plan.Live} {
		if c == nil || c.Port == "" || isPort(c.Port) {
			continue
		}
		var labels []string
		for _, port := range p.cfg.GetResources().GetPorts() {
			labels = append(labels, port.GetLabel())
		}
		if !slices.Contains(labels, c.Port) {
			return fmt.Errorf("config.%s: the group's network has no port %q (it has: %s): add it there, or write its number in the task", key, c.Port, strings.Join(labels, ", "))
		}
	}
	return nil
}

func isPort(text string) bool {
	n, err := strconv.Atoi(text)
	return err == nil && n > 0 && n < 65536
}

// startProbes watches a task until it ends, or is asked to.
func (d *Driver) startProbes(t *task) {
	if t.record.Probes == nil {
		return
	}
	ctx, cancel := context.WithCancel(d.done)
	t.endProbes = cancel
	t.probes = probe.New(*t.record.Probes, t.record.StartedAt, probed{t}, func(text string, notes map[string]string) {
		d.events.emit(t.cfg, text, notes)
	})
	go func() {
		select {
		case <-t.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	go func() {
		defer cancel()
		if why := t.probes.Run(ctx); why != "" {
			d.condemn(t, why)
		}
	}()
}

// condemn ends a task that does not answer as it should. It has failed, whatever its exit code, so that Nomad's restart
// policy decides what becomes of it.
func (d *Driver) condemn(t *task, why string) {
	if t.hasEnded() {
		return
	}
	t.mu.Lock()
	t.condemned = "the watchdog ended the task: it is " + why
	t.mu.Unlock()
	d.events.emit(t.cfg, "The task is ended, its restart policy decides what follows: it is "+why, nil)
	d.log.Warn("task ended by its watchdog", "task_id", t.id, "reason", why)
	if err := d.Stop(d.done, t.id, watchdogStop, ""); err != nil && d.done.Err() == nil && !t.hasEnded() {
		d.log.Error("task not ended by its watchdog", "task_id", t.id, "error", err)
	}
}

// probed is a task as its probes see it.
type probed struct{ t *task }

var _ probe.Target = probed{}

// Address is that of a label as Nomad gave it out, or of a number in the task.
func (p probed) Address(ctx context.Context, port string) (string, error) {
	for _, given := range p.t.cfg.GetResources().GetPorts() {
		if given.GetLabel() == port {
			if addr := groupAddress(p.t.cfg, p.t.record.GroupNetwork); addr != "" {
				return net.JoinHostPort(addr, strconv.Itoa(containerPort(given, nil))), nil
			}
			return net.JoinHostPort(reachable(given), strconv.Itoa(int(given.GetValue()))), nil
		}
	}
	host := "127.0.0.1"
	if r, ok := p.t.runtime.(interface {
		ownAddress(ctx context.Context, t *task) (string, error)
	}); ok {
		var err error
		if host, err = r.ownAddress(ctx, p.t); err != nil {
			return "", err
		}
	}
	return net.JoinHostPort(host, port), nil
}

// groupAddress is that of the group's network on this node, for a task that is in it; empty for others.
func groupAddress(cfg *driverpb.TaskConfig, in bool) string {
	if !in {
		return ""
	}
	return cfg.GetNetworkIsolationSpec().GetHostsConfig().GetAddress()
}

// reachable is the address of the host at which a port is reached from the host.
func reachable(port *driverpb.PortMapping) string {
	switch ip := port.GetHostIp(); ip {
	case "", "0.0.0.0", "::":
		return "127.0.0.1"
	default:
		return ip
	}
}

// Exec runs a command in the task.
func (p probed) Exec(ctx context.Context, command []string) (int, error) {
	var out capped
	res, err := p.t.runtime.exec(ctx, p.t, &nomadplugin.ExecStream{Command: command, Stdout: &out, Stderr: &out})
	if err != nil {
		return 0, err
	}
	return int(res.GetExitCode()), nil
}

// Health asks the runtime.
func (p probed) Health(ctx context.Context) error {
	r, ok := p.t.runtime.(*dockerRuntime)
	if !ok {
		return errors.New("a process has no HEALTHCHECK")
	}
	state, err := r.engine.State(ctx, p.t.record.Container)
	switch {
	case err != nil:
		return err
	case state.Health == "":
		return errors.New("the image has no HEALTHCHECK")
	case state.Health != "healthy":
		return fmt.Errorf("its HEALTHCHECK says %s%s", state.Health, probe.FirstLine(state.HealthOutput))
	}
	return nil
}

// ownAddress is where the container itself is reached from the host.
func (r *dockerRuntime) ownAddress(ctx context.Context, t *task) (string, error) {
	state, err := r.engine.State(ctx, t.record.Container)
	switch {
	case err != nil:
		return "", err
	case state.IP == "" && t.record.HostNetwork:
		return "127.0.0.1", nil
	case state.IP == "" && groupAddress(t.cfg, t.record.GroupNetwork) != "":
		return groupAddress(t.cfg, t.record.GroupNetwork), nil
	case state.IP == "":
		return "", errors.New("the container has no address of its own: name a published port by its label")
	}
	return state.IP, nil
}
