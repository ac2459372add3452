package watch

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// measured answers with what a test set, and counts.
type measured struct {
	mu    sync.Mutex
	stats *api.HostStats // nil fails
	asked int
}

func (m *measured) HostStats(context.Context, string) (*api.HostStats, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asked++; m.stats == nil {
		return nil, errors.New("no answer")
	}
	return m.stats, nil
}

// statsOf is a node with two processors and one reading of the shared card of node().
func statsOf(idle float64, values map[string]*api.StatValue) *api.HostStats {
	return &api.HostStats{
		CPU: []*api.HostCPUStats{{Idle: 100}, {Idle: idle}}, Memory: &api.HostMemoryStats{Total: 1000, Available: 250},
		DeviceStats: []*api.DeviceGroupStats{{
			Vendor: "ascend", Type: "vgpu", Name: "910B3-y",
			InstanceStats: map[string]*api.DeviceStats{"c1.0": {Stats: &api.StatObject{Attributes: values}}},
		}},
	}
}

func number64(v float64) *api.StatValue { return &api.StatValue{FloatNumeratorVal: &v} }

// A round reads every node with cards, and only while an engine looks at load; what is not told stays unknown, and what is
// too old is unknown again.
func TestLoads_Round(t *testing.T) {
	t.Parallel()
	now := clock.NewFake(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	w := NewWorld()
	w.setNode(node(), now.Now())
	source, woken := &measured{}, 0
	e := engine.New(engine.Config{})
	l := &Loads{Source: source, World: w, Engine: func() *engine.Engine { return e }, Room: func() { woken++ }, Clock: now, Log: hclog.NewNullLogger()}
	card := func() *engine.Load { return w.Snapshot(nil).Nodes[0].Pools[0].Cards[0].Load }

	l.Round(t.Context())
	l.Newest(t.Context(), []string{"n1"})
	if source.asked != 0 {
		t.Errorf("asked %d times although nobody looks", source.asked)
	}
	e = engine.New(engine.Config{Plugins: []engine.PluginSetting{{Name: engine.LoadPlugin, Enabled: true, Limits: engine.Limits{CardComputePct: 90}}}})
	l.Round(t.Context())
	if n := w.Snapshot(nil).Nodes[0]; source.asked != 1 || n.Load != nil || card() != nil {
		t.Errorf("a node that does not answer has load %+v, %+v", n.Load, card())
	}
	used, total := int64(30), int64(120)
	source.stats = statsOf(40, map[string]*api.StatValue{"utilization": number64(97), "memory": {IntNumeratorVal: &used, IntDenominatorVal: &total}})
	l.Round(t.Context())
	n := w.Snapshot(Taken{"n1": {"ascend/vgpu/910B3-y": 1}}).Nodes[0]
	if n.Load == nil || *n.Load.ComputePct != 30 || *n.Load.MemoryPct != 75 || n.Load.Celsius != nil {
		t.Errorf("load of the node is %+v, want 30 and 75 %%", n.Load)
	}
	if c := n.Pools[0].Cards[0].Load; c == nil || *c.ComputePct != 97 || *c.MemoryPct != 25 || c.Celsius != nil || n.Pools[1].Cards[0].Load != nil {
		t.Errorf("loads of the cards are %+v and %+v", c, n.Pools[1].Cards[0].Load)
	}
	if why := w.Overloaded(e, "n1", "ascend/vgpu/910B3-y"); why != "910B3-y on node node-1 is 97 % busy, limit 90 %" {
		t.Errorf("overloaded by %q", why)
	}
	changed := node()
	changed.Attributes["kernel.name"] = "other"
	w.setNode(changed, now.Now())
	if card() == nil {
		t.Error("a new fingerprint makes the load unknown")
	}
	if woken != 0 {
		t.Error("the queue was woken although nothing has room again")
	}
	source.stats = statsOf(40, map[string]*api.StatValue{"utilization": number64(9)})
	l.Newest(t.Context(), []string{"n1"}) // of this moment
	if *card().ComputePct != 97 || source.asked != 2 {
		t.Error("a reading of this moment was read again")
	}
	now.Advance(2 * time.Second)
	l.Newest(t.Context(), []string{"n1"})
	if *card().ComputePct != 9 || card().MemoryPct != nil {
		t.Errorf("the newest load is %+v", card())
	}
	if why := w.Overloaded(e, "n1", "ascend/vgpu/910B3-y"); why != "" {
		t.Errorf("overloaded by %q", why)
	}

	source.stats = statsOf(40, map[string]*api.StatValue{"utilization": number64(97)})
	l.Round(t.Context())
	source.stats = nil
	now.Advance(loadStale - time.Second)
	l.Round(t.Context())
	if card() == nil || woken != 0 {
		t.Error("a reading is forgotten early")
	}
	now.Advance(time.Second)
	l.Round(t.Context())
	if card() != nil || woken != 1 {
		t.Errorf("what nobody reports any more is %+v; the queue was woken %d times", card(), woken)
	}
	source.stats = statsOf(40, map[string]*api.StatValue{"utilization": number64(97)})
	l.Round(t.Context())
	e = engine.New(engine.Config{})
	l.Round(t.Context())
	if card() != nil {
		t.Error("with the plugin off readings are kept")
	}
	w.setLoad("gone", source.stats, now.Now())
	w.dropNodes(map[string]bool{}, now.Now())
	if len(w.loads) != 0 {
		t.Error("a node that is gone is remembered")
	}
}
