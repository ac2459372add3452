package nomadplugin

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	goversion "github.com/hashicorp/go-version"
	"google.golang.org/grpc"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/basepb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/devicepb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
)

// Handshake is what plugin and host must agree on before they talk.
var Handshake = plugin.HandshakeConfig{
	ProtocolVersion:  2,
	MagicCookieKey:   "NOMAD_PLUGIN_MAGIC_COOKIE",
	MagicCookieValue: "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255",
}

// Keys of the plugin set.
const (
	SetBase   = "base"
	SetDevice = "device"
	SetDriver = "driver"
)

// maxRecvBytes bounds one message to the plugin. gRPC's own 4 MiB is little for a task with many slices and a large
// job environment.
const maxRecvBytes = 64 << 20

// ServeDevice serves a device plugin until the host ends it. Nothing may be written to stdout before.
func ServeDevice(p Device, log hclog.Logger) {
	serve(p, log, plugin.PluginSet{
		SetBase:   registrar(func(s *grpc.Server) { registerBase(s, p, basepb.PluginType_DEVICE) }),
		SetDevice: registrar(func(s *grpc.Server) { registerDevice(s, p, log) }),
	})
}

// ServeDriver serves a task driver until the host ends it. Nothing may be written to stdout before.
func ServeDriver(p Driver, log hclog.Logger) {
	serve(p, log, plugin.PluginSet{
		SetBase:   registrar(func(s *grpc.Server) { registerBase(s, p, basepb.PluginType_DRIVER) }),
		SetDriver: registrar(func(s *grpc.Server) { registerDriver(s, p, log) }),
	})
}

func serve(p Base, log hclog.Logger, set plugin.PluginSet) {
	if err := checkInfo(p.Info()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	// A plugin outlives a host that was killed, and the host held the other end of stderr: without this the next
	// log line would end the process.
	signal.Ignore(syscall.SIGPIPE)
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: Handshake,
		Plugins:         set,
		Logger:          log,
		GRPCServer:      func(opts []grpc.ServerOption) *grpc.Server { return grpc.NewServer(serverOptions(opts, log)...) },
	})
}

// serverOptions adds what every plugin server needs: handlers that survive a panic, and texts that are valid UTF-8.
func serverOptions(opts []grpc.ServerOption, log hclog.Logger) []grpc.ServerOption {
	g := guard{log}
	return append(opts,
		grpc.MaxRecvMsgSize(maxRecvBytes),
		grpc.ChainUnaryInterceptor(g.unary),
		grpc.ChainStreamInterceptor(g.stream),
	)
}

// checkInfo refuses what the host would refuse with an agent that does not start.
func checkInfo(info Info) error {
	if info.Name == "" {
		return fmt.Errorf("plugin has no name: give it the name of its binary")
	}
	if _, err := goversion.NewVersion(info.Version); err != nil {
		return fmt.Errorf("plugin version %q is not a version: write three numbers, for example \"0.1.0\"", info.Version)
	}
	return nil
}

func registerBase(s *grpc.Server, p Base, kind basepb.PluginType) {
	basepb.RegisterBasePluginServer(s, &baseServer{plugin: p, kind: kind})
}

func registerDevice(s *grpc.Server, p Device, log hclog.Logger) {
	devicepb.RegisterDevicePluginServer(s, &deviceServer{plugin: p, log: log, pause: defaultPause})
}

func registerDriver(s *grpc.Server, p Driver, log hclog.Logger) {
	driverpb.RegisterDriverServer(s, &driverServer{plugin: p, log: log, pause: defaultPause})
}

// grpcPlugin hooks a registration into go-plugin's server.
type grpcPlugin struct {
	plugin.NetRPCUnsupportedPlugin
	register func(*grpc.Server)
}

var _ plugin.GRPCPlugin = (*grpcPlugin)(nil)

func registrar(register func(*grpc.Server)) plugin.Plugin { return &grpcPlugin{register: register} }

func (g *grpcPlugin) GRPCServer(_ *plugin.GRPCBroker, s *grpc.Server) error {
	g.register(s)
	return nil
}

func (g *grpcPlugin) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, fmt.Errorf("the plugin's side has no client: use nomadplugin/host")
}

// baseServer answers who the plugin is.
type baseServer struct {
	basepb.UnimplementedBasePluginServer
	plugin Base
	kind   basepb.PluginType
}

func (b *baseServer) PluginInfo(context.Context, *basepb.PluginInfoRequest) (*basepb.PluginInfoResponse, error) {
	info := b.plugin.Info()
	return &basepb.PluginInfoResponse{
		Type: b.kind, Name: info.Name, PluginVersion: info.Version, PluginApiVersions: []string{APIVersion},
	}, nil
}

func (b *baseServer) ConfigSchema(context.Context, *basepb.ConfigSchemaRequest) (*basepb.ConfigSchemaResponse, error) {
	return &basepb.ConfigSchemaResponse{Spec: orEmpty(b.plugin.ConfigSchema())}, nil
}

func (b *baseServer) SetConfig(_ context.Context, req *basepb.SetConfigRequest) (*basepb.SetConfigResponse, error) {
	if err := b.plugin.Configure(req.GetMsgpackConfig()); err != nil {
		return nil, statusError(err)
	}
	return &basepb.SetConfigResponse{}, nil
}
