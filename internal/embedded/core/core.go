// Package core is what the embedded engine does: it takes jobs, has them scheduled one evaluation after another,
// tells each node what to run, hears from the nodes, follows deployments and timers, and forgets what is over. How a
// request looks on the wire, and what a node does with an allocation, is not decided here.
package core

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"golang.org/x/sync/errgroup"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/embedded/client"
	"github.com/heteroflow/heteroflow/internal/embedded/state"
)

// Config is what a core needs.
type Config struct {
	Store  *state.Store
	Logger hclog.Logger
	Clock  clock.Clock // the machine's when nil
	Seed   uint64
	// Host is the node side of a node, nil while it has none.
	Host func(nodeID string) client.Backend
}

// Core runs the engine's own loops over a store.
type Core struct {
	store *state.Store
	log   hclog.Logger
	clock clock.Clock
	host  func(string) client.Backend

	randMu sync.Mutex
	rand   *rand.Rand

	configMu sync.Mutex
	config   api.SchedulerConfiguration
	configAt uint64

	httpAddr string

	wake     signal // evaluations to work on
	deploy   signal // deployments to look at
	periodic signal // timers to set anew
	push     signal // nodes to tell
	incoming signal // client updates to take

	mu      sync.Mutex
	freed   bool
	dirty   map[string]bool
	updates []func(*state.Tx) error
}

// signal is a wake-up that is never lost and never piles up.
type signal chan struct{}

func (s signal) set() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// New makes a core over a store. Nothing runs before Run.
func New(cfg Config) *Core {
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.System()
	}
	if cfg.Host == nil {
		cfg.Host = func(string) client.Backend { return nil }
	}
	c := &Core{
		store: cfg.Store, log: cfg.Logger, clock: cfg.Clock, host: cfg.Host,
		rand: rand.New(rand.NewPCG(cfg.Seed, 0x9e3779b97f4a7c15)),
		wake: make(signal, 1), deploy: make(signal, 1), periodic: make(signal, 1), push: make(signal, 1), incoming: make(signal, 1),
		dirty: map[string]bool{}, freed: true,
		config: api.SchedulerConfiguration{
			SchedulerAlgorithm: api.SchedulerAlgorithmBinpack,
			PreemptionConfig:   api.PreemptionConfig{SystemSchedulerEnabled: false},
		},
		configAt: 1,
	}
	c.store.OnCommit(c.committed)
	return c
}

// Store is the state the core works on.
func (c *Core) Store() *state.Store { return c.store }

// SetHTTPAddr sets the address at which nodes are reached, host:port. Call it before Run.
func (c *Core) SetHTTPAddr(addr string) { c.httpAddr = addr }

// committed sorts a change to those who act on it.
func (c *Core) committed(ch state.Change) {
	c.mu.Lock()
	c.freed = c.freed || ch.Freed
	for _, n := range ch.Nodes {
		c.dirty[n] = true
	}
	c.mu.Unlock()
	if ch.Freed || len(ch.Evals) > 0 {
		c.wake.set()
	}
	if len(ch.Nodes) > 0 {
		c.push.set()
	}
	if ch.Deploy {
		c.deploy.set()
	}
}

// Run works until ctx ends.
func (c *Core) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	c.wake.set()
	c.deploy.set()
	c.periodic.set()
	for _, loop := range []func(context.Context) error{c.schedule, c.watchDeployments, c.tellNodes, c.takeUpdates, c.runPeriodic, c.collect, c.followDrains} {
		g.Go(func() error { return loop(ctx) })
	}
	return g.Wait()
}

// NewID names something new.
func (c *Core) NewID() string { return uuid.NewString() }

func (c *Core) now() time.Time { return c.clock.Now() }

// await waits for a wake-up, or until next unless that is zero. It is false when ctx ended.
func (c *Core) await(ctx context.Context, next time.Time, wake signal) bool {
	var timer <-chan time.Time
	if !next.IsZero() {
		timer = c.clock.After(next.Sub(c.now()))
	}
	select {
	case <-ctx.Done():
		return false
	case <-timer:
	case <-wake:
	}
	return true
}

// fork is a random source for one evaluation.
func (c *Core) fork() *rand.Rand {
	c.randMu.Lock()
	defer c.randMu.Unlock()
	return rand.New(rand.NewPCG(c.rand.Uint64(), c.rand.Uint64()))
}

// SchedulerConfig is the scheduler's configuration and the index of its last change.
func (c *Core) SchedulerConfig() (api.SchedulerConfiguration, uint64) {
	c.configMu.Lock()
	defer c.configMu.Unlock()
	cfg := c.config
	cfg.CreateIndex, cfg.ModifyIndex = c.configAt, c.configAt
	return cfg, c.configAt
}

// SetSchedulerConfig changes the scheduler's configuration, for as long as the process lives.
func (c *Core) SetSchedulerConfig(cfg api.SchedulerConfiguration) uint64 {
	c.configMu.Lock()
	defer c.configMu.Unlock()
	c.config, c.configAt = cfg, c.store.Index()
	return c.configAt
}

// evaluation makes a pending evaluation of a job.
func (c *Core) evaluation(j *api.Job, trigger string) *api.Evaluation {
	now := c.now().UnixNano()
	return &api.Evaluation{
		ID: c.NewID(), Namespace: *j.Namespace, Priority: *j.Priority, Type: *j.Type, TriggeredBy: trigger, JobID: *j.ID,
		JobModifyIndex: *j.JobModifyIndex, Status: api.EvalStatusPending, CreateTime: now, ModifyTime: now,
	}
}
