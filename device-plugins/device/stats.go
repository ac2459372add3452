package device

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/devicepb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/structspb"
)

const (
	minStatsEvery = time.Second            // an agent with a very short interval must not start vendors' tools without end
	sampleFresh   = 500 * time.Millisecond // so long a sample serves whoever asks again
)

// Stats sends the live numbers of every card, in use or idle, about every interval until ctx ends. A source that does
// not answer is left out of a message and asked again for the next.
func (p *Plugin) Stats(ctx context.Context, every time.Duration, send func([]*devicepb.DeviceGroupStats) error) error {
	if err := p.ready(); err != nil {
		return err
	}
	p.awaitFirst(ctx)
	for {
		if err := send(groupStats(p.read(ctx), p.now())); err != nil {
			return fmt.Errorf("send statistics: %w", err)
		}
		if !clock.Sleep(ctx, clock.System(), max(every, minStatsEvery)) {
			return ctx.Err()
		}
	}
}

// sampled is the last reading of a source's live numbers. One reading serves everyone who asks in the same moment.
type sampled struct {
	mu      sync.Mutex
	samples map[string]Sample
	at      time.Time
}

// A state is everything that is told of one card at one moment.
type state struct {
	offer
	Sample
	answers bool
	foreign *int // processes that were granted nothing; nil when it cannot be told
	card    *int // faults of the card, and of programs on it; nil when they are not known
	job     *int
}

// read looks at every card that is offered, sick ones too.
func (p *Plugin) read(ctx context.Context) []state {
	p.mu.Lock()
	offers := p.offers()
	sources := p.sources
	p.mu.Unlock()
	samples := map[string]Sample{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, s := range sources {
		wg.Go(func() {
			got := p.sample(ctx, s)
			mu.Lock()
			defer mu.Unlock()
			for uuid, v := range got {
				samples[uuid] = v
			}
		})
	}
	wg.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	granted, err := p.granted()
	if err != nil {
		p.log.Debug("some grants cannot be read, processes outside of them are not looked for", "error", err)
	}
	states := make([]state, len(offers))
	for i, o := range offers {
		states[i] = state{offer: o}
		if f := p.faults[o.UUID]; f != nil {
			card, job := f.card, f.job
			states[i].card, states[i].job = &card, &job
		}
		states[i].Sample, states[i].answers = samples[o.UUID]
		if o.Form == accel.Divided {
			states[i].Processes = nil // they are those of its parts
		}
		if states[i].Processes != nil && err == nil && !granted[o.UUID] {
			n := len(states[i].Processes)
			states[i].foreign = &n
			p.flag(o.Card, states[i].Processes)
		}
	}
	return states
}

// sample reads the live numbers of a source's cards. It gives none when the source does not answer.
func (p *Plugin) sample(ctx context.Context, s *source) map[string]Sample {
	sampler, ok := s.Detector.(Sampler)
	if !ok {
		return nil
	}
	s.last.mu.Lock()
	defer s.last.mu.Unlock()
	if !s.last.at.IsZero() && time.Since(s.last.at) < sampleFresh {
		return s.last.samples
	}
	p.mu.Lock()
	cards := s.tracker.cards()
	p.mu.Unlock()
	if len(cards) == 0 {
		return nil
	}
	got, err := guarded(ctx, &s.sampling, p.limit, func(ctx context.Context) (map[string]Sample, error) {
		return sampler.Sample(ctx, cards)
	})
	if err != nil {
		p.log.Debug("live numbers cannot be read", "source", s.Name(), "error", err)
		return nil
	}
	s.last.samples, s.last.at = got, time.Now()
	return got
}

// granted lists the cards that tasks have, or have reserved so lately that they may not have them yet. The caller holds mu.
func (p *Plugin) granted() (map[string]bool, error) {
	granted, err := p.marks.Fresh(reserveGrace)
	if err != nil {
		return nil, err
	}
	leases, err := grant.Leases(p.leasesDir())
	if err != nil {
		return nil, err
	}
	for _, l := range leases {
		for _, uuid := range l.Cards {
			granted[uuid] = true
		}
	}
	return granted, nil
}

// disputed tells once of each change what sources say differently of the cards. The caller holds mu.
func (p *Plugin) disputed(cards []accel.Card) {
	for _, c := range cards {
		told := strings.Join(c.Conflicts, "; ")
		if told == p.dispute[c.UUID] {
			continue
		}
		p.dispute[c.UUID] = told
		if told != "" {
			p.log.Warn("sources disagree on a card, the first is taken", "device_id", c.UUID, "conflicts", told)
		}
	}
}

// flag tells once that processes without a grant use a card, and once that they are gone. The caller holds mu.
func (p *Plugin) flag(c accel.Card, processes []int) {
	switch {
	case len(processes) > 0 && !p.flagged[c.UUID]:
		p.flagged[c.UUID] = true
		p.log.Warn("processes that were granted nothing use the card", "device_id", c.UUID, "pids", processes)
		p.history.foreign(c, processes, p.now())
	case len(processes) == 0 && p.flagged[c.UUID]:
		delete(p.flagged, c.UUID)
		p.log.Info("no process without a grant uses the card any more", "device_id", c.UUID)
	}
}

// groupStats has one entry for each card that was sampled. A shared card is shown on its first slice: the same numbers
// on each of its slices would add up to nonsense.
func groupStats(states []state, at time.Time) []*devicepb.DeviceGroupStats {
	byGroup := map[string]*devicepb.DeviceGroupStats{}
	var groups []*devicepb.DeviceGroupStats
	for _, s := range states {
		if !s.answers || len(s.instances()) == 0 { // Nomad knows numbers of instances only
			continue
		}
		g := byGroup[s.DeviceID()]
		if g == nil {
			g = &devicepb.DeviceGroupStats{
				Vendor: string(s.Vendor), Type: s.Form.DeviceType(), Name: s.GroupName(),
				InstanceStats: map[string]*devicepb.DeviceStats{},
			}
			byGroup[s.DeviceID()] = g
			groups = append(groups, g)
		}
		g.InstanceStats[s.instances()[0]] = s.stats(at)
	}
	return groups
}

func (s state) stats(at time.Time) *devicepb.DeviceStats {
	values := map[string]*structspb.StatValue{}
	for _, m := range cardMetrics {
		if v := m.value(s); v != nil {
			values[m.name] = &structspb.StatValue{FloatNumeratorVal: wrapperspb.Double(*v), Unit: m.unit, Desc: m.help}
		}
	}
	if wrong := s.wrong(); len(wrong) > 0 {
		values["conditions"] = &structspb.StatValue{StringVal: wrapperspb.String(strings.Join(wrong, "; ")), Desc: "What is wrong with the card short of its death"}
	}
	summary := &structspb.StatValue{StringVal: wrapperspb.String("unknown"), Desc: "Memory in use"}
	if s.MemoryUsedMiB != nil {
		summary = &structspb.StatValue{IntNumeratorVal: wrapperspb.Int64(int64(*s.MemoryUsedMiB)), Unit: "MiB", Desc: "Memory in use of the card's memory"}
		if s.MemoryMiB != nil {
			summary.IntDenominatorVal = wrapperspb.Int64(int64(*s.MemoryMiB))
		}
		values[accel.StatMemory] = summary
	}
	return &devicepb.DeviceStats{Summary: summary, Stats: &structspb.StatObject{Attributes: values}, Timestamp: timestamppb.New(at)}
}

// wrong lists the conditions of the card.
func (s state) wrong() []string {
	wrong := conditionsOf(s.Sample, nil)
	if s.foreign != nil && *s.foreign > 0 {
		wrong = append(wrong, fmt.Sprintf("%d processes without a grant", *s.foreign))
	}
	return wrong
}
