package client

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/devicepb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/host"
)

// statsEvery is the interval that plugins are asked to collect statistics in.
const statsEvery = time.Second

// devicePlugin runs one device plugin by the host's rules: a crash is answered with a new process at once, an end or
// error of its stream with its removal until the engine starts again.
type devicePlugin struct {
	bin      *binary
	reattach *reattachStore
	changed  func()
	log      hclog.Logger
	first    *latch // the first list came, or never will

	mu      sync.Mutex
	running *host.Plugin
	groups  []*devicepb.DeviceGroup
	stats   []*devicepb.DeviceGroupStats
}

func newDevicePlugin(bin *binary, reattach *reattachStore, changed func()) *devicePlugin {
	return &devicePlugin{bin: bin, reattach: reattach, changed: changed, log: bin.log, first: newLatch()}
}

// run keeps the plugin going until ctx ends.
func (d *devicePlugin) run(ctx context.Context) {
	defer d.first.open()
	d.killOrphan(ctx)
	for ctx.Err() == nil {
		started := time.Now()
		p, err := d.bin.start(ctx)
		if err != nil {
			// The last list stays on the node, as it does in an agent whose relaunch fails.
			d.log.Error("device plugin not started", "error", err)
			return
		}
		if err := d.reattach.put(d.bin.conf.Name, p.ReattachInfo()); err != nil {
			d.log.Error("device plugin not remembered", "error", err)
		}
		d.setRunning(p)
		err = d.serve(ctx, p)
		crashed := ctx.Err() == nil && pluginGone(err) && exitedSoon(p)
		d.setRunning(nil)
		p.Kill()
		if ctx.Err() != nil {
			return
		}
		if !crashed {
			d.log.Error("device plugin ended its fingerprint and is not started again", "error", err)
			d.setGroups(nil)
			return
		}
		d.log.Warn("device plugin ended and is started again", "error", err)
		if time.Since(started) < time.Second {
			clock.Sleep(ctx, clock.System(), time.Second)
		}
	}
}

// exitedSoon tells a crash from a process that lives and cannot be spoken to: a crashed one is gone within moments.
func exitedSoon(p *host.Plugin) bool {
	timer := time.NewTimer(3 * time.Second)
	defer timer.Stop()
	select {
	case <-p.Exited():
		return true
	case <-timer.C:
		return false
	}
}

// killOrphan ends the process that an engine before this one left: a device plugin is never taken over.
func (d *devicePlugin) killOrphan(ctx context.Context) {
	info, ok := d.reattach.get(d.bin.conf.Name)
	if !ok {
		return
	}
	p, err := host.Reattach(ctx, info, d.log)
	if err != nil {
		d.log.Debug("no device plugin left over", "error", err)
		return
	}
	p.Kill()
}

// serve reads the plugin's streams until the fingerprint ends.
func (d *devicePlugin) serve(ctx context.Context, p *host.Plugin) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	stream, err := p.DeviceClient().Fingerprint(ctx, &devicepb.FingerprintRequest{})
	if err != nil {
		return err
	}
	wg.Go(func() { d.collectStats(ctx, p) })
	for {
		list, err := stream.Recv()
		if err != nil {
			return err
		}
		d.setGroups(list.GetDeviceGroup())
		d.first.open()
	}
}

func (d *devicePlugin) collectStats(ctx context.Context, p *host.Plugin) {
	for wait := 5 * time.Second; ctx.Err() == nil; wait = min(2*wait, 30*time.Minute) {
		stream, err := p.DeviceClient().Stats(ctx, &devicepb.StatsRequest{CollectionInterval: durationpb.New(statsEvery)})
		for err == nil {
			var resp *devicepb.StatsResponse
			if resp, err = stream.Recv(); err == nil && len(resp.GetGroups()) > 0 {
				d.mu.Lock()
				d.stats = resp.Groups
				d.mu.Unlock()
			}
		}
		if ctx.Err() == nil {
			d.log.Warn("device statistics ended and are asked for again", "error", err)
			clock.Sleep(ctx, clock.System(), wait)
		}
	}
}

func (d *devicePlugin) setRunning(p *host.Plugin) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.running = p
}

func (d *devicePlugin) setGroups(groups []*devicepb.DeviceGroup) {
	d.mu.Lock()
	d.groups = groups
	if len(groups) == 0 {
		d.stats = nil
	}
	d.mu.Unlock()
	d.changed()
}

func (d *devicePlugin) state() ([]*devicepb.DeviceGroup, []*devicepb.DeviceGroupStats) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.groups, d.stats
}

// owns reports whether the plugin's last list has the group with all the instances.
func (d *devicePlugin) owns(vendor, typ, name string, ids []string) bool {
	groups, _ := d.state()
	for _, g := range groups {
		if g.GetVendor() != vendor || g.GetDeviceType() != typ || g.GetDeviceName() != name {
			continue
		}
		known := map[string]bool{}
		for _, dev := range g.GetDevices() {
			known[dev.GetID()] = true
		}
		for _, id := range ids {
			if !known[id] {
				return false
			}
		}
		return true
	}
	return false
}

// reserve asks the running process. During a relaunch it waits for the next one.
func (d *devicePlugin) reserve(ctx context.Context, ids []string) (*devicepb.ContainerReservation, error) {
	for {
		d.mu.Lock()
		p := d.running
		d.mu.Unlock()
		if p != nil {
			resp, err := p.DeviceClient().Reserve(ctx, &devicepb.ReserveRequest{DeviceIds: ids})
			if err == nil {
				return resp.GetContainerRes(), nil
			}
			if !pluginGone(err) {
				return nil, fmt.Errorf("reserve %v: %s", ids, rpcText(err))
			}
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("reserve %v: device plugin is not running: %w", ids, ctx.Err())
		}
		clock.Sleep(ctx, clock.System(), 50*time.Millisecond)
	}
}
