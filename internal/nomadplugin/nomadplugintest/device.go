//go:build unix

package nomadplugintest

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/basepb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/devicepb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/host"
)

// TestDevice drives a device plugin binary with the config block, which must make it offer at least one healthy
// instance.
func TestDevice(t *testing.T, binary string, config map[string]any) {
	r := runner{binary: binary, config: config, kind: basepb.PluginType_DEVICE}
	t.Run("launches", r.testLaunches)
	t.Run("fingerprint", r.testFingerprint)
	t.Run("reserve", r.testReserve)
	t.Run("stats", r.testStats)
	t.Run("crash", func(t *testing.T) {
		first := r.configured(t)
		before := firstGroups(t, first)
		crash(t, first)
		if after := firstGroups(t, r.configured(t)); len(after) != len(before) {
			t.Errorf("%d groups after a crash, %d before", len(after), len(before))
		}
	})
	t.Run("orphan", func(t *testing.T) {
		p := r.configured(t)
		firstGroups(t, p)
		gone(t, reattached(t, p))
	})
}

// openFingerprint waits for the first list and leaves the stream open until the test ends.
func openFingerprint(t *testing.T, p *host.Plugin) (devicepb.DevicePlugin_FingerprintClient, []*devicepb.DeviceGroup) {
	t.Helper()
	stream, err := p.DeviceClient().Fingerprint(within(t, firstMessage), &devicepb.FingerprintRequest{})
	if err != nil {
		t.Fatalf("fingerprint: %v", err)
	}
	first, err := stream.Recv()
	if err != nil {
		t.Fatalf("first list: %v", err)
	}
	return stream, first.GetDeviceGroup()
}

func firstGroups(t *testing.T, p *host.Plugin) []*devicepb.DeviceGroup {
	t.Helper()
	_, groups := openFingerprint(t, p)
	return groups
}

func (r runner) testFingerprint(t *testing.T) {
	p := r.configured(t)
	groups := firstGroups(t, p)
	if id := healthyID(groups); id == "" {
		t.Fatal("no healthy instance in the first list")
	}
	ids := map[string]bool{}
	for _, g := range groups {
		for _, d := range g.Devices {
			if ids[d.ID] {
				t.Errorf("instance id %s is used twice", d.ID)
			}
			ids[d.ID] = true
		}
	}
	// A second stream of the same process, as after a reattachment, tells the same.
	if again := firstGroups(t, p); len(again) != len(groups) {
		t.Errorf("second stream tells %d groups, the first %d", len(again), len(groups))
	}
}

func healthyID(groups []*devicepb.DeviceGroup) string {
	for _, g := range groups {
		for _, d := range g.Devices {
			if d.Healthy {
				return d.ID
			}
		}
	}
	return ""
}

func (r runner) testReserve(t *testing.T) {
	p := r.configured(t)
	_, groups := openFingerprint(t, p)
	id := healthyID(groups)
	if id == "" {
		t.Fatal("no healthy instance")
	}
	client := p.DeviceClient()
	var first map[string]string
	for i := range 2 {
		res, err := client.Reserve(within(t, callTimeout), &devicepb.ReserveRequest{DeviceIds: []string{id}})
		if err != nil {
			t.Fatalf("reserve %d: %v", i+1, err)
		}
		if len(res.GetContainerRes().GetMounts()) > 0 || len(res.GetContainerRes().GetDevices()) > 0 {
			t.Error("the reservation has mounts or device nodes: mounts wipe the task's volumes, and both are lost when the agent restarts")
		}
		if i == 0 {
			first = res.GetContainerRes().GetEnvs()
		} else if len(first) == 0 || len(first) != len(res.GetContainerRes().GetEnvs()) {
			t.Errorf("environment %v, then %v, want the same", first, res.GetContainerRes().GetEnvs())
		}
	}
	if _, err := client.Reserve(within(t, callTimeout), &devicepb.ReserveRequest{DeviceIds: []string{"no-such-instance"}}); err == nil {
		t.Error("an unknown instance was reserved")
	} else if status.Code(err) == codes.Unavailable {
		t.Errorf("an unknown instance ended the plugin: %v", err)
	}
}

func (r runner) testStats(t *testing.T) {
	p := r.configured(t)
	openFingerprint(t, p)
	stream, err := p.DeviceClient().Stats(within(t, firstMessage), &devicepb.StatsRequest{CollectionInterval: durationpb.New(100 * time.Millisecond)})
	if err != nil {
		t.Fatalf("stats: %v", err)
	}
	for range 2 {
		resp, err := stream.Recv()
		if err != nil {
			t.Fatalf("stats: %v", err)
		}
		for _, g := range resp.Groups {
			for id, s := range g.InstanceStats {
				if !s.GetTimestamp().IsValid() {
					t.Errorf("sample of %s has no time", id)
				}
			}
		}
	}
}
