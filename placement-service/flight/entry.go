// Package flight keeps every decision of the engine with all that it was made from, and decides again what was kept:
// to see that an engine still decides so, or what other settings would have done. Taking decisions and what becomes of
// them do not belong here.
package flight

import (
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// Entry is one decision with all that it was made from.
type Entry struct {
	At       time.Time
	Plugins  []engine.PluginSetting // of every plugin
	Learnt   *engine.Learnt         // that it was scored by; nil for nothing
	Level    int                    // of engine.Config
	Snapshot engine.Snapshot
	Request  engine.Request
	Decision engine.Decision // as the engine gave it
}

// line is an entry as it is written: of the nodes only those that are others than in the line before.
type line struct {
	Version  int                    `json:"v"` // 1
	At       time.Time              `json:"at"`
	Anew     bool                   `json:"anew,omitempty"` // nodes are all there are; the lines before do not matter
	Nodes    []engine.Node          `json:"nodes,omitempty"`
	Gone     []string               `json:"gone,omitempty"`    // ids of nodes
	Order    []string               `json:"order,omitzero"`    // ids of all nodes, when their order is another
	Plugins  []engine.PluginSetting `json:"plugins,omitempty"` // when they are others
	Demand   *engine.Demand         `json:"demand,omitempty"`  // when it is another
	Level    int                    `json:"level,omitempty"`
	Request  engine.Request         `json:"request"`
	Decision engine.Decision        `json:"decision"`
}

// memory is what the lines so far said.
type memory struct {
	nodes   map[string]engine.Node
	order   []string
	plugins []engine.PluginSetting
	learnt  *engine.Learnt
}

// line is what has to be written of an entry.
func (m *memory) line(e Entry) line {
	out := line{Version: 1, At: e.At, Anew: m.nodes == nil || m.learnt != nil && e.Learnt == nil, Level: e.Level, Request: e.Request, Decision: e.Decision}
	order := make([]string, 0, len(e.Snapshot.Nodes))
	if out.Anew {
		*m = memory{nodes: make(map[string]engine.Node, len(e.Snapshot.Nodes))}
	}
	if e.Learnt != m.learnt {
		out.Demand, m.learnt = e.Learnt.Demand(), e.Learnt
	}
	for _, n := range e.Snapshot.Nodes {
		order = append(order, n.ID)
		if had, ok := m.nodes[n.ID]; !ok || !same(&had, &n) {
			out.Nodes = append(out.Nodes, n)
			m.nodes[n.ID] = n
		}
	}
	if len(m.nodes) > len(order) {
		there := map[string]bool{}
		for _, id := range order {
			there[id] = true
		}
		for id := range m.nodes {
			if !there[id] {
				out.Gone = append(out.Gone, id)
				delete(m.nodes, id)
			}
		}
		slices.Sort(out.Gone)
	}
	if !slices.Equal(order, m.order) {
		out.Order, m.order = order, order
	}
	if !slices.Equal(e.Plugins, m.plugins) {
		out.Plugins, m.plugins = e.Plugins, e.Plugins
	}
	return out
}

// entry is the entry of the next line; false when the lines that it counts on are missing.
func (m *memory) entry(l line) (Entry, bool) {
	if l.Anew {
		*m = memory{nodes: map[string]engine.Node{}}
	}
	if m.nodes == nil {
		return Entry{}, false
	}
	for _, n := range l.Nodes {
		m.nodes[n.ID] = n
	}
	for _, id := range l.Gone {
		delete(m.nodes, id)
	}
	if l.Order != nil {
		m.order = l.Order
	}
	if l.Plugins != nil {
		m.plugins = l.Plugins
	}
	if l.Demand != nil {
		m.learnt = engine.Learn(*l.Demand)
	}
	e := Entry{At: l.At, Plugins: m.plugins, Learnt: m.learnt, Level: l.Level, Request: l.Request, Decision: l.Decision}
	for _, id := range m.order {
		n, ok := m.nodes[id]
		if !ok {
			return Entry{}, false
		}
		e.Snapshot.Nodes = append(e.Snapshot.Nodes, n)
	}
	return e, true
}

// same reports whether two nodes are alike. Snapshots share what does not change, so that most of it is the same memory,
// and looking into it is seldom needed.
func same(a, b *engine.Node) bool {
	return a.ID == b.ID && a.Name == b.Name && a.Datacenter == b.Datacenter && a.Pool == b.Pool && a.Class == b.Class &&
		a.Ready == b.Ready && a.CPUMHz == b.CPUMHz && a.MemoryMiB == b.MemoryMiB && a.DiskMiB == b.DiskMiB &&
		a.Load == b.Load && a.UsedCPUMHz == b.UsedCPUMHz && a.UsedMemoryMiB == b.UsedMemoryMiB && a.UsedDiskMiB == b.UsedDiskMiB &&
		slices.Equal(a.Tenants, b.Tenants) && slices.Equal(a.Beside, b.Beside) && sameMap(a.Attrs, b.Attrs) && sameMap(a.Drivers, b.Drivers) && sameMap(a.Runtimes, b.Runtimes) &&
		slices.EqualFunc(a.Pools, b.Pools, samePool)
}

func sameMap[V comparable](a, b map[string]V) bool {
	return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer() || maps.Equal(a, b)
}

func samePool(a, b engine.Pool) bool {
	return a.Group == b.Group && a.Vendor == b.Vendor && a.Type == b.Type && a.Name == b.Name && a.Model == b.Model && a.Form == b.Form &&
		a.Auto == b.Auto && a.UnitMiB == b.UnitMiB && a.Total == b.Total && a.Used == b.Used && slices.Equal(a.Modes, b.Modes) &&
		slices.Equal(a.Cards, b.Cards) && slices.Equal(a.Holders, b.Holders) && (sameSlice(a.Rounding, b.Rounding) || reflect.DeepEqual(a.Rounding, b.Rounding))
}

func sameSlice[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}
