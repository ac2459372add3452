// Package host is the side of a plugin's host: it launches a plugin binary, finds a running one again, speaks to it,
// encodes its configuration and notices when it ends. When to launch, restart or kill, and what to do with the
// answers, is decided elsewhere.
package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/basepb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/devicepb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
)

const (
	startTimeout = time.Minute
	// killWait bounds the end of a plugin. go-plugin itself waits 2 s before SIGKILL, and then for the end of
	// stderr, which a stray child of the plugin may hold open for ever.
	killWait = 5 * time.Second
	// watchEvery bounds how late an end is noticed when the connection does not tell.
	watchEvery = 500 * time.Millisecond
)

// Command says how to start a plugin binary. Env is added to the environment of this process.
type Command struct {
	Path string
	Args []string
	Env  []string
}

// ReattachInfo is what finds a running plugin again after a restart of the host.
type ReattachInfo struct {
	Network string `json:"network"`
	Address string `json:"address"`
	Pid     int    `json:"pid"`
}

// Plugin is one running plugin process. Its methods are safe for concurrent use.
type Plugin struct {
	log      hclog.Logger
	client   *plugin.Client
	conn     *grpc.ClientConn
	reattach ReattachInfo
	exited   chan struct{}
	kill     sync.Once
	killed   chan struct{}
}

// DeviceClient speaks to a device plugin.
type DeviceClient struct {
	basepb.BasePluginClient
	devicepb.DevicePluginClient
}

// DriverClient speaks to a task driver.
type DriverClient struct {
	basepb.BasePluginClient
	driverpb.DriverClient
}

// Launch starts a plugin binary and connects to it. A deadline of ctx bounds the start; ctx ends nothing later.
func Launch(ctx context.Context, cmd Command, log hclog.Logger) (*Plugin, error) {
	timeout := startTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(deadline))
	}
	if timeout <= 0 {
		return nil, fmt.Errorf("launch plugin %s: %w", cmd.Path, context.DeadlineExceeded)
	}
	c := exec.Command(cmd.Path, cmd.Args...)
	c.Env = append(os.Environ(), cmd.Env...)
	ownGroup(c)
	p, err := connect(&plugin.ClientConfig{Cmd: c, SkipHostEnv: true, StartTimeout: timeout}, log)
	if err != nil {
		return nil, fmt.Errorf("launch plugin %s: %w", cmd.Path, err)
	}
	return p, nil
}

// Reattach connects to a plugin that an earlier host left running. It refuses a socket whose other end is not the
// process it was told of, since Kill would then hit a stranger.
func Reattach(_ context.Context, info ReattachInfo, log hclog.Logger) (*Plugin, error) {
	if err := checkPeer(info); err != nil {
		return nil, fmt.Errorf("reattach plugin at %s: %w", info.Address, err)
	}
	p, err := connect(&plugin.ClientConfig{Reattach: &plugin.ReattachConfig{
		Protocol: plugin.ProtocolGRPC, ProtocolVersion: int(nomadplugin.Handshake.ProtocolVersion),
		Addr: &net.UnixAddr{Net: info.Network, Name: info.Address}, Pid: info.Pid,
	}}, log)
	if err != nil {
		return nil, fmt.Errorf("reattach plugin at %s: %w", info.Address, err)
	}
	return p, nil
}

func connect(cfg *plugin.ClientConfig, log hclog.Logger) (*Plugin, error) {
	cfg.HandshakeConfig = nomadplugin.Handshake
	cfg.Plugins = plugin.PluginSet{nomadplugin.SetBase: rawConn{}}
	cfg.AllowedProtocols = []plugin.Protocol{plugin.ProtocolGRPC}
	cfg.Logger = log
	client := plugin.NewClient(cfg)
	protocol, err := client.Client()
	if err != nil {
		client.Kill()
		return nil, err
	}
	raw, err := protocol.Dispense(nomadplugin.SetBase)
	if err != nil {
		client.Kill()
		return nil, err
	}
	r := client.ReattachConfig()
	p := &Plugin{
		log: log, client: client, conn: raw.(*grpc.ClientConn), exited: make(chan struct{}), killed: make(chan struct{}),
		reattach: ReattachInfo{Network: r.Addr.Network(), Address: r.Addr.String(), Pid: r.Pid},
	}
	go p.watch()
	return p, nil
}

// rawConn hands out the connection itself.
type rawConn struct{ plugin.NetRPCUnsupportedPlugin }

func (rawConn) GRPCServer(*plugin.GRPCBroker, *grpc.Server) error {
	return errors.New("the host's side serves nothing")
}

func (rawConn) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return conn, nil
}

// watch closes exited once the process is gone.
func (p *Plugin) watch() {
	defer close(p.exited)
	for {
		state := p.conn.GetState()
		if p.client.Exited() || state == connectivity.Shutdown {
			return
		}
		if state != connectivity.Ready && !reachable(p.reattach) {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), watchEvery)
		p.conn.WaitForStateChange(ctx, state)
		cancel()
		if p.conn.GetState() != connectivity.Ready {
			// The socket of a dying process may still accept for a moment.
			time.Sleep(20 * time.Millisecond)
		}
	}
}

func reachable(info ReattachInfo) bool {
	conn, err := net.DialTimeout(info.Network, info.Address, time.Second)
	if err != nil {
		return false
	}
	return conn.Close() == nil
}

// DeviceClient speaks to the process as a device plugin.
func (p *Plugin) DeviceClient() *DeviceClient {
	return &DeviceClient{basepb.NewBasePluginClient(p.conn), devicepb.NewDevicePluginClient(p.conn)}
}

// DriverClient speaks to the process as a task driver.
func (p *Plugin) DriverClient() *DriverClient {
	return &DriverClient{basepb.NewBasePluginClient(p.conn), driverpb.NewDriverClient(p.conn)}
}

// Base speaks to the process as any plugin.
func (p *Plugin) Base() basepb.BasePluginClient { return basepb.NewBasePluginClient(p.conn) }

// ReattachInfo is what a later host needs to find this process again.
func (p *Plugin) ReattachInfo() ReattachInfo { return p.reattach }

// Exited is closed once the process is gone, by Kill or by itself.
func (p *Plugin) Exited() <-chan struct{} { return p.exited }

// Kill ends the process: it is asked to stop, and killed when it has not after 2 s. Kill returns when the process is
// gone, or after 5 s.
func (p *Plugin) Kill() {
	p.kill.Do(func() {
		go func() {
			defer close(p.killed)
			p.client.Kill()
		}()
	})
	timer := time.NewTimer(killWait)
	defer timer.Stop()
	select {
	case <-p.killed:
	case <-timer.C:
		if err := killPeer(p.reattach); err != nil {
			p.log.Warn("plugin not killed", "pid", p.reattach.Pid, "error", err)
		}
	}
}
