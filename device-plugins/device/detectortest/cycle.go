package detectortest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/devicepb"
)

// period is the time between two cycles of a plugin in its default configuration.
const period = 5 * time.Second

// Cycle measures a full cycle of the plugin over the cards of a detector, which must be as many as said: they are
// found, the list that Nomad gets is made of them, and their live numbers are read. It reports the processor time of
// the cycle, that of the tools it starts included, as a share of one core when a cycle is made every 5 s.
func Cycle(b *testing.B, d device.Detector, cards int) {
	b.Helper()
	cfg := device.DefaultConfig()
	cfg.StateDir, cfg.Root = b.TempDir(), b.TempDir()
	p := device.New(func(device.Config) ([]device.Detector, error) { return []device.Detector{linkless(d)}, nil }, hclog.NewNullLogger())
	cycle(b, p, cfg, cards) // files are read and programs are found for the first time
	b.ReportAllocs()
	before := ProcessorTime(b)
	b.ResetTimer()
	for b.Loop() {
		cycle(b, p, cfg, cards)
	}
	b.StopTimer()
	each := (ProcessorTime(b) - before) / time.Duration(b.N)
	b.ReportMetric(float64(each.Microseconds())/1000, "cpu-ms/cycle")
	b.ReportMetric(100*each.Seconds()/period.Seconds(), "%core@5s")
}

// errEnough ends a stream after its first message.
var errEnough = errors.New("one message is enough")

// cycle makes one reading of everything. To take the config anew has every source read anew, as the next period would.
func cycle(b *testing.B, p *device.Plugin, cfg device.Config, cards int) {
	b.Helper()
	if err := p.Use(cfg); err != nil {
		b.Fatal(err)
	}
	found, sampled := 0, 0
	err := p.Fingerprint(b.Context(), func(groups []*devicepb.DeviceGroup) error {
		for _, g := range groups {
			found += len(g.Devices)
		}
		return errEnough
	})
	if !errors.Is(err, errEnough) || found != cards {
		b.Fatalf("%d cards offered, want %d; %v", found, cards, err)
	}
	err = p.Stats(b.Context(), time.Hour, func(groups []*devicepb.DeviceGroupStats) error {
		for _, g := range groups {
			sampled += len(g.InstanceStats)
		}
		return errEnough
	})
	if !errors.Is(err, errEnough) || sampled == 0 {
		b.Fatalf("no card was sampled; %v", err)
	}
}

// linkless hides that a detector can read how cards are connected: that is asked for when the plugin starts and when
// cards change, not in every cycle.
func linkless(d device.Detector) device.Detector {
	sampler, _ := d.(device.Sampler)
	return struct {
		device.Detector
		sampleOnly
	}{d, sampleOnly{sampler}}
}

type sampleOnly struct{ of device.Sampler }

func (s sampleOnly) Sample(ctx context.Context, cards []accel.Card) (map[string]device.Sample, error) {
	return s.of.Sample(ctx, cards)
}
