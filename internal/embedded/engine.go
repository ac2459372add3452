// Package embedded is the embedded engine: one machine that serves the part of Nomad's HTTP API that HeteroFlow
// uses, schedules by Nomad's rules, hosts the same two plugin binaries, and simulates nodes for tests. This package
// wires its parts; it is never a cluster: past one machine the answer is Nomad.
package embedded

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"golang.org/x/sync/errgroup"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/embedded/client"
	"github.com/heteroflow/heteroflow/internal/embedded/core"
	"github.com/heteroflow/heteroflow/internal/embedded/nomadhttp"
	"github.com/heteroflow/heteroflow/internal/embedded/sim"
	"github.com/heteroflow/heteroflow/internal/embedded/state"
)

// SimNode is one simulated node.
type SimNode = sim.Node

// Fault is what goes wrong on a simulated node.
type Fault = sim.Fault

// SimNodes makes n simulated nodes with perNode equal cards each.
func SimNodes(n, perNode int, vendor accel.Vendor, model string, memoryMiB uint64, form accel.Form) []SimNode {
	return sim.Nodes(n, perNode, vendor, model, memoryMiB, form)
}

// NodeSide is the node side of this machine: it tells the engine what it has and runs what it is given.
type NodeSide interface {
	client.Backend
	Run(ctx context.Context) error
}

// Config says what an engine is made of.
type Config struct {
	DataDir  string       // state and allocations; empty keeps the state in memory, and runs no node on this machine
	HTTPAddr string       // 127.0.0.1:0 when empty
	Listener net.Listener // used instead of HTTPAddr when set

	NodeEnabled bool // run this machine as a node; main must call client.Helper first
	Node        client.NodeConfig
	Plugins     []client.PluginConfig
	PluginDir   string
	ConsulAddr  string // where services of provider consul are registered; empty: nowhere
	StopOnExit  bool   // stop the tasks of this machine when Run ends, as a development agent does
	// NewNode makes the node side of this machine; client.New when nil.
	NewNode func(client.Config) (NodeSide, error)

	SimNodes []SimNode

	Logger hclog.Logger
	Clock  clock.Clock // the machine's when nil
	Seed   uint64      // of every choice made by chance
}

// Engine is one embedded engine.
type Engine struct {
	cfg     Config
	log     hclog.Logger
	store   *state.Store
	core    *core.Core
	http    *nomadhttp.Server
	sim     *sim.Cluster
	hosts   map[string]client.Backend // of simulated nodes
	builder *sim.Builder
	node    NodeSide
	nodeID  string
	addr    atomic.Pointer[string]
	ready   chan struct{}
	drop    atomic.Pointer[func(uint64) bool]
}

// New makes an engine and reads its state. Nothing runs or listens before Run.
func New(cfg Config) (*Engine, error) {
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.System()
	}
	if cfg.HTTPAddr == "" {
		cfg.HTTPAddr = "127.0.0.1:0"
	}
	if cfg.NodeEnabled && cfg.DataDir == "" {
		return nil, errors.New("this machine as a node needs a folder for its allocations: set DataDir")
	}
	stateDir := ""
	if cfg.DataDir != "" {
		stateDir = filepath.Join(cfg.DataDir, "server")
	}
	store, err := state.Open(stateDir, cfg.Logger.Named("state"))
	if err != nil {
		return nil, err
	}
	e := &Engine{cfg: cfg, log: cfg.Logger, store: store, hosts: map[string]client.Backend{}, builder: sim.NewBuilder(), ready: make(chan struct{})}
	e.core = core.New(core.Config{Store: store, Logger: cfg.Logger.Named("core"), Clock: cfg.Clock, Seed: cfg.Seed, Host: e.host})
	e.sim = sim.NewCluster(e.core, cfg.Clock, cfg.Logger.Named("sim"))
	for _, n := range cfg.SimNodes {
		id := n.ID
		if id == "" {
			id = sim.NodeID(n.Name)
		}
		e.hosts[id] = e.sim.Host(id)
	}
	if err := e.makeNode(); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	name := cfg.Node.Name
	if name == "" {
		name = "heteroflow"
	}
	e.http = &nomadhttp.Server{
		Core: e.core, Host: e.host, Logger: cfg.Logger.Named("http"), Name: name, Addr: e.Addr,
		Local:      func() string { return e.nodeID },
		DropEvents: func(index uint64) bool { f := e.drop.Load(); return f != nil && (*f)(index) },
	}
	return e, nil
}

// makeNode makes the node side of this machine, under the id it has had since its first start.
func (e *Engine) makeNode() error {
	if !e.cfg.NodeEnabled {
		return nil
	}
	node := e.cfg.Node
	if node.ID == "" {
		id, err := nodeID(e.cfg.DataDir)
		if err != nil {
			return err
		}
		node.ID = id
	}
	if node.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("name the node after its machine: %w", err)
		}
		node.Name = host
	}
	if node.Datacenter == "" {
		node.Datacenter = "dc1"
	}
	if node.NodePool == "" {
		node.NodePool = "default"
	}
	e.nodeID = node.ID
	newNode := e.cfg.NewNode
	if newNode == nil {
		newNode = func(cfg client.Config) (NodeSide, error) { return client.New(cfg) }
	}
	side, err := newNode(client.Config{
		DataDir: filepath.Join(e.cfg.DataDir, "client"), Node: node, PluginDir: e.cfg.PluginDir, Plugins: e.cfg.Plugins,
		Logger: e.cfg.Logger, Up: e.core, ConsulAddr: e.cfg.ConsulAddr, StopOnExit: e.cfg.StopOnExit,
	})
	if err != nil {
		return fmt.Errorf("make the node side: %w", err)
	}
	e.node = side
	return nil
}

// nodeID reads the machine's id, or makes one.
func nodeID(dir string) (string, error) {
	path := filepath.Join(dir, "node_id")
	text, err := os.ReadFile(path)
	if err == nil {
		if id, err := uuid.ParseBytes(text); err == nil {
			return id.String(), nil
		}
		return "", fmt.Errorf("%s holds no node id: restore it, or remove it to have the machine join as a new node", path)
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("read the node's id: %w", err)
	}
	id := uuid.NewString()
	if err := os.WriteFile(path, []byte(id), 0o600); err != nil {
		return "", fmt.Errorf("keep the node's id: %w", err)
	}
	return id, nil
}

// host is the node side of a node, nil when this engine has none.
func (e *Engine) host(id string) client.Backend {
	if e.node != nil && id == e.nodeID {
		return e.node
	}
	return e.hosts[id]
}

// Addr is the address of the HTTP API, such as http://127.0.0.1:4646, once Ready is closed.
func (e *Engine) Addr() string {
	if a := e.addr.Load(); a != nil {
		return *a
	}
	return ""
}

// Ready is closed when the API answers.
func (e *Engine) Ready() <-chan struct{} { return e.ready }

// Run serves until ctx ends. Tasks go on running after it; a later Run over the same data takes them up again.
func (e *Engine) Run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, e.store.Close()) }()
	listener := e.cfg.Listener
	if listener == nil {
		var lc net.ListenConfig
		if listener, err = lc.Listen(ctx, "tcp", e.cfg.HTTPAddr); err != nil {
			return fmt.Errorf("listen for the API: %w", err)
		}
	}
	addr := "http://" + listener.Addr().String()
	e.addr.Store(&addr)
	e.core.SetHTTPAddr(listener.Addr().String())
	if err := errors.Join(e.registerSim(), e.core.Adopt()); err != nil {
		return errors.Join(err, listener.Close())
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return e.core.Run(ctx) })
	g.Go(func() error { return e.sim.Run(ctx) })
	if e.node != nil {
		g.Go(func() error { return e.node.Run(ctx) })
		e.core.TellNode(e.nodeID)
	}
	g.Go(func() error { return e.serve(ctx, listener) })
	close(e.ready)
	e.log.Info("engine runs", "address", addr, "simulated_nodes", len(e.hosts), "node_id", e.nodeID)
	return g.Wait()
}

// registerSim registers the simulated nodes and has them take up what they were running.
func (e *Engine) registerSim() error {
	if len(e.cfg.SimNodes) == 0 {
		return nil
	}
	nodes := make([]*api.Node, len(e.cfg.SimNodes))
	for i, n := range e.cfg.SimNodes {
		nodes[i] = e.builder.Build(n)
	}
	if err := e.core.PutNodes(nodes); err != nil {
		return fmt.Errorf("register simulated nodes: %w", err)
	}
	for id := range e.hosts {
		e.core.TellNode(id)
	}
	return nil
}

// grace is how long open requests may take when the engine ends.
const grace = 2 * time.Second

func (e *Engine) serve(ctx context.Context, listener net.Listener) error {
	srv := &http.Server{
		Handler: e.http, ReadHeaderTimeout: 10 * time.Second,
		// Streams and blocking queries end with the engine.
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stopped := make(chan error, 1)
	go func() {
		<-ctx.Done()
		short, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		err := srv.Shutdown(short)
		if errors.Is(err, context.DeadlineExceeded) {
			err = srv.Close()
		}
		stopped <- err
	}()
	if err := srv.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the API: %w", err)
	}
	return <-stopped
}
