package nomadplugin

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/devicepb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/structspb"
)

func dialDevice(t *testing.T, d Device) devicepb.DevicePluginClient {
	t.Helper()
	return devicepb.NewDevicePluginClient(connect(t, func(s *grpc.Server) {
		devicepb.RegisterDevicePluginServer(s, &deviceServer{plugin: d, log: hclog.NewNullLogger(), pause: noPause})
	}))
}

func group(name string, ids ...string) *devicepb.DeviceGroup {
	g := &devicepb.DeviceGroup{Vendor: "nvidia", DeviceType: "gpu", DeviceName: name}
	for _, id := range ids {
		g.Devices = append(g.Devices, &devicepb.DetectedDevice{ID: id, Healthy: true})
	}
	return g
}

func withAttr(g *devicepb.DeviceGroup, a *structspb.Attribute) *devicepb.DeviceGroup {
	g.Attributes = map[string]*structspb.Attribute{"a": a}
	return g
}

func intAttr(v int64, unit string) *structspb.Attribute {
	return &structspb.Attribute{Value: &structspb.Attribute_IntVal{IntVal: v}, Unit: unit}
}

func groupNames(groups []*devicepb.DeviceGroup) []string {
	names := []string{}
	for _, g := range groups {
		names = append(names, g.DeviceName)
	}
	return names
}

func TestFingerprint_DropsWhatTheHostWouldRefuse(t *testing.T) {
	t.Parallel()
	text := &structspb.Attribute{Value: &structspb.Attribute_StringVal{StringVal: "x"}, Unit: "MiB"}
	nan := &structspb.Attribute{Value: &structspb.Attribute_FloatVal{FloatVal: math.NaN()}}
	cases := map[string]struct {
		in   []*devicepb.DeviceGroup
		want []string
	}{
		"good groups in order of name":        {[]*devicepb.DeviceGroup{group("b", "2"), group("a", "1")}, []string{"a", "b"}},
		"a group without instances":           {[]*devicepb.DeviceGroup{group("a")}, []string{"a"}},
		"a known unit":                        {[]*devicepb.DeviceGroup{withAttr(group("a"), intAttr(1, "MiB"))}, []string{"a"}},
		"an empty name":                       {[]*devicepb.DeviceGroup{group(""), group("a")}, []string{"a"}},
		"a slash in the vendor":               {[]*devicepb.DeviceGroup{{Vendor: "a/b", DeviceType: "gpu", DeviceName: "x"}}, []string{}},
		"nil":                                 {[]*devicepb.DeviceGroup{nil, group("a")}, []string{"a"}},
		"an instance without id":              {[]*devicepb.DeviceGroup{group("a", "")}, []string{}},
		"an id twice in a group":              {[]*devicepb.DeviceGroup{group("a", "1", "1")}, []string{}},
		"an id twice in the plugin":           {[]*devicepb.DeviceGroup{group("a", "1"), group("b", "1")}, []string{"a"}},
		"a name twice":                        {[]*devicepb.DeviceGroup{group("a", "1"), group("a", "2")}, []string{"a"}},
		"an unknown unit":                     {[]*devicepb.DeviceGroup{withAttr(group("a"), intAttr(1, "%"))}, []string{}},
		"a unit on text":                      {[]*devicepb.DeviceGroup{withAttr(group("a"), text)}, []string{}},
		"an attribute without value":          {[]*devicepb.DeviceGroup{withAttr(group("a"), &structspb.Attribute{})}, []string{}},
		"a nil attribute":                     {[]*devicepb.DeviceGroup{withAttr(group("a"), nil)}, []string{}},
		"a number that is none":               {[]*devicepb.DeviceGroup{withAttr(group("a"), nan)}, []string{}},
		"ids of a dropped group remain free":  {[]*devicepb.DeviceGroup{group("", "1"), group("b", "1")}, []string{"b"}},
		"a name that keeps its later slashes": {[]*devicepb.DeviceGroup{group("a/b")}, []string{"a/b"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := dialDevice(t, &fakeDevice{fingerprint: func(ctx context.Context, send func([]*devicepb.DeviceGroup) error) error {
				if err := send(tc.in); err != nil {
					return err
				}
				<-ctx.Done()
				return nil
			}})
			stream, err := client.Fingerprint(testContext(t), &devicepb.FingerprintRequest{})
			if err != nil {
				t.Fatal(err)
			}
			got, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, groupNames(got.DeviceGroup)); diff != "" {
				t.Errorf("groups (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFingerprint_StaysOpenWhateverTheAuthorDoes(t *testing.T) {
	t.Parallel()
	calls := 0
	client := dialDevice(t, &fakeDevice{fingerprint: func(ctx context.Context, send func([]*devicepb.DeviceGroup) error) error {
		calls++
		switch calls {
		case 1:
			return errors.New("tool not found")
		case 2:
			panic("nil map")
		case 3:
			return nil
		}
		if err := send([]*devicepb.DeviceGroup{group("a", "1")}); err != nil {
			return err
		}
		// The same list in another order is no change.
		if err := send([]*devicepb.DeviceGroup{group("a", "1")}); err != nil {
			return err
		}
		if err := send([]*devicepb.DeviceGroup{group("b", "1")}); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}})
	stream, err := client.Fingerprint(testContext(t), &devicepb.FingerprintRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]string{{}, {"a"}, {"b"}} {
		got, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, groupNames(got.DeviceGroup)); diff != "" {
			t.Errorf("message %d (-want +got):\n%s", i, diff)
		}
	}
}

// TestFatal replaces exit and so does not run beside the others.
func TestFatal(t *testing.T) {
	code := make(chan int, 1)
	real := exit
	exit = func(c int) { code <- c }
	defer func() { exit = real }()
	keepOpen(context.Background(), hclog.NewNullLogger(), noPause, func(context.Context) error {
		return Fatal(errors.New("driver library is gone"))
	}, func(error) { t.Error("taken for an early return") })
	if got := <-code; got != 1 {
		t.Errorf("exit code %d, want 1", got)
	}
}

func TestFingerprint_TextThatIsNotUTF8(t *testing.T) {
	t.Parallel()
	bad := group("a", "1")
	bad.Devices[0].HealthDescription = "broken \xff text"
	client := dialDevice(t, &fakeDevice{fingerprint: func(ctx context.Context, send func([]*devicepb.DeviceGroup) error) error {
		if err := send([]*devicepb.DeviceGroup{withAttr(bad, &structspb.Attribute{Value: &structspb.Attribute_StringVal{StringVal: "\xfe"}})}); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}})
	stream, err := client.Fingerprint(testContext(t), &devicepb.FingerprintRequest{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if d := got.DeviceGroup[0].Devices[0].HealthDescription; d != "broken \uFFFD text" {
		t.Errorf("description %q", d)
	}
	if bad.Devices[0].HealthDescription != "broken \xff text" {
		t.Error("the author's message was changed")
	}
}

func TestReserve(t *testing.T) {
	t.Parallel()
	client := dialDevice(t, &fakeDevice{reserve: func(ids []string) (*devicepb.ContainerReservation, error) {
		switch ids[0] {
		case "nil":
			return nil, nil
		case "panic":
			panic("index out of range")
		case "bad":
			return nil, errors.New("unknown device")
		}
		return &devicepb.ContainerReservation{Envs: map[string]string{"IDS": strings.Join(ids, ",")}}, nil
	}})
	ctx := testContext(t)
	res, err := client.Reserve(ctx, &devicepb.ReserveRequest{DeviceIds: []string{"a", "b"}})
	if err != nil || res.ContainerRes.Envs["IDS"] != "a,b" {
		t.Errorf("reserve: %v, %v", res, err)
	}
	if res, err := client.Reserve(ctx, &devicepb.ReserveRequest{DeviceIds: []string{"nil"}}); err != nil || res.ContainerRes == nil {
		t.Errorf("nil reservation: %v, %v", res, err)
	}
	for id, want := range map[string]codes.Code{"panic": codes.Internal, "bad": codes.Unknown} {
		if _, err := client.Reserve(ctx, &devicepb.ReserveRequest{DeviceIds: []string{id}}); status.Code(err) != want {
			t.Errorf("%s: %v, want code %s", id, err, want)
		}
	}
	if _, err := client.Reserve(ctx, &devicepb.ReserveRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("no ids: %v", err)
	}
}

func TestStats_SetsTimes(t *testing.T) {
	t.Parallel()
	client := dialDevice(t, &fakeDevice{stats: func(ctx context.Context, every time.Duration, send func([]*devicepb.DeviceGroupStats) error) error {
		if every != time.Second {
			t.Errorf("interval %s, want the default of 1s", every)
		}
		if err := send(nil); err != nil {
			return err
		}
		if err := send([]*devicepb.DeviceGroupStats{nil, {
			Vendor: "nvidia", InstanceStats: map[string]*devicepb.DeviceStats{"1": {}, "2": nil},
		}}); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}})
	stream, err := client.Stats(testContext(t), &devicepb.StatsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Groups) != 1 || len(got.Groups[0].InstanceStats) != 1 || !got.Groups[0].InstanceStats["1"].Timestamp.IsValid() {
		t.Errorf("stats: %v", got)
	}
}
