package nomadplugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
)

func dialDriver(t *testing.T, d Driver) driverpb.DriverClient {
	t.Helper()
	return driverpb.NewDriverClient(connect(t, func(s *grpc.Server) {
		driverpb.RegisterDriverServer(s, &driverServer{plugin: d, log: hclog.NewNullLogger(), pause: noPause})
	}))
}

func TestStart_CompletesTheHandle(t *testing.T) {
	t.Parallel()
	client := dialDriver(t, &fakeDriver{start: func(*driverpb.TaskConfig) (*driverpb.TaskHandle, error) { return nil, nil }})
	resp, err := client.StartTask(testContext(t), &driverpb.StartTaskRequest{Task: &driverpb.TaskConfig{Id: "a/b/c"}})
	if err != nil {
		t.Fatal(err)
	}
	if resp.GetHandle().GetConfig().GetId() != "a/b/c" || resp.Handle.Version == 0 || resp.Handle.State != driverpb.TaskState_RUNNING {
		t.Errorf("handle: %v", resp.Handle)
	}
	if _, err := client.StartTask(testContext(t), &driverpb.StartTaskRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("start without a task: %v", err)
	}
}

func TestStart_RecoverableDetail(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		err  error
		want bool
	}{
		"marked":            {Recoverable(errors.New("registry is away")), true},
		"marked and wraped": {fmt.Errorf("start: %w", Recoverable(errors.New("registry is away"))), true},
		"plain":             {errors.New("bad image"), false},
		"unsupported":       {ErrUnsupported, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := dialDriver(t, &fakeDriver{start: func(*driverpb.TaskConfig) (*driverpb.TaskHandle, error) { return nil, tc.err }})
			_, err := client.StartTask(testContext(t), &driverpb.StartTaskRequest{Task: &driverpb.TaskConfig{Id: "x"}})
			if err == nil || IsRecoverable(err) != tc.want {
				t.Fatalf("got %v, recoverable %t, want %t", err, IsRecoverable(err), tc.want)
			}
			if !tc.want {
				return
			}
			st := status.Convert(err)
			const url = "type.googleapis.com/hashicorp.nomad.plugins.shared.structs.RecoverableError"
			if st.Code() != codes.FailedPrecondition || st.Proto().Details[0].TypeUrl != url {
				t.Errorf("status %v", st.Proto())
			}
		})
	}
	if Recoverable(nil) != nil || Fatal(nil) != nil {
		t.Error("nil must stay nil")
	}
}

func TestStopAndDestroy_UnknownTaskIsOK(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	client := dialDriver(t, &fakeDriver{err: fmt.Errorf("task x: %w", ErrTaskNotFound)})
	if _, err := client.StopTask(ctx, &driverpb.StopTaskRequest{TaskId: "x"}); err != nil {
		t.Errorf("stop: %v", err)
	}
	if _, err := client.DestroyTask(ctx, &driverpb.DestroyTaskRequest{TaskId: "x"}); err != nil {
		t.Errorf("destroy: %v", err)
	}
	if _, err := client.SignalTask(ctx, &driverpb.SignalTaskRequest{TaskId: "x"}); status.Code(err) != codes.NotFound {
		t.Errorf("signal: %v", err)
	}
	other := dialDriver(t, &fakeDriver{err: errors.New("busy")})
	if _, err := other.StopTask(ctx, &driverpb.StopTaskRequest{TaskId: "x"}); err == nil {
		t.Error("stop hid an error")
	}
}

func TestNilAnswersAreFilled(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	client := dialDriver(t, &fakeDriver{
		wait: func(context.Context) (*driverpb.ExitResult, error) { return nil, errors.New("lost it") },
		stats: func(ctx context.Context, _ time.Duration, send func(*driverpb.TaskStats) error) error {
			return send(&driverpb.TaskStats{})
		},
	})
	if r, err := client.WaitTask(ctx, &driverpb.WaitTaskRequest{}); err != nil || r.Result == nil || r.Err != "lost it" {
		t.Errorf("wait: %v, %v", r, err)
	}
	if r, err := client.ExecTask(ctx, &driverpb.ExecTaskRequest{Command: []string{"x"}}); err != nil || r.Result == nil || string(r.Stdout) != "out" {
		t.Errorf("exec: %v, %v", r, err)
	}
	if r, err := client.InspectTask(ctx, &driverpb.InspectTaskRequest{TaskId: "x"}); err != nil || r.Task.Id != "x" || r.Task.StartedAt == nil || r.Task.CompletedAt == nil {
		t.Errorf("inspect: %v, %v", r, err)
	}
	if r, err := client.Capabilities(ctx, &driverpb.CapabilitiesRequest{}); err != nil || len(r.Capabilities.NetworkIsolationModes) != 1 {
		t.Errorf("capabilities: %v, %v", r, err)
	}
	if r, err := client.TaskConfigSchema(ctx, &driverpb.TaskConfigSchemaRequest{}); err != nil || r.Spec.GetObject() == nil {
		t.Errorf("schema: %v, %v", r, err)
	}
	stream, err := client.TaskStats(ctx, &driverpb.TaskStatsRequest{TaskId: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := stream.Recv(); err != nil || !r.Stats.Timestamp.IsValid() || r.Stats.AggResourceUsage.GetCpu() == nil || r.Stats.AggResourceUsage.GetMemory() == nil {
		t.Errorf("stats: %v, %v", r, err)
	}
	if _, err := stream.Recv(); err != io.EOF {
		t.Errorf("end of stats: %v", err)
	}
	if _, err := client.Init(ctx, &driverpb.InitRequest{}); err != nil {
		t.Errorf("init: %v", err)
	}
	if _, err := client.Shutdown(ctx, &driverpb.ShutdownRequest{}); err != nil {
		t.Errorf("shutdown: %v", err)
	}
}

func TestTaskStats_Unsupported(t *testing.T) {
	t.Parallel()
	for name, cause := range map[string]error{"unsupported": ErrUnsupported, "unknown task": ErrTaskNotFound} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := dialDriver(t, &fakeDriver{stats: func(context.Context, time.Duration, func(*driverpb.TaskStats) error) error { return cause }})
			stream, err := client.TaskStats(testContext(t), &driverpb.TaskStatsRequest{})
			if err != nil {
				t.Fatal(err)
			}
			_, err = stream.Recv()
			if len(status.Convert(err).Details()) != 1 || IsRecoverable(err) {
				t.Errorf("got %v with details %v, want a detail that says not recoverable", err, status.Convert(err).Details())
			}
		})
	}
}

func TestDriverFingerprint_EarlyReturnIsUnhealthy(t *testing.T) {
	t.Parallel()
	calls := 0
	client := dialDriver(t, &fakeDriver{fingerprint: func(ctx context.Context, send func(*driverpb.FingerprintResponse) error) error {
		calls++
		if calls == 1 {
			return errors.New("no docker")
		}
		if err := send(&driverpb.FingerprintResponse{Health: driverpb.FingerprintResponse_HEALTHY}); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}})
	stream, err := client.Fingerprint(testContext(t), &driverpb.FingerprintRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []driverpb.FingerprintResponse_HealthState{driverpb.FingerprintResponse_UNHEALTHY, driverpb.FingerprintResponse_HEALTHY} {
		if got, err := stream.Recv(); err != nil || got.Health != want {
			t.Errorf("got %v, %v, want %s", got, err, want)
		}
	}
}

func TestTaskEvents_StayOpen(t *testing.T) {
	t.Parallel()
	calls := 0
	client := dialDriver(t, &fakeDriver{events: func(ctx context.Context, send func(*driverpb.DriverTaskEvent) error) error {
		calls++
		return send(&driverpb.DriverTaskEvent{Message: fmt.Sprint(calls)})
	}})
	ctx, cancel := context.WithCancel(testContext(t))
	stream, err := client.TaskEvents(ctx, &driverpb.TaskEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"1", "2", "3"} {
		if got, err := stream.Recv(); err != nil || got.Message != want || got.Timestamp == nil {
			t.Errorf("got %v, %v, want event %s with a time", got, err, want)
		}
	}
	cancel()
	for {
		if _, err := stream.Recv(); err != nil {
			return
		}
	}
}

func TestExecStream(t *testing.T) {
	t.Parallel()
	client := dialDriver(t, &fakeDriver{execStream: func(ctx context.Context, s *ExecStream) (*driverpb.ExitResult, error) {
		size := <-s.Resize
		in, err := io.ReadAll(s.Stdin)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(s.Stdout, "%dx%d %s", size.Height, size.Width, in)
		fmt.Fprint(s.Stderr, "warned")
		return &driverpb.ExitResult{ExitCode: 3}, nil
	}})
	stream, err := client.ExecTaskStreaming(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []*driverpb.ExecTaskStreamingRequest{
		{Setup: &driverpb.ExecTaskStreamingRequest_Setup{TaskId: "x", Command: []string{"cat"}, Tty: true}},
		{TtySize: &driverpb.ExecTaskStreamingRequest_TerminalSize{Height: 24, Width: 80}},
		{Stdin: &driverpb.ExecTaskStreamingIOOperation{Data: []byte("hello")}},
		{Stdin: &driverpb.ExecTaskStreamingIOOperation{Close: true}},
	} {
		if err := stream.Send(f); err != nil {
			t.Fatal(err)
		}
	}
	var stdout, stderr string
	var last *driverpb.ExecTaskStreamingResponse
	for {
		f, err := stream.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		stdout += string(f.GetStdout().GetData())
		stderr += string(f.GetStderr().GetData())
		last = f
	}
	if stdout != "24x80 hello" || stderr != "warned" || !last.GetExited() || last.GetResult().GetExitCode() != 3 {
		t.Errorf("stdout %q, stderr %q, last %v", stdout, stderr, last)
	}
}

func TestExecStream_RefusesWithoutSetup(t *testing.T) {
	t.Parallel()
	stream, err := dialDriver(t, &fakeDriver{}).ExecTaskStreaming(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&driverpb.ExecTaskStreamingRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("got %v", err)
	}
}

func TestCheckInfo(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		info Info
		ok   bool
	}{
		"good":        {Info{"x", "0.1.0"}, true},
		"with a v":    {Info{"x", "v0.1.0"}, true},
		"no name":     {Info{"", "0.1.0"}, false},
		"bad version": {Info{"x", "latest"}, false},
	} {
		if err := checkInfo(tc.info); (err == nil) != tc.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
