package nomadplugin

import (
	"context"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/devicepb"
)

// deviceServer serves a Device. Its streams end only with their context.
type deviceServer struct {
	devicepb.UnimplementedDevicePluginServer
	plugin Device
	log    hclog.Logger
	pause  pauser
}

func (d *deviceServer) Fingerprint(_ *devicepb.FingerprintRequest, stream grpc.ServerStreamingServer[devicepb.FingerprintResponse]) error {
	log := d.log.Named("fingerprint")
	var last *devicepb.FingerprintResponse
	send := oneAtATime(func(groups []*devicepb.DeviceGroup) error {
		next := &devicepb.FingerprintResponse{DeviceGroup: validGroups(groups, log)}
		// Nomad 1.6 takes every message for a change and registers the node again.
		if last != nil && proto.Equal(last, next) {
			return nil
		}
		last = proto.CloneOf(next)
		return stream.Send(next)
	})
	keepOpen(stream.Context(), log, d.pause, func(ctx context.Context) error {
		return d.plugin.Fingerprint(ctx, send)
	}, func(error) {
		// The node's registration waits for the first message of every plugin.
		if last == nil {
			if err := send(nil); err != nil {
				log.Warn("first list not sent", "error", err)
			}
		}
	})
	return nil
}

func (d *deviceServer) Reserve(ctx context.Context, req *devicepb.ReserveRequest) (*devicepb.ReserveResponse, error) {
	if len(req.GetDeviceIds()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "reserve names no device")
	}
	res, err := d.plugin.Reserve(ctx, req.GetDeviceIds())
	if err != nil {
		return nil, statusError(err)
	}
	if res == nil {
		res = &devicepb.ContainerReservation{}
	}
	return &devicepb.ReserveResponse{ContainerRes: res}, nil
}

func (d *deviceServer) Stats(req *devicepb.StatsRequest, stream grpc.ServerStreamingServer[devicepb.StatsResponse]) error {
	log := d.log.Named("stats")
	send := oneAtATime(func(groups []*devicepb.DeviceGroupStats) error {
		if len(groups) == 0 {
			return nil
		}
		return stream.Send(&devicepb.StatsResponse{Groups: stampStats(groups, time.Now())})
	})
	keepOpen(stream.Context(), log, d.pause, func(ctx context.Context) error {
		return d.plugin.Stats(ctx, interval(req.GetCollectionInterval()), send)
	}, func(error) {})
	return nil
}

// interval reads a collection interval: at least a tenth of a second, 1 s when it is not given.
func interval(d *durationpb.Duration) time.Duration {
	every := d.AsDuration()
	if every <= 0 {
		return time.Second
	}
	return max(every, 100*time.Millisecond)
}

// stampStats returns copies where each sample has a valid time and each group its entries: the host turns a sample
// without time into nil.
func stampStats(groups []*devicepb.DeviceGroupStats, now time.Time) []*devicepb.DeviceGroupStats {
	out := make([]*devicepb.DeviceGroupStats, 0, len(groups))
	for _, g := range groups {
		if g == nil {
			continue
		}
		stamped := proto.CloneOf(g)
		for id, s := range g.InstanceStats {
			if s == nil {
				delete(stamped.InstanceStats, id)
			} else if !s.Timestamp.IsValid() {
				stamped.InstanceStats[id].Timestamp = timestamppb.New(now)
			}
		}
		out = append(out, stamped)
	}
	return out
}
