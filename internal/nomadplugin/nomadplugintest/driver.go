//go:build unix

package nomadplugintest

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/basepb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/host"
)

// Option changes how TestDriver uses the task.
type Option func(*driverRunner)

// WithExec sets the command that is run beside the task and the text it prints. An empty command leaves exec out.
func WithExec(command []string, prints string) Option {
	return func(r *driverRunner) { r.exec, r.execPrints = command, prints }
}

// WithEnv adds to the environment of the task, device environment included.
func WithEnv(env, deviceEnv map[string]string) Option {
	return func(r *driverRunner) { r.env, r.deviceEnv = env, deviceEnv }
}

// WithOutput sets text that the task prints soon after its start; it must arrive in the log.
func WithOutput(text string) Option { return func(r *driverRunner) { r.prints = text } }

type driverRunner struct {
	runner
	task           map[string]any
	exec           []string
	execPrints     string
	env, deviceEnv map[string]string
	prints         string
}

// TestDriver drives a task driver binary. taskConfig describes a task that runs until it is stopped and ends at
// SIGTERM.
func TestDriver(t *testing.T, binary string, config, taskConfig map[string]any, opts ...Option) {
	r := driverRunner{
		runner: runner{binary: binary, config: config, kind: basepb.PluginType_DRIVER},
		task:   taskConfig, exec: []string{"/bin/echo", "hello"}, execPrints: "hello",
	}
	for _, o := range opts {
		o(&r)
	}
	t.Run("launches", r.testLaunches)
	t.Run("fingerprint", func(t *testing.T) { healthy(t, r.configured(t)) })
	t.Run("task life", r.testLife)
	t.Run("kill timeout", r.testForce)
	t.Run("recovery in a new process", r.testRecover)
	t.Run("reattachment", r.testReattach)
	t.Run("unknown task", r.testUnknown)
}

// healthy waits for the first health and leaves the stream open.
func healthy(t *testing.T, p *host.Plugin) {
	t.Helper()
	if _, err := p.DriverClient().Init(within(t, callTimeout), &driverpb.InitRequest{}); err != nil {
		t.Errorf("init: %v", err)
	}
	stream, err := p.DriverClient().Fingerprint(within(t, firstMessage), &driverpb.FingerprintRequest{})
	if err != nil {
		t.Fatalf("fingerprint: %v", err)
	}
	for {
		f, err := stream.Recv()
		if err != nil {
			t.Fatalf("driver did not become healthy: %v", err)
		}
		if f.Health == driverpb.FingerprintResponse_HEALTHY {
			return
		}
		t.Logf("driver is %s: %s", f.Health, f.HealthDescription)
	}
}

func (r driverRunner) testLife(t *testing.T) {
	p := r.configured(t)
	healthy(t, p)
	client := p.DriverClient()
	if _, err := client.Capabilities(within(t, callTimeout), &driverpb.CapabilitiesRequest{}); err != nil {
		t.Fatalf("capabilities: %v", err)
	}
	a := r.newAlloc(t, p, "aaaaaaaa")
	id := a.cfg.Id
	h := r.start(t, p, a)
	first, second := waiting(t, p, id), waiting(t, p, id)
	r.running(t, p, a)
	if _, err := client.RecoverTask(within(t, callTimeout), &driverpb.RecoverTaskRequest{Handle: h}); err != nil {
		t.Errorf("recover of a task that is known: %v", err)
	}
	stop := &driverpb.StopTaskRequest{TaskId: id, Timeout: durationpb.New(10 * time.Second), Signal: "SIGTERM"}
	if _, err := client.StopTask(within(t, firstMessage), stop); err != nil {
		t.Fatalf("stop: %v", err)
	}
	ended(t, first)
	ended(t, second)
	ended(t, waiting(t, p, id)) // after the end it still answers
	status, err := client.InspectTask(within(t, callTimeout), &driverpb.InspectTaskRequest{TaskId: id})
	if err != nil || status.Task.State != driverpb.TaskState_EXITED {
		t.Errorf("inspect after the end: %v, %v", status, err)
	}
	destroy(t, p, id)
	destroy(t, p, id) // twice, as after a lost answer
}

// running checks everything a client does with a task that runs.
func (r driverRunner) running(t *testing.T, p *host.Plugin, a *alloc) {
	t.Helper()
	client, id := p.DriverClient(), a.cfg.Id
	status, err := client.InspectTask(within(t, callTimeout), &driverpb.InspectTaskRequest{TaskId: id})
	if err != nil {
		t.Errorf("inspect: %v", err)
	} else if status.GetTask().GetState() != driverpb.TaskState_RUNNING || status.Task.StartedAt == nil || status.Task.CompletedAt == nil {
		t.Errorf("inspect says %v, want a running task with both times", status)
	}
	stats, err := client.TaskStats(within(t, firstMessage), &driverpb.TaskStatsRequest{TaskId: id, CollectionInterval: durationpb.New(time.Second)})
	if err != nil {
		t.Fatalf("stats: %v", err)
	}
	if s, err := stats.Recv(); err != nil {
		t.Errorf("stats: %v", err)
	} else if !s.GetStats().GetTimestamp().IsValid() || s.GetStats().GetAggResourceUsage() == nil {
		t.Errorf("stats without time or usage: %v", s)
	}
	if _, err := client.SignalTask(within(t, callTimeout), &driverpb.SignalTaskRequest{TaskId: id, Signal: "SIGNOSUCH"}); err == nil {
		t.Error("an unknown signal was taken")
	}
	if len(r.exec) > 0 {
		r.execOnce(t, p, id)
		r.execStream(t, p, id)
	}
	if r.prints != "" {
		eventually(t, "the task's output", func() bool { return strings.Contains(a.output(), r.prints) })
	}
}

func (r driverRunner) execOnce(t *testing.T, p *host.Plugin, id string) {
	t.Helper()
	resp, err := p.DriverClient().ExecTask(within(t, firstMessage), &driverpb.ExecTaskRequest{TaskId: id, Command: r.exec, Timeout: durationpb.New(10 * time.Second)})
	if err != nil {
		t.Errorf("exec: %v", err)
		return
	}
	if resp.GetResult().GetExitCode() != 0 || !strings.Contains(string(resp.Stdout), r.execPrints) {
		t.Errorf("exec printed %q and ended with %v", resp.Stdout, resp.Result)
	}
}

func (r driverRunner) execStream(t *testing.T, p *host.Plugin, id string) {
	t.Helper()
	stream, err := p.DriverClient().ExecTaskStreaming(within(t, firstMessage))
	if err != nil {
		t.Errorf("exec stream: %v", err)
		return
	}
	for _, f := range []*driverpb.ExecTaskStreamingRequest{
		{Setup: &driverpb.ExecTaskStreamingRequest_Setup{TaskId: id, Command: r.exec}},
		{Stdin: &driverpb.ExecTaskStreamingIOOperation{Close: true}},
	} {
		if err := stream.Send(f); err != nil {
			t.Errorf("exec stream: %v", err)
			return
		}
	}
	var out strings.Builder
	for {
		f, err := stream.Recv()
		if err != nil {
			t.Errorf("exec stream ended without its last frame: %v", err)
			return
		}
		out.Write(f.GetStdout().GetData())
		if f.Exited {
			if f.GetResult().GetExitCode() != 0 || !strings.Contains(out.String(), r.execPrints) {
				t.Errorf("exec stream printed %q and ended with %v", out.String(), f.Result)
			}
			return
		}
	}
}

// testForce destroys a running task, as a client does after a failed restore.
func (r driverRunner) testForce(t *testing.T) {
	p := r.configured(t)
	healthy(t, p)
	a := r.newAlloc(t, p, "bbbbbbbb")
	r.start(t, p, a)
	destroy(t, p, a.cfg.Id)
	if _, err := p.DriverClient().InspectTask(within(t, callTimeout), &driverpb.InspectTaskRequest{TaskId: a.cfg.Id}); err == nil {
		t.Error("the task is still known after a forced destroy")
	}
}

// testRecover kills the driver under a running task. The task must live on and be found by the next process.
func (r driverRunner) testRecover(t *testing.T) {
	p := r.configured(t)
	healthy(t, p)
	a := r.newAlloc(t, p, "cccccccc")
	h := r.start(t, p, a)
	crash(t, p)

	next := r.configured(t)
	healthy(t, next)
	if _, err := next.DriverClient().RecoverTask(within(t, firstMessage), &driverpb.RecoverTaskRequest{Handle: h}); err != nil {
		t.Fatalf("recover: %v", err)
	}
	done := waiting(t, next, a.cfg.Id)
	r.running(t, next, a)
	select {
	case resp := <-done:
		t.Fatalf("the task ended with the driver: %v", resp)
	default:
	}
	stop := &driverpb.StopTaskRequest{TaskId: a.cfg.Id, Timeout: durationpb.New(10 * time.Second)}
	if _, err := next.DriverClient().StopTask(within(t, firstMessage), stop); err != nil {
		t.Fatalf("stop: %v", err)
	}
	ended(t, done)
	destroy(t, next, a.cfg.Id)
	if _, err := next.DriverClient().RecoverTask(within(t, callTimeout), &driverpb.RecoverTaskRequest{Handle: h}); err == nil {
		t.Error("a destroyed task was recovered")
	}
}

// testReattach does what an agent does that was restarted beside its driver: no configuration, then recovery.
func (r driverRunner) testReattach(t *testing.T) {
	p := r.configured(t)
	healthy(t, p)
	a := r.newAlloc(t, p, "dddddddd")
	h := r.start(t, p, a)
	again := reattached(t, p)
	if _, err := again.Base().PluginInfo(within(t, callTimeout), &basepb.PluginInfoRequest{}); err != nil {
		t.Fatalf("plugin info: %v", err)
	}
	healthy(t, again)
	if _, err := again.DriverClient().RecoverTask(within(t, callTimeout), &driverpb.RecoverTaskRequest{Handle: h}); err != nil {
		t.Fatalf("recover: %v", err)
	}
	r.running(t, again, a)
	destroy(t, again, a.cfg.Id)
}

func (r driverRunner) testUnknown(t *testing.T) {
	p := r.configured(t)
	healthy(t, p)
	client := p.DriverClient()
	const id = "no/such/task"
	if _, err := client.StopTask(within(t, callTimeout), &driverpb.StopTaskRequest{TaskId: id, Timeout: durationpb.New(time.Second)}); err != nil {
		t.Errorf("stop of an unknown task: %v, want OK", err)
	}
	destroy(t, p, id)
	if _, err := client.WaitTask(within(t, callTimeout), &driverpb.WaitTaskRequest{TaskId: id}); err == nil {
		t.Error("wait for an unknown task answered")
	} else if status.Code(err) == codes.DeadlineExceeded {
		t.Error("wait for an unknown task blocks")
	}
	if _, err := client.SignalTask(within(t, callTimeout), &driverpb.SignalTaskRequest{TaskId: id, Signal: "SIGHUP"}); err == nil {
		t.Error("signal to an unknown task was taken")
	}
	stream, err := client.TaskStats(within(t, callTimeout), &driverpb.TaskStatsRequest{TaskId: id})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err == nil || len(status.Convert(err).Details()) == 0 {
		t.Errorf("stats of an unknown task: %v, want an error that says not to ask again", err)
	}
}
