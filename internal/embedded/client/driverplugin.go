package client

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/basepb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/hclspec"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/host"
)

// driverPlugin runs one task driver: it takes over the process of an earlier engine, and relaunches one that ended.
type driverPlugin struct {
	bin      *binary
	reattach *reattachStore
	changed  func()
	events   func(*driverpb.DriverTaskEvent)
	log      hclog.Logger
	first    *latch

	mu      sync.Mutex
	current *driverInstance
	next    chan struct{} // closed when current changes
	health  *driverpb.FingerprintResponse
	updated time.Time
}

// driverInstance is one process of a driver, with what it says once.
type driverInstance struct {
	*host.DriverClient
	plugin *host.Plugin
	schema *hclspec.Spec
	caps   *driverpb.DriverCapabilities
}

func newDriverPlugin(bin *binary, reattach *reattachStore, changed func(), events func(*driverpb.DriverTaskEvent)) *driverPlugin {
	return &driverPlugin{
		bin: bin, reattach: reattach, changed: changed, events: events, log: bin.log, first: newLatch(), next: make(chan struct{}),
	}
}

func (d *driverPlugin) name() string { return d.bin.info.GetName() }

// run keeps the driver going until ctx ends. The process itself is left to shutdown, so that tasks can still be
// stopped through it.
func (d *driverPlugin) run(ctx context.Context) {
	wait := 5 * time.Second
	inst := d.takeOver(ctx)
	for ctx.Err() == nil {
		if inst == nil {
			var err error
			if inst, err = d.launch(ctx); err != nil {
				d.log.Error("driver not started", "error", err, "retry_in", wait.String())
				d.setHealth(&driverpb.FingerprintResponse{Health: driverpb.FingerprintResponse_UNHEALTHY, HealthDescription: "driver not started: " + err.Error()})
				clock.Sleep(ctx, clock.System(), wait)
				wait = min(2*wait, 2*time.Minute)
				continue
			}
		}
		wait = 5 * time.Second
		d.setCurrent(inst)
		d.serve(ctx, inst)
		if ctx.Err() != nil {
			return
		}
		d.log.Warn("driver ended and is started again")
		d.setCurrent(nil)
		inst = nil
	}
}

// takeOver reattaches to the driver an earlier engine left running. It gets no configuration again.
func (d *driverPlugin) takeOver(ctx context.Context) *driverInstance {
	info, ok := d.reattach.get(d.bin.conf.Name)
	if !ok {
		return nil
	}
	p, err := host.Reattach(ctx, info, d.log)
	if err != nil {
		d.log.Debug("no driver left over", "error", err)
		return nil
	}
	inst, err := d.introduce(ctx, p)
	if err != nil {
		d.log.Warn("left over driver does not answer and is replaced", "error", err)
		p.Kill()
		return nil
	}
	d.log.Info("driver taken over", "pid", info.Pid)
	return inst
}

func (d *driverPlugin) launch(ctx context.Context) (*driverInstance, error) {
	p, err := d.bin.start(ctx)
	if err != nil {
		return nil, err
	}
	inst, err := d.introduce(ctx, p)
	if err != nil {
		p.Kill()
		return nil, err
	}
	if err := d.reattach.put(d.bin.conf.Name, p.ReattachInfo()); err != nil {
		d.log.Error("driver not remembered", "error", err)
	}
	return inst, nil
}

// introduce asks what a client asks a driver instance before it uses it.
func (d *driverPlugin) introduce(ctx context.Context, p *host.Plugin) (*driverInstance, error) {
	ctx, cancel := context.WithTimeout(ctx, pluginCall)
	defer cancel()
	c := p.DriverClient()
	if _, err := c.PluginInfo(ctx, &basepb.PluginInfoRequest{}); err != nil {
		return nil, fmt.Errorf("ask for its name: %w", err)
	}
	if _, err := c.Init(ctx, &driverpb.InitRequest{}); err != nil {
		return nil, fmt.Errorf("init: %w", err)
	}
	schema, err := c.TaskConfigSchema(ctx, &driverpb.TaskConfigSchemaRequest{})
	if err != nil {
		return nil, fmt.Errorf("ask for its task schema: %w", err)
	}
	caps, err := c.Capabilities(ctx, &driverpb.CapabilitiesRequest{})
	if err != nil {
		return nil, fmt.Errorf("ask for its capabilities: %w", err)
	}
	return &driverInstance{DriverClient: c, plugin: p, schema: schema.GetSpec(), caps: caps.GetCapabilities()}, nil
}

// serve reads the streams of an instance until its process ends or ctx does.
func (d *driverPlugin) serve(ctx context.Context, inst *driverInstance) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { d.fingerprint(ctx, inst) })
	wg.Go(func() { d.taskEvents(ctx, inst) })
	select {
	case <-ctx.Done():
	case <-inst.plugin.Exited():
	}
}

func (d *driverPlugin) fingerprint(ctx context.Context, inst *driverInstance) {
	for ctx.Err() == nil {
		stream, err := inst.Fingerprint(ctx, &driverpb.FingerprintRequest{})
		for err == nil {
			var f *driverpb.FingerprintResponse
			if f, err = stream.Recv(); err == nil {
				if f.GetErr() != "" {
					f.Health, f.HealthDescription = driverpb.FingerprintResponse_UNHEALTHY, f.GetErr()
				}
				d.setHealth(f)
			}
		}
		if ctx.Err() == nil && !pluginGone(err) {
			d.setHealth(&driverpb.FingerprintResponse{Health: driverpb.FingerprintResponse_UNHEALTHY, HealthDescription: rpcText(err)})
			clock.Sleep(ctx, clock.System(), 5*time.Second)
		} else {
			clock.Sleep(ctx, clock.System(), 100*time.Millisecond)
		}
	}
}

func (d *driverPlugin) taskEvents(ctx context.Context, inst *driverInstance) {
	for ctx.Err() == nil {
		stream, err := inst.TaskEvents(ctx, &driverpb.TaskEventsRequest{})
		for err == nil {
			var e *driverpb.DriverTaskEvent
			if e, err = stream.Recv(); err == nil {
				d.events(e)
			}
		}
		clock.Sleep(ctx, clock.System(), 100*time.Millisecond)
	}
}

func (d *driverPlugin) setHealth(f *driverpb.FingerprintResponse) {
	d.mu.Lock()
	d.health, d.updated = f, time.Now()
	d.mu.Unlock()
	d.first.open()
	d.changed()
}

func (d *driverPlugin) state() (*driverpb.FingerprintResponse, time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.health, d.updated
}

func (d *driverPlugin) setCurrent(inst *driverInstance) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.current = inst
	close(d.next)
	d.next = make(chan struct{})
}

// instance waits for a running process other than the one that is known to be gone.
func (d *driverPlugin) instance(ctx context.Context, gone *driverInstance) (*driverInstance, error) {
	for {
		d.mu.Lock()
		inst, next := d.current, d.next
		d.mu.Unlock()
		if inst != nil && inst != gone {
			return inst, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("driver %s is not running: %w", d.name(), ctx.Err())
		case <-next:
		}
	}
}

// shutdown ends the process the way a stopping agent does.
func (d *driverPlugin) shutdown() {
	d.mu.Lock()
	inst := d.current
	d.mu.Unlock()
	if inst == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if _, err := inst.Shutdown(ctx, &driverpb.ShutdownRequest{}); err != nil {
		d.log.Debug("driver did not answer to its shutdown", "error", err)
	}
	inst.plugin.Kill()
	if err := d.reattach.remove(d.bin.conf.Name); err != nil {
		d.log.Error("driver not forgotten", "error", err)
	}
}
