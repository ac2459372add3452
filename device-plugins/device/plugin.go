package device

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/devicepb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/hclspec"
	"github.com/heteroflow/heteroflow/internal/version"
)

// Name is the plugin's name and the file name of its binary.
const Name = "heteroflow-device"

const (
	callLimit    = 5 * time.Second  // one reading of one source
	firstLimit   = 6 * time.Second  // wait for every source before the first list is sent
	reserveGrace = 60 * time.Second // a reserved card is in use this long before its task has a lease
)

// Build makes the detectors for a config. It must not touch the machine beyond reading files.
type Build func(Config) ([]Detector, error)

// Plugin is the device plugin.
type Plugin struct {
	log   hclog.Logger
	build Build
	now   func() time.Time
	// elapsed is the time since the plugin was made, whatever is done to the clock.
	elapsed func() time.Duration
	limit   time.Duration // of one call to a detector
	retry   time.Duration // first pause after a failed call to the placement service, and between tries to switch a busy card

	mu      sync.Mutex
	set     settings
	sources []*source
	forms   *formBook
	history *history
	marks   *grant.Marks
	faults  map[string]*faults // card → what was counted; none while its brand tells of no events
	flagged map[string]bool    // cards that processes without a grant use
	dispute map[string]string  // card → what was told of its conflicts
	parts   ownership
	leased  map[string]accel.Form // card → the form in which tasks had it when the plugin started, until they end
	changed chan struct{}         // closed and replaced at every change

	watchMu  sync.Mutex
	watching int
	endWatch func()
}

var _ nomadplugin.Device = (*Plugin)(nil)

// New returns a plugin whose detectors are made by build.
func New(build Build, log hclog.Logger) *Plugin {
	began := time.Now()
	return &Plugin{
		log: log, build: build, now: time.Now, elapsed: func() time.Duration { return time.Since(began) }, limit: callLimit, retry: 2 * time.Second,
		changed: make(chan struct{}), faults: map[string]*faults{}, flagged: map[string]bool{}, dispute: map[string]string{}, parts: newOwnership(), set: settings{Config: DefaultConfig()},
	}
}

// Info names the plugin.
func (p *Plugin) Info() nomadplugin.Info {
	return nomadplugin.Info{Name: Name, Version: version.Version}
}

// ConfigSchema describes the plugin's config block.
func (p *Plugin) ConfigSchema() *hclspec.Spec { return configSchema() }

// Configure reads the config block and makes the detectors. Nothing is started and nothing is written.
func (p *Plugin) Configure(msgpack []byte) error {
	cfg := DefaultConfig()
	if err := nomadplugin.DecodeConfig(msgpack, &cfg); err != nil {
		return err
	}
	return p.Use(cfg)
}

// Use takes a config that needs no decoding.
func (p *Plugin) Use(cfg Config) error {
	set, err := cfg.check()
	if err != nil {
		return fmt.Errorf("config of %s: %w", Name, err)
	}
	detectors, err := p.build(cfg)
	if err != nil {
		return fmt.Errorf("config of %s: %w", Name, err)
	}
	var sources []*source
	for _, d := range detectors {
		if set.wants(d.Vendor()) {
			sources = append(sources, newSource(d, set, func() time.Time { return p.now() }))
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set, p.sources, p.forms, p.history = set, sources, nil, nil
	p.marks = grant.NewMarks(p.leasesDir(), func() time.Duration { return p.elapsed() })
	return nil
}

// ready makes what needs a config: a plugin that the host never configured runs on the defaults.
func (p *Plugin) ready() error {
	p.mu.Lock()
	configured := p.sources != nil || p.set.sliceMiB != 0
	p.mu.Unlock()
	if !configured {
		if err := p.Use(DefaultConfig()); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.forms != nil {
		return nil
	}
	book, err := openForms(p.set.StateDir)
	if err != nil { // offering every card whole is better than offering none
		p.log.Error("chosen forms are lost, cards without a rule are offered whole", "error", err)
	}
	p.forms, p.history = book, openHistory(p.set.StateDir, p.log)
	p.tidy() // of the marks that are there the age counts from here
	p.keepLeased()
	p.recall()
	return nil
}

// Fingerprint sends the device groups at once and at every real change until ctx ends.
func (p *Plugin) Fingerprint(ctx context.Context, send func([]*devicepb.DeviceGroup) error) error {
	if err := p.ready(); err != nil {
		return err
	}
	if !p.enabled() {
		err := send(nil)
		<-ctx.Done()
		return errors.Join(err, ctx.Err())
	}
	p.checkState()
	defer p.watch()()
	p.awaitFirst(ctx)
	var last []*devicepb.DeviceGroup
	for sent := false; ; {
		groups, changed := p.groups()
		if !sent || !sameGroups(last, groups) {
			if err := send(groups); err != nil {
				return fmt.Errorf("send fingerprint: %w", err)
			}
			last, sent = groups, true
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

func (p *Plugin) enabled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.set.Enabled
}

// groups is what is offered now, and a channel that is closed when that may have changed.
func (p *Plugin) groups() ([]*devicepb.DeviceGroup, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return deviceGroups(p.offers()), p.changed
}

// offers lists every card that is offered. The caller holds mu.
func (p *Plugin) offers() []offer {
	var offers []offer
	for _, s := range p.sources {
		for _, c := range s.tracker.cards() {
			if p.set.ignores(c) {
				continue
			}
			o := p.offer(c)
			o.neighbours = s.near[c.UUID]
			offers = append(offers, o)
		}
	}
	return offers
}

func (p *Plugin) offer(c accel.Card) offer {
	o := offer{Card: c, found: c.Form, sliceMiB: p.set.sliceMiB}
	o.Form, o.policy = p.set.offered(c, p.forms)
	o.wait(p.leased[c.UUID])
	if p.parts.doubt[c.UUID] {
		o.waits = reasonDoubt
	}
	o.Rounding = roundings(c)
	if o.Form == accel.MIG {
		o.sliceMiB = migSliceMiB(o.Card)
	}
	return o
}

// notify wakes everyone who waits for a change. The caller holds mu.
func (p *Plugin) notify() {
	close(p.changed)
	p.changed = make(chan struct{})
}
