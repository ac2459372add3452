package engine

import (
	"cmp"
	"fmt"
)

// Load is what was measured of a card or of a node's processors and memory a short time ago. What nobody reports is nil,
// which is neither 0 nor too much.
type Load struct {
	ComputePct *float64 `json:"compute_pct,omitempty"` // of the time, 0–100
	MemoryPct  *float64 `json:"memory_pct,omitempty"`  // in use of all there is, 0–100
	Celsius    *float64 `json:"celsius,omitempty"`     // of a card
}

// Limits are loads over which nothing more is placed. 0 is no limit.
type Limits struct {
	CardComputePct float64 `json:"card_compute_pct,omitempty"` // of cards of which shares are given
	CardMemoryPct  float64 `json:"card_memory_pct,omitempty"`
	CardCelsius    float64 `json:"card_celsius,omitempty"`
	NodeComputePct float64 `json:"node_compute_pct,omitempty"`
	NodeMemoryPct  float64 `json:"node_memory_pct,omitempty"`
}

// DefaultLimits are those of the plugin load while none are set.
func DefaultLimits() Limits {
	return Limits{CardComputePct: 95, CardMemoryPct: 95, CardCelsius: 90, NodeComputePct: 95, NodeMemoryPct: 95}
}

// LoadPlugin is the name of the plugin that leaves out what is over its load limits.
const LoadPlugin = "load"

// loadLimit keeps new allocations off nodes that are over a limit, and new shares off cards that are. It is asked for
// room, since load changes all the time.
type loadLimit struct {
	limits Limits
	anybody
}

var _ RoomPlugin = loadLimit{}

func (loadLimit) Name() string { return LoadPlugin }

func (l loadLimit) Room(c *Candidate) Code {
	if l.limits.over(c.Node, c.Pool) {
		return CodeLoad
	}
	return ""
}

func over(value *float64, limit float64) bool { return value != nil && limit > 0 && *value > limit }

// node reports whether the node is over a limit.
func (l *Limits) node(n *Node) bool {
	return n.Load != nil && (over(n.Load.ComputePct, l.NodeComputePct) || over(n.Load.MemoryPct, l.NodeMemoryPct))
}

// card reports whether a card is over a limit. Whole cards have no neighbours, and neither have partitions.
func (l *Limits) card(p *Pool) bool {
	if p.wholes() {
		return false
	}
	for i := range p.Cards {
		load := p.Cards[i].Load
		if load != nil && (over(load.ComputePct, l.CardComputePct) || over(load.MemoryPct, l.CardMemoryPct) || over(load.Celsius, l.CardCelsius)) {
			return true
		}
	}
	return false
}

func (l *Limits) over(n *Node, p *Pool) bool {
	return *l != Limits{} && (l.node(n) || l.card(p))
}

// say is what is over which limit, in numbers; empty when nothing is.
func (l *Limits) say(n *Node, p *Pool) string {
	if n.Load != nil {
		switch {
		case over(n.Load.ComputePct, l.NodeComputePct):
			return fmt.Sprintf("the processors of node %s are %.0f %% busy, limit %.0f %%", cmp.Or(n.Name, n.ID), *n.Load.ComputePct, l.NodeComputePct)
		case over(n.Load.MemoryPct, l.NodeMemoryPct):
			return fmt.Sprintf("%.0f %% of the main memory of node %s is in use, limit %.0f %%", *n.Load.MemoryPct, cmp.Or(n.Name, n.ID), l.NodeMemoryPct)
		}
	}
	if p == nil || p.wholes() {
		return ""
	}
	for i := range p.Cards {
		load := p.Cards[i].Load
		switch {
		case load == nil:
		case over(load.ComputePct, l.CardComputePct):
			return fmt.Sprintf("%s on node %s is %.0f %% busy, limit %.0f %%", p.Name, cmp.Or(n.Name, n.ID), *load.ComputePct, l.CardComputePct)
		case over(load.MemoryPct, l.CardMemoryPct):
			return fmt.Sprintf("%.0f %% of the memory of %s on node %s is in use, limit %.0f %%", *load.MemoryPct, p.Name, cmp.Or(n.Name, n.ID), l.CardMemoryPct)
		case over(load.Celsius, l.CardCelsius):
			return fmt.Sprintf("%s on node %s has %.0f °C, limit %.0f °C", p.Name, cmp.Or(n.Name, n.ID), *load.Celsius, l.CardCelsius)
		}
	}
	return ""
}

// loaded reports whether the plugin is on and keeps the request off the pool.
func (w *work) loaded(node, p int) bool { return w.e.limits.over(&w.snap.Nodes[node], w.pool(node, p)) }

// LimitsLoad reports whether the engine looks at load at all.
func (e *Engine) LimitsLoad() bool { return e.limits != Limits{} }

// Overloaded says what keeps new allocations off a pool of the node by the load limits; empty when nothing does.
func (e *Engine) Overloaded(n *Node, group string) string {
	for i := range n.Pools {
		if n.Pools[i].Group == group {
			return e.limits.say(n, &n.Pools[i])
		}
	}
	return e.limits.say(n, nil)
}
