package nomadplugin

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/hclspec"
)

// handleVersion is the version of a handle that its driver left without one; 0 would read as a handle from before
// Nomad 0.9.
const handleVersion = 1

// driverServer serves a Driver and fills what the host would trip over.
type driverServer struct {
	driverpb.UnimplementedDriverServer
	plugin Driver
	log    hclog.Logger
	pause  pauser
}

func orEmpty(spec *hclspec.Spec) *hclspec.Spec {
	if spec.GetBlock() == nil {
		return Object(nil)
	}
	return spec
}

func (d *driverServer) Init(context.Context, *driverpb.InitRequest) (*driverpb.InitResponse, error) {
	return &driverpb.InitResponse{}, nil
}

func (d *driverServer) Shutdown(context.Context, *driverpb.ShutdownRequest) (*driverpb.ShutdownResponse, error) {
	return &driverpb.ShutdownResponse{}, nil
}

func (d *driverServer) TaskConfigSchema(context.Context, *driverpb.TaskConfigSchemaRequest) (*driverpb.TaskConfigSchemaResponse, error) {
	return &driverpb.TaskConfigSchemaResponse{Spec: orEmpty(d.plugin.TaskConfigSchema())}, nil
}

func (d *driverServer) Capabilities(context.Context, *driverpb.CapabilitiesRequest) (*driverpb.CapabilitiesResponse, error) {
	caps := d.plugin.Capabilities()
	if caps == nil {
		caps = &driverpb.DriverCapabilities{}
	}
	if len(caps.NetworkIsolationModes) == 0 {
		caps = proto.CloneOf(caps)
		caps.NetworkIsolationModes = []driverpb.NetworkIsolationSpec_NetworkIsolationMode{driverpb.NetworkIsolationSpec_HOST}
	}
	return &driverpb.CapabilitiesResponse{Capabilities: caps}, nil
}

func (d *driverServer) CreateNetwork(ctx context.Context, req *driverpb.CreateNetworkRequest) (*driverpb.CreateNetworkResponse, error) {
	maker, ok := d.plugin.(NetworkMaker)
	if !ok {
		return d.UnimplementedDriverServer.CreateNetwork(ctx, req)
	}
	spec, created, err := maker.CreateNetwork(ctx, req.GetAllocId(), req.GetHostname())
	if err != nil {
		return nil, statusError(err)
	}
	return &driverpb.CreateNetworkResponse{IsolationSpec: spec, Created: created}, nil
}

func (d *driverServer) DestroyNetwork(ctx context.Context, req *driverpb.DestroyNetworkRequest) (*driverpb.DestroyNetworkResponse, error) {
	maker, ok := d.plugin.(NetworkMaker)
	if !ok {
		return d.UnimplementedDriverServer.DestroyNetwork(ctx, req)
	}
	if err := maker.DestroyNetwork(ctx, req.GetAllocId(), req.GetIsolationSpec()); err != nil {
		return nil, statusError(err)
	}
	return &driverpb.DestroyNetworkResponse{}, nil
}

func (d *driverServer) Fingerprint(_ *driverpb.FingerprintRequest, stream grpc.ServerStreamingServer[driverpb.FingerprintResponse]) error {
	log := d.log.Named("fingerprint")
	var last *driverpb.FingerprintResponse
	send := oneAtATime(func(f *driverpb.FingerprintResponse) error {
		f = proto.CloneOf(f)
		if f == nil {
			f = &driverpb.FingerprintResponse{}
		}
		for name, a := range f.Attributes {
			if err := checkAttribute(a); err != nil {
				log.Error("driver attribute is not sent", "attribute", name, "error", err)
				delete(f.Attributes, name)
			}
		}
		if last != nil && proto.Equal(last, f) {
			return nil
		}
		last = f
		return stream.Send(f)
	})
	keepOpen(stream.Context(), log, d.pause, func(ctx context.Context) error {
		return d.plugin.Fingerprint(ctx, send)
	}, func(err error) {
		text := "driver cannot tell its health"
		if err != nil {
			text += ": " + err.Error()
		}
		unhealthy := &driverpb.FingerprintResponse{
			Attributes: last.GetAttributes(), Health: driverpb.FingerprintResponse_UNHEALTHY, HealthDescription: text,
		}
		if err := send(unhealthy); err != nil {
			log.Warn("health not sent", "error", err)
		}
	})
	return nil
}

func (d *driverServer) StartTask(ctx context.Context, req *driverpb.StartTaskRequest) (*driverpb.StartTaskResponse, error) {
	if req.GetTask().GetId() == "" {
		return nil, status.Error(codes.InvalidArgument, "start names no task")
	}
	handle, network, err := d.plugin.Start(ctx, req.Task)
	if err != nil {
		return nil, statusError(err)
	}
	if handle = proto.CloneOf(handle); handle == nil {
		handle = &driverpb.TaskHandle{State: driverpb.TaskState_RUNNING}
	}
	if handle.Config == nil {
		handle.Config = req.Task
	}
	if handle.Version == 0 {
		handle.Version = handleVersion
	}
	return &driverpb.StartTaskResponse{Result: driverpb.StartTaskResponse_SUCCESS, Handle: handle, NetworkOverride: network}, nil
}

func (d *driverServer) RecoverTask(ctx context.Context, req *driverpb.RecoverTaskRequest) (*driverpb.RecoverTaskResponse, error) {
	if req.GetHandle().GetConfig().GetId() == "" {
		return nil, status.Error(codes.InvalidArgument, "recover brings no handle with a config")
	}
	if err := d.plugin.Recover(ctx, req.Handle); err != nil {
		return nil, statusError(err)
	}
	return &driverpb.RecoverTaskResponse{}, nil
}

func (d *driverServer) WaitTask(ctx context.Context, req *driverpb.WaitTaskRequest) (*driverpb.WaitTaskResponse, error) {
	result, err := d.plugin.Wait(ctx, req.GetTaskId())
	if ctx.Err() != nil {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	if errors.Is(err, ErrTaskNotFound) {
		return nil, statusError(err)
	}
	resp := &driverpb.WaitTaskResponse{Result: result}
	if err != nil {
		resp.Err = err.Error()
	} else if result == nil {
		resp.Err = "driver gave no exit result"
	}
	if resp.Result == nil {
		resp.Result = &driverpb.ExitResult{}
	}
	return resp, nil
}

func (d *driverServer) StopTask(ctx context.Context, req *driverpb.StopTaskRequest) (*driverpb.StopTaskResponse, error) {
	err := d.plugin.Stop(ctx, req.GetTaskId(), req.GetTimeout().AsDuration(), req.GetSignal())
	if err != nil && !errors.Is(err, ErrTaskNotFound) {
		return nil, statusError(err)
	}
	return &driverpb.StopTaskResponse{}, nil
}

func (d *driverServer) DestroyTask(ctx context.Context, req *driverpb.DestroyTaskRequest) (*driverpb.DestroyTaskResponse, error) {
	err := d.plugin.Destroy(ctx, req.GetTaskId(), req.GetForce())
	if err != nil && !errors.Is(err, ErrTaskNotFound) {
		return nil, statusError(err)
	}
	return &driverpb.DestroyTaskResponse{}, nil
}

func (d *driverServer) InspectTask(ctx context.Context, req *driverpb.InspectTaskRequest) (*driverpb.InspectTaskResponse, error) {
	st, attrs, err := d.plugin.Inspect(ctx, req.GetTaskId())
	if err != nil {
		return nil, statusError(err)
	}
	if st = proto.CloneOf(st); st == nil {
		st = &driverpb.TaskStatus{}
	}
	if st.Id == "" {
		st.Id = req.GetTaskId()
	}
	zero := timestamppb.New(time.Time{})
	if !st.StartedAt.IsValid() {
		st.StartedAt = zero
	}
	if !st.CompletedAt.IsValid() {
		st.CompletedAt = zero
	}
	return &driverpb.InspectTaskResponse{Task: st, Driver: &driverpb.TaskDriverStatus{Attributes: attrs}}, nil
}

func (d *driverServer) TaskStats(req *driverpb.TaskStatsRequest, stream grpc.ServerStreamingServer[driverpb.TaskStatsResponse]) error {
	send := oneAtATime(func(s *driverpb.TaskStats) error {
		if s = proto.CloneOf(s); s == nil {
			return nil
		}
		if s.Id == "" {
			s.Id = req.GetTaskId()
		}
		if !s.Timestamp.IsValid() {
			s.Timestamp = timestamppb.Now()
		}
		if s.AggResourceUsage == nil {
			s.AggResourceUsage = &driverpb.TaskResourceUsage{}
		}
		for _, u := range s.ResourceUsageByPid {
			fillUsage(u)
		}
		fillUsage(s.AggResourceUsage)
		return stream.Send(&driverpb.TaskStatsResponse{Stats: s})
	})
	err := d.plugin.Stats(stream.Context(), req.GetTaskId(), interval(req.GetCollectionInterval()), send)
	switch {
	case stream.Context().Err() != nil:
		return nil
	case errors.Is(err, ErrTaskNotFound):
		// Without the detail the host would ask again for ever.
		return withRecoverable(codes.NotFound, err.Error(), false)
	}
	return statusError(err)
}

// fillUsage sets the parts that the host reads without looking. No measured field means that nothing is known.
func fillUsage(u *driverpb.TaskResourceUsage) {
	if u == nil {
		return
	}
	if u.Cpu == nil {
		u.Cpu = &driverpb.CPUUsage{}
	}
	if u.Memory == nil {
		u.Memory = &driverpb.MemoryUsage{}
	}
}

func (d *driverServer) TaskEvents(_ *driverpb.TaskEventsRequest, stream grpc.ServerStreamingServer[driverpb.DriverTaskEvent]) error {
	send := oneAtATime(func(e *driverpb.DriverTaskEvent) error {
		if e = proto.CloneOf(e); e == nil {
			return nil
		}
		if !e.Timestamp.IsValid() {
			e.Timestamp = timestamppb.Now()
		}
		return stream.Send(e)
	})
	keepOpen(stream.Context(), d.log.Named("events"), d.pause, func(ctx context.Context) error {
		return d.plugin.Events(ctx, send)
	}, func(error) {})
	return nil
}

func (d *driverServer) SignalTask(ctx context.Context, req *driverpb.SignalTaskRequest) (*driverpb.SignalTaskResponse, error) {
	if err := d.plugin.Signal(ctx, req.GetTaskId(), req.GetSignal()); err != nil {
		return nil, statusError(err)
	}
	return &driverpb.SignalTaskResponse{}, nil
}

func (d *driverServer) ExecTask(ctx context.Context, req *driverpb.ExecTaskRequest) (*driverpb.ExecTaskResponse, error) {
	if len(req.GetCommand()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "exec names no command")
	}
	timeout := req.GetTimeout().AsDuration()
	if timeout < 0 {
		timeout = time.Duration(math.MaxInt64)
	}
	stdout, stderr, result, err := d.plugin.Exec(ctx, req.GetTaskId(), req.GetCommand(), timeout)
	if err != nil {
		return nil, statusError(err)
	}
	if result == nil {
		result = &driverpb.ExitResult{}
	}
	return &driverpb.ExecTaskResponse{Stdout: stdout, Stderr: stderr, Result: result}, nil
}
