package device

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/devicepb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/structspb"
)

// minStatsEvery keeps an agent with a very short interval from starting vendors' tools without end.
const minStatsEvery = time.Second

// Stats sends the live numbers of every card about every interval until ctx ends. A source that does not answer is
// left out of a message and asked again for the next.
func (p *Plugin) Stats(ctx context.Context, every time.Duration, send func([]*devicepb.DeviceGroupStats) error) error {
	if err := p.ready(); err != nil {
		return err
	}
	p.awaitFirst(ctx)
	for {
		if err := send(p.statsNow(ctx)); err != nil {
			return fmt.Errorf("send statistics: %w", err)
		}
		if !clock.Sleep(ctx, clock.System(), max(every, minStatsEvery)) {
			return ctx.Err()
		}
	}
}

func (p *Plugin) statsNow(ctx context.Context) []*devicepb.DeviceGroupStats {
	p.mu.Lock()
	offers := p.offers()
	p.mu.Unlock()
	cards := make([]accel.Card, len(offers))
	for i, o := range offers {
		cards[i] = o.Card
	}
	samples := map[string]Sample{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, s := range p.sourcesOf(cards) {
		sampler, ok := s.source.Detector.(Sampler)
		if !ok {
			continue
		}
		wg.Go(func() {
			got, err := guarded(ctx, &s.source.sampling, p.limit, func(ctx context.Context) (map[string]Sample, error) {
				return sampler.Sample(ctx, s.cards)
			})
			if err != nil {
				p.log.Debug("live numbers cannot be read", "source", s.source.Name(), "error", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for uuid, v := range got {
				samples[uuid] = v
			}
		})
	}
	wg.Wait()
	return groupStats(offers, samples, p.now())
}

// groupStats has one entry for each card that was sampled. A shared card is shown on its first slice: the same numbers
// on each of its slices would add up to nonsense.
func groupStats(offers []offer, samples map[string]Sample, at time.Time) []*devicepb.DeviceGroupStats {
	byGroup := map[string]*devicepb.DeviceGroupStats{}
	var groups []*devicepb.DeviceGroupStats
	for _, o := range offers {
		sample, ok := samples[o.UUID]
		if !ok {
			continue
		}
		g := byGroup[o.DeviceID()]
		if g == nil {
			g = &devicepb.DeviceGroupStats{
				Vendor: string(o.Vendor), Type: o.Form.DeviceType(), Name: o.GroupName(),
				InstanceStats: map[string]*devicepb.DeviceStats{},
			}
			byGroup[o.DeviceID()] = g
			groups = append(groups, g)
		}
		g.InstanceStats[o.instances()[0]] = sample.stats(o, at)
	}
	return groups
}

func (s Sample) stats(o offer, at time.Time) *devicepb.DeviceStats {
	values := map[string]*structspb.StatValue{}
	put := func(name, unit, desc string, v *float64) {
		if v != nil {
			values[name] = &structspb.StatValue{FloatNumeratorVal: wrapperspb.Double(*v), Unit: unit, Desc: desc}
		}
	}
	put("utilization", "%", "Share of time in which work ran on the card", s.UtilizationPct)
	put("temperature", "C", "Temperature of the card", s.TemperatureC)
	put("power", "W", "Power the card draws", s.PowerW)
	put("power_limit", "W", "Power the card may draw", s.PowerLimitW)
	summary := &structspb.StatValue{StringVal: wrapperspb.String("unknown"), Desc: "Memory in use"}
	if s.MemoryUsedMiB != nil {
		summary = &structspb.StatValue{IntNumeratorVal: wrapperspb.Int64(int64(*s.MemoryUsedMiB)), Unit: "MiB", Desc: "Memory in use of the card's memory"}
		if o.MemoryMiB != nil {
			summary.IntDenominatorVal = wrapperspb.Int64(int64(*o.MemoryMiB))
		}
		values["memory"] = summary
	}
	return &devicepb.DeviceStats{Summary: summary, Stats: &structspb.StatObject{Attributes: values}, Timestamp: timestamppb.New(at)}
}
