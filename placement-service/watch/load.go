package watch

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"golang.org/x/sync/errgroup"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/placement-service/engine"
)

const (
	// loadEvery is how often the load of every node with cards is read.
	loadEvery = 10 * time.Second
	// loadStale is when a reading is too old to say anything.
	loadStale = time.Minute
	// loadFresh is how old a reading may be when a place is taken.
	loadFresh = time.Second
	// loadWait is how long a node may take to answer.
	loadWait = 2 * time.Second
	// loadAtOnce is how many nodes are asked at a time.
	loadAtOnce = 16
)

// LoadSource gives what a node measures of itself.
type LoadSource interface {
	HostStats(ctx context.Context, nodeID string) (*api.HostStats, error)
}

// Loads reads the load of nodes and cards into a World, while an engine looks at it.
type Loads struct {
	Source LoadSource
	World  *World
	Engine func() *engine.Engine
	Room   func() // told when something is not over its limit any more
	Clock  clock.Clock
	Log    hclog.Logger
}

// Run reads until the context ends.
func (l *Loads) Run(ctx context.Context) error {
	tick := l.Clock.NewTicker(loadEvery)
	defer tick.Stop()
	for {
		l.Round(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
		}
	}
}

// Round reads the load of every node with cards once, and forgets what is too old. With no limits nothing is read or kept.
func (l *Loads) Round(ctx context.Context) {
	e := l.Engine()
	if !e.LimitsLoad() {
		l.World.forgetLoads(l.Clock.Now())
		return
	}
	before := l.World.overloaded(e)
	l.read(ctx, l.World.nodesWithCards())
	l.World.forgetLoads(l.Clock.Now().Add(-loadStale))
	after := l.World.overloaded(e)
	if l.Room != nil && slices.ContainsFunc(before, func(at PoolKey) bool { return !slices.Contains(after, at) }) {
		l.Room()
	}
}

// Newest reads the load of some nodes again, where it is not known from this very moment. A node that does not answer
// keeps its last reading.
func (l *Loads) Newest(ctx context.Context, nodes []string) {
	if !l.Engine().LimitsLoad() {
		return
	}
	old := l.Clock.Now().Add(-loadFresh)
	l.read(ctx, slices.DeleteFunc(slices.Clone(nodes), func(id string) bool { return l.World.loadAt(id).After(old) }))
}

func (l *Loads) read(ctx context.Context, nodes []string) {
	var failed sync.Map
	g := errgroup.Group{}
	g.SetLimit(loadAtOnce)
	for _, id := range nodes {
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, loadWait)
			defer cancel()
			stats, err := l.Source.HostStats(ctx, id)
			if err != nil {
				failed.Store(id, err)
				return nil
			}
			l.World.setLoad(id, stats, l.Clock.Now())
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		l.Log.Warn("load not read", "error", err)
	}
	failed.Range(func(id, err any) bool {
		l.Log.Debug("load of node not read", "node_id", id, "error", err)
		return true
	})
}

// reading is what a node measured.
type reading struct {
	at    time.Time
	node  *engine.Load
	cards map[string]*engine.Load // by UUID
	pools []engine.Pool           // of the node, with the loads of their cards
}

// setLoad takes a reading in.
func (w *World) setLoad(nodeID string, stats *api.HostStats, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.nodes[nodeID] == nil {
		return
	}
	r := &reading{at: now, node: hostLoad(stats), cards: map[string]*engine.Load{}}
	for _, g := range stats.DeviceStats {
		for id, s := range g.InstanceStats {
			if load := cardLoad(s); load != nil {
				r.cards[w.cardOf(nodeID, g.Vendor+"/"+g.Type+"/"+g.Name, id)] = load
			}
		}
	}
	w.loads[nodeID] = r
	w.applyLoad(nodeID)
}

// applyLoad has the pools of a node show its reading.
func (w *World) applyLoad(nodeID string) {
	r := w.loads[nodeID]
	if r == nil {
		return
	}
	r.pools = slices.Clone(w.nodes[nodeID].engine.Pools)
	for i := range r.pools {
		p := &r.pools[i]
		p.Cards = slices.Clone(p.Cards)
		for j := range p.Cards {
			p.Cards[j].Load = r.cards[p.Cards[j].UUID]
		}
	}
	w.follow.stale[nodeID] = true
}

// withLoad is a node with what was measured of it.
func (w *World) withLoad(n engine.Node) engine.Node {
	if r := w.loads[n.ID]; r != nil {
		n.Load, n.Pools = r.node, r.pools
	}
	return n
}

// forgetLoads drops the readings from before the moment.
func (w *World) forgetLoads(before time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.loads, func(id string, r *reading) bool {
		old := !r.at.After(before)
		if old {
			w.follow.stale[id] = true
		}
		return old
	})
}

func (w *World) loadAt(nodeID string) time.Time {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if r := w.loads[nodeID]; r != nil {
		return r.at
	}
	return time.Time{}
}

// Overloaded says what keeps new allocations off a pool by the engine's limits; empty when nothing does.
func (w *World) Overloaded(e *engine.Engine, nodeID, group string) string {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if w.nodes[nodeID] == nil {
		return ""
	}
	n := w.withLoad(w.nodes[nodeID].engine)
	return e.Overloaded(&n, group)
}

// overloaded lists what is over a limit.
func (w *World) overloaded(e *engine.Engine) []PoolKey {
	w.mu.RLock()
	defer w.mu.RUnlock()
	var out []PoolKey
	for id := range w.loads {
		n := w.withLoad(w.nodes[id].engine)
		for i := range n.Pools {
			if e.Overloaded(&n, n.Pools[i].Group) != "" {
				out = append(out, PoolKey{id, n.Pools[i].Group})
			}
		}
	}
	return out
}

func (w *World) nodesWithCards() []string {
	w.mu.RLock()
	defer w.mu.RUnlock()
	var out []string
	for _, id := range w.order {
		if n := &w.nodes[id].engine; n.Ready && len(n.Pools) > 0 {
			out = append(out, id)
		}
	}
	return out
}

// hostLoad is the load of a node's processors, the mean of all, and of its memory; nil when it says nothing of either.
func hostLoad(s *api.HostStats) *engine.Load {
	var out engine.Load
	busy := 0.0
	for _, c := range s.CPU {
		busy += 100 - c.Idle
	}
	if len(s.CPU) > 0 {
		busy /= float64(len(s.CPU))
		out.ComputePct = &busy
	}
	if m := s.Memory; m != nil && m.Total > 0 {
		used := 100 * float64(m.Total-min(m.Total, m.Available)) / float64(m.Total)
		out.MemoryPct = &used
	}
	if out == (engine.Load{}) {
		return nil
	}
	return &out
}

// cardLoad is what the device plugin tells of a card; nil when that is nothing.
func cardLoad(s *api.DeviceStats) *engine.Load {
	if s == nil || s.Stats == nil {
		return nil
	}
	out := engine.Load{ComputePct: floatOf(s.Stats.Attributes[accel.StatUtilization]), Celsius: floatOf(s.Stats.Attributes[accel.StatTemperature])}
	if m := s.Stats.Attributes[accel.StatMemory]; m != nil && m.IntNumeratorVal != nil && m.IntDenominatorVal != nil && *m.IntDenominatorVal > 0 {
		used := 100 * float64(*m.IntNumeratorVal) / float64(*m.IntDenominatorVal)
		out.MemoryPct = &used
	}
	if out == (engine.Load{}) {
		return nil
	}
	return &out
}

func floatOf(v *api.StatValue) *float64 {
	if v == nil {
		return nil
	}
	return v.FloatNumeratorVal
}
