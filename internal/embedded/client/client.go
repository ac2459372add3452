package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/basepb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
)

const (
	// firstFingerprint is how long the node's first registration waits for its plugins.
	firstFingerprint = 50 * time.Second
	// nodeQuiet merges changes of the node that come close together.
	nodeQuiet = 50 * time.Millisecond
)

// unknownTaskError is a call for a task that an allocation does not have.
type unknownTaskError struct{ task, alloc string }

func (e *unknownTaskError) Error() string {
	return fmt.Sprintf("allocation %s has no task %q", e.alloc, e.task)
}

func (e *unknownTaskError) Is(target error) bool { return target == ErrUnknownAlloc }

// Client is a node side: plugins, allocations, logs and services of one node.
type Client struct {
	cfg     Config
	log     hclog.Logger
	store   stateStore
	machine machine
	devices []*devicePlugin
	drivers map[string]*driverPlugin
	consul  *consulSync
	nodeNew chan struct{} // one token: the node changed
	cpu     hostCPU

	mu      sync.Mutex
	runners map[string]*allocRunner
	desired []*api.Allocation
	given   bool // SetAllocs was called
	wake    chan struct{}
	saving  sync.Mutex // one writer of state files and updates at a time, in order
}

var _ Backend = (*Client)(nil)

// New checks the configuration and the data folder. It starts nothing.
func New(cfg Config) (*Client, error) {
	if cfg.Node.HostIP == "" {
		cfg.Node.HostIP = "127.0.0.1"
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	if cfg.Node.ID == "" {
		return nil, errors.New("node has no id")
	}
	dir, err := filepath.Abs(cfg.DataDir)
	if err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	cfg.DataDir = dir
	c := &Client{
		cfg: cfg, log: cfg.Logger.Named("client"), drivers: map[string]*driverPlugin{}, nodeNew: make(chan struct{}, 1),
		runners: map[string]*allocRunner{}, wake: make(chan struct{}, 1),
	}
	c.store = stateStore{c.path("allocs")}
	for _, d := range []string{c.path(), c.store.dir, c.path("alloc")} {
		if err := os.MkdirAll(d, 0o711); err != nil {
			return nil, fmt.Errorf("make data folder: %w", err)
		}
	}
	if c.machine, err = findMachine(cfg.Node, cfg.DataDir); err != nil {
		return nil, err
	}
	if c.consul, err = newConsulSync(cfg.ConsulAddr, cfg.Node.ID, c.log.Named("consul")); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Client) path(parts ...string) string {
	return filepath.Join(append([]string{c.cfg.DataDir}, parts...)...)
}

func (c *Client) allocRoot(id string) string { return c.path("alloc", id) }

// Run hosts the plugins, takes over what an earlier engine left running, and works until ctx ends. Tasks run on after
// it, unless StopOnExit is set.
func (c *Client) Run(ctx context.Context) error {
	if err := c.loadPlugins(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	plugins, stopPlugins := context.WithCancel(context.WithoutCancel(ctx))
	var pluginsDone, tasks sync.WaitGroup
	for _, d := range c.devices {
		pluginsDone.Go(func() { d.run(plugins) })
	}
	for _, d := range c.drivers {
		pluginsDone.Go(func() { d.run(plugins) })
	}
	tasks.Go(func() { c.consul.run(ctx) })
	defer func() {
		tasks.Wait()
		if c.cfg.StopOnExit {
			c.stopTasks()
		}
		stopPlugins()
		pluginsDone.Wait()
		for _, d := range c.drivers {
			d.shutdown()
		}
	}()
	c.waitFirst(ctx)
	if ctx.Err() != nil {
		return nil
	}
	tasks.Go(func() { c.tellNode(ctx) })
	if err := c.restore(ctx, &tasks); err != nil {
		return err
	}
	c.nodeChanged()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.wake:
			c.reconcile(ctx, &tasks)
		}
	}
}

// loadPlugins checks every configured plugin as an agent does at its start.
func (c *Client) loadPlugins(ctx context.Context) error {
	reattach, err := openReattachStore(c.path("plugins.json"))
	if err != nil {
		return err
	}
	for _, conf := range c.cfg.Plugins {
		b, err := inspect(ctx, c.cfg.PluginDir, conf, c.log.Named("plugin"))
		if err != nil {
			return err
		}
		switch b.info.GetType() {
		case basepb.PluginType_DEVICE:
			c.devices = append(c.devices, newDevicePlugin(b, reattach, c.nodeChanged))
		case basepb.PluginType_DRIVER:
			c.drivers[b.info.GetName()] = newDriverPlugin(b, reattach, c.nodeChanged, c.driverEvent)
		default:
			return fmt.Errorf("plugin %s is neither a device plugin nor a driver", conf.Name)
		}
	}
	return nil
}

// waitFirst waits for the first word of every plugin, but not for ever.
func (c *Client) waitFirst(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, firstFingerprint)
	defer cancel()
	latches := []*latch{}
	for _, d := range c.devices {
		latches = append(latches, d.first)
	}
	for _, d := range c.drivers {
		latches = append(latches, d.first)
	}
	for _, l := range latches {
		select {
		case <-ctx.Done():
			return
		case <-l.ch:
		}
	}
}

func (c *Client) nodeChanged() {
	select {
	case c.nodeNew <- struct{}{}:
	default:
	}
}

// tellNode states the node after each change.
func (c *Client) tellNode(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.nodeNew:
		}
		if !clock.Sleep(ctx, clock.System(), nodeQuiet) {
			return
		}
		c.cfg.Up.UpdateNode(c.node())
	}
}

// driverEvent puts a driver's own text among the events of its task.
func (c *Client) driverEvent(e *driverpb.DriverTaskEvent) {
	ar, err := c.runner(e.GetAllocId())
	if err != nil {
		return // an event of a task that is no longer here
	}
	if t := ar.task(e.GetTaskName()); t != nil {
		ev := newEvent(api.TaskDriverMessage, e.GetMessage())
		ev.DriverMessage = e.GetMessage()
		for k, v := range e.GetAnnotations() {
			ev.Details[k] = v
		}
		t.event(ev)
	}
}

func (c *Client) runner(id string) (*allocRunner, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ar := c.runners[id]; ar != nil {
		return ar, nil
	}
	return nil, fmt.Errorf("allocation %s: %w", id, ErrUnknownAlloc)
}

// deviceOwner is the plugin that offers all instances of a device entry.
func (c *Client) deviceOwner(d *api.AllocatedDeviceResource) *devicePlugin {
	for _, p := range c.devices {
		if p.owns(d.Vendor, d.Type, d.Name, d.DeviceIDs) {
			return p
		}
	}
	return nil
}
