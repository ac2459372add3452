package sim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/device-plugins/topology"
	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/clock"
)

// Detector is the simulated cards of one brand. It is safe for concurrent use.
type Detector struct {
	vendor   accel.Vendor
	cards    []accel.Card
	switches *switches
	graph    topology.Graph // of the cards of all brands

	mu      sync.Mutex
	samples int             // how often live numbers were read
	told    map[string]bool // events that befell their cards
}

var (
	_ device.Detector      = (*Detector)(nil)
	_ device.Sampler       = (*Detector)(nil)
	_ device.ProcessLister = (*Detector)(nil)
	_ device.Reserver      = (*Detector)(nil)
	_ device.EventTeller   = (*Detector)(nil)
	_ device.Linker        = (*Detector)(nil)
)

// Name is the name of the source.
func (d *Detector) Name() string { return "sim-" + string(d.vendor) }

// Vendor is the brand that is simulated.
func (d *Detector) Vendor() accel.Vendor { return d.vendor }

// Detect lists the cards as the control file leaves them.
func (d *Detector) Detect(ctx context.Context) ([]accel.Card, error) {
	now, err := d.switches.read()
	if err != nil {
		return nil, err
	}
	if !clock.Sleep(ctx, clock.System(), now.delay(d.vendor, func(b delayBlock) string { return b.Fingerprint })) {
		return nil, ctx.Err()
	}
	cards := make([]accel.Card, 0, len(d.cards))
	for _, c := range d.cards {
		fault := now.fault(c)
		if fault.Error != "" {
			return nil, errors.New(fault.Error)
		}
		if fault.Gone {
			continue
		}
		if fault.Health != "" {
			c.Health = accel.Health{Reason: fault.Health}
		}
		cards = append(cards, c)
	}
	return cards, nil
}

// Sample reads live numbers: a wave over the number of readings, shifted from card to card. A card whose memory is
// unknown, or that is mute, does not tell.
func (d *Detector) Sample(ctx context.Context, cards []accel.Card) (map[string]device.Sample, error) {
	now, err := d.switches.read()
	if err != nil {
		return nil, err
	}
	if !clock.Sleep(ctx, clock.System(), now.delay(d.vendor, func(b delayBlock) string { return b.Stats })) {
		return nil, ctx.Err()
	}
	d.mu.Lock()
	n := d.samples
	d.samples++
	d.mu.Unlock()
	samples := map[string]device.Sample{}
	for _, c := range cards {
		fault := now.fault(c)
		if fault.Gone || fault.Mute {
			continue
		}
		sample := wave(c, n)
		if len(d.graph.Links(c.UUID, topology.Card)) > 0 {
			sample.LinkDown = &fault.LinkDown
		}
		sample.Processes = now.processesOn(c)
		samples[c.UUID] = sample
	}
	return samples, nil
}

// wave goes once up and down in 60 readings. What a card reports besides differs by brand, as with real ones: NVIDIA's and
// AMD's tell the most.
func wave(c accel.Card, n int) device.Sample {
	level := (1 + math.Sin(2*math.Pi*float64(n+7*c.Index)/60)) / 2
	round := func(v float64) *float64 { v = math.Round(v); return &v }
	s := device.Sample{
		UtilizationPct: round(100 * level), TemperatureC: round(30 + 50*level), PowerW: round(60 + 240*level), PowerLimitW: round(300),
	}
	if c.MemoryMiB != nil {
		used := uint64(float64(*c.MemoryMiB) * level / 2)
		s.MemoryUsedMiB = &used
	}
	if c.Vendor == accel.NVIDIA || c.Vendor == accel.AMD {
		s.MemoryTemperatureC, s.EnergyJ = round(35+50*level), round(1000*float64(n))
		s.ClockMHz, s.MemoryClockMHz = round(300+1100*level), round(1600)
		s.ECCCorrected, s.ECCUncorrected = round(0), round(0)
	}
	return s
}

// Processes lists the processes of the control file.
func (d *Detector) Processes(_ context.Context, cards []accel.Card) (map[string][]int, error) {
	now, err := d.switches.read()
	if err != nil {
		return nil, err
	}
	byCard := map[string][]int{}
	for _, c := range cards {
		byCard[c.UUID] = now.processesOn(c)
	}
	return byCard, nil
}

// processesOn are the processes of a card, never nil.
func (c control) processesOn(card accel.Card) []int {
	pids := []int{}
	for _, p := range c.Processes {
		if names(p.Card, card) {
			pids = append(pids, p.PID)
		}
	}
	return pids
}

// Events are those of the control file that were not told yet.
func (d *Detector) Events() []device.Event {
	now, err := d.switches.read()
	if err != nil {
		return nil // Detect tells it
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	events := []device.Event{}
	for _, e := range now.Events {
		for _, c := range d.cards {
			key := fmt.Sprint(c.UUID, e)
			if !names(e.Card, c) || d.told[key] {
				continue
			}
			if d.told == nil {
				d.told = map[string]bool{}
			}
			d.told[key] = true
			events = append(events, device.Event{Card: c.UUID, Code: "simulated", Text: e.Text, Blame: blames[e.Blame]})
		}
	}
	return events
}

// BeforeReserve takes as long as the control file says.
func (d *Detector) BeforeReserve(ctx context.Context, _ []accel.Card) error {
	now, err := d.switches.read()
	if err != nil {
		return err
	}
	if !clock.Sleep(ctx, clock.System(), now.delay(d.vendor, func(b delayBlock) string { return b.Reserve })) {
		return ctx.Err()
	}
	return nil
}

// switches is the control file. It is read at every call, so that a change shows at once and needs no watcher.
type switches struct{ path string }

func (s *switches) read() (control, error) {
	var c control
	if s.path == "" {
		return c, nil
	}
	src, err := os.ReadFile(s.path)
	if errors.Is(err, os.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, fmt.Errorf("read control file of the simulator: %w", err)
	}
	if err := decode(s.path, src, &c); err != nil {
		return c, fmt.Errorf("read control file of the simulator: %w", err)
	}
	return c, c.check()
}

// names tells whether text means the card: by UUID, as vendor/index, or as the whole brand.
func names(text string, c accel.Card) bool {
	return text == c.UUID || text == string(c.Vendor)+"/"+strconv.Itoa(c.Index) || text == string(c.Vendor)
}

// fault is everything that is wrong with a card.
func (c control) fault(card accel.Card) faultBlock {
	var sum faultBlock
	for _, f := range c.Faults {
		if !names(f.Card, card) {
			continue
		}
		if f.Health != "" {
			sum.Health = f.Health
		}
		if f.Error != "" {
			sum.Error = f.Error
		}
		sum.Gone = sum.Gone || f.Gone
		sum.Mute = sum.Mute || f.Mute
		sum.LinkDown = sum.LinkDown || f.LinkDown
	}
	return sum
}

// delay is the longest delay that applies to a brand.
func (c control) delay(v accel.Vendor, which func(delayBlock) string) time.Duration {
	var longest time.Duration
	for _, b := range c.Delay {
		if b.Vendor != "" && b.Vendor != string(v) {
			continue
		}
		if d, err := duration(which(b)); err == nil { // checked when the file was read
			longest = max(longest, d)
		}
	}
	return longest
}
