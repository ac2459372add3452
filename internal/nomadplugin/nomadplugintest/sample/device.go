//go:build unix

package sample

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/basepb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/devicepb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/hclspec"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/structspb"
)

// pollEvery is how often the sample looks at files; it is a test tool and may be quick.
const pollEvery = 20 * time.Millisecond

// Device invents one group, sample/gpu/S1, of count instances named sample-0, sample-1, …
type Device struct {
	info nomadplugin.Info
	log  hclog.Logger
	mu   sync.Mutex
	cfg  deviceConfig
}

// deviceConfig is the plugin's config block. Control is a file with a Control document, ReserveLog gets a line for
// each Reserve.
type deviceConfig struct {
	Count      int    `codec:"count"`
	Control    string `codec:"control"`
	ReserveLog string `codec:"reserve_log"`
}

// Control switches the sample device while it runs.
type Control struct {
	Unhealthy []string `json:"unhealthy"`
	Gone      bool     `json:"gone"`
}

var _ nomadplugin.Device = (*Device)(nil)

// Info names the plugin.
func (d *Device) Info() nomadplugin.Info { return d.info }

// ConfigSchema describes deviceConfig.
func (d *Device) ConfigSchema() *hclspec.Spec { return deviceSchema() }

func deviceSchema() *hclspec.Spec {
	return nomadplugin.Object(nomadplugin.Fields{
		"count":       nomadplugin.OptNumber("count", 2),
		"control":     nomadplugin.OptString("control", ""),
		"reserve_log": nomadplugin.OptString("reserve_log", ""),
	})
}

// Configure reads deviceConfig.
func (d *Device) Configure(msgpack []byte) error {
	cfg := deviceConfig{Count: 2}
	if err := nomadplugin.DecodeConfig(msgpack, &cfg); err != nil {
		return err
	}
	if cfg.Count < 0 {
		return fmt.Errorf("count %d is negative", cfg.Count)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cfg = cfg
	return nil
}

func (d *Device) config() deviceConfig {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cfg
}

// Fingerprint sends the group whenever the control file changed.
func (d *Device) Fingerprint(ctx context.Context, send func([]*devicepb.DeviceGroup) error) error {
	cfg := d.config()
	for {
		control, err := readControl(cfg.Control)
		if err != nil {
			return err
		}
		var groups []*devicepb.DeviceGroup
		if !control.Gone {
			groups = append(groups, sampleGroup(cfg.Count, control.Unhealthy))
		}
		if err := send(groups); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pollEvery):
		}
	}
}

func readControl(path string) (Control, error) {
	var c Control
	if path == "" {
		return c, nil
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || (err == nil && len(b) == 0) {
		return c, nil
	}
	if err != nil {
		return c, err
	}
	return c, json.Unmarshal(b, &c)
}

func sampleGroup(count int, unhealthy []string) *devicepb.DeviceGroup {
	g := &devicepb.DeviceGroup{
		Vendor: "sample", DeviceType: "gpu", DeviceName: "S1",
		Attributes: map[string]*structspb.Attribute{
			"memory": {Value: &structspb.Attribute_IntVal{IntVal: 1024}, Unit: "MiB"},
			"model":  {Value: &structspb.Attribute_StringVal{StringVal: "S1"}},
		},
	}
	for i := range count {
		dev := &devicepb.DetectedDevice{ID: fmt.Sprintf("sample-%d", i), Healthy: true}
		if slices.Contains(unhealthy, dev.ID) {
			dev.Healthy, dev.HealthDescription = false, "switched off by a test"
		}
		g.Devices = append(g.Devices, dev)
	}
	return g
}

// Reserve puts the ids into SAMPLE_DEVICES.
func (d *Device) Reserve(_ context.Context, ids []string) (*devicepb.ContainerReservation, error) {
	cfg := d.config()
	for _, id := range ids {
		if !strings.HasPrefix(id, "sample-") {
			return nil, fmt.Errorf("unknown device %q", id)
		}
	}
	if cfg.ReserveLog != "" {
		f, err := os.OpenFile(cfg.ReserveLog, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if _, err := fmt.Fprintln(f, strings.Join(ids, ",")); err != nil {
			return nil, err
		}
	}
	return &devicepb.ContainerReservation{Envs: map[string]string{"SAMPLE_DEVICES": strings.Join(ids, ",")}}, nil
}

// Stats sends one sample for each instance.
func (d *Device) Stats(ctx context.Context, every time.Duration, send func([]*devicepb.DeviceGroupStats) error) error {
	for {
		g := &devicepb.DeviceGroupStats{Vendor: "sample", Type: "gpu", Name: "S1", InstanceStats: map[string]*devicepb.DeviceStats{}}
		for i := range d.config().Count {
			used := &structspb.StatValue{IntNumeratorVal: wrapperspb.Int64(int64(i)), IntDenominatorVal: wrapperspb.Int64(1024), Unit: "MiB", Desc: "memory"}
			g.InstanceStats[fmt.Sprintf("sample-%d", i)] = &devicepb.DeviceStats{
				Summary: used, Stats: &structspb.StatObject{Attributes: map[string]*structspb.StatValue{"memory": used}},
			}
		}
		if err := send([]*devicepb.DeviceGroupStats{g}); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
	}
}

// ending is a device plugin written without the SDK's server: it ends its stream after one list.
type ending struct {
	basepb.UnimplementedBasePluginServer
	devicepb.UnimplementedDevicePluginServer
	plugin.NetRPCUnsupportedPlugin
	info nomadplugin.Info
}

func serveEnding(info nomadplugin.Info) {
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: nomadplugin.Handshake, GRPCServer: plugin.DefaultGRPCServer,
		Plugins: plugin.PluginSet{nomadplugin.SetBase: &ending{info: info}},
	})
}

func (e *ending) GRPCServer(_ *plugin.GRPCBroker, s *grpc.Server) error {
	basepb.RegisterBasePluginServer(s, e)
	devicepb.RegisterDevicePluginServer(s, e)
	return nil
}

func (e *ending) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, errors.New("no client")
}

func (e *ending) PluginInfo(context.Context, *basepb.PluginInfoRequest) (*basepb.PluginInfoResponse, error) {
	return &basepb.PluginInfoResponse{
		Type: basepb.PluginType_DEVICE, Name: e.info.Name, PluginVersion: e.info.Version, PluginApiVersions: []string{nomadplugin.APIVersion},
	}, nil
}

func (e *ending) ConfigSchema(context.Context, *basepb.ConfigSchemaRequest) (*basepb.ConfigSchemaResponse, error) {
	return &basepb.ConfigSchemaResponse{Spec: deviceSchema()}, nil
}

func (e *ending) SetConfig(context.Context, *basepb.SetConfigRequest) (*basepb.SetConfigResponse, error) {
	return &basepb.SetConfigResponse{}, nil
}

func (e *ending) Fingerprint(_ *devicepb.FingerprintRequest, s grpc.ServerStreamingServer[devicepb.FingerprintResponse]) error {
	if err := s.Send(&devicepb.FingerprintResponse{DeviceGroup: []*devicepb.DeviceGroup{sampleGroup(1, nil)}}); err != nil {
		return err
	}
	select {
	case <-s.Context().Done():
	case <-time.After(10 * pollEvery):
	}
	return nil
}
