package defrag

import (
	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// Report is how fragmented a cluster is.
type Report struct {
	Room
	Nodes []NodeReport // in the order of the snapshot; those that are not ready have nothing free
}

// NodeReport is how fragmented one node is.
type NodeReport struct {
	NodeID string
	Room
	Pools []PoolReport // in the order of the node
}

// PoolReport is how fragmented one pool is: one card for shared ones.
type PoolReport struct {
	Group string
	Room
}

// Room is free cards, and how much of that an allocation of the usual demand cannot use on average.
type Room struct {
	FreeCards float64
	LostCards float64 // 0 ≤ LostCards ≤ FreeCards
}

func (r *Room) add(o Room) {
	r.FreeCards, r.LostCards = r.FreeCards+o.FreeCards, r.LostCards+o.LostCards
}

// Typical is the part of a demand, the most frequent asks first, that stands for all of it.
func Typical(demand []engine.Asked) []engine.Asked {
	const most = 64
	return demand[:min(len(demand), most)]
}

// Measure holds free room against a demand. Where an ask does not fit on a node, all that is free there is lost to it;
// where it does, what is on cards with too little for it. Source of the measure: Q. Weng et al., USENIX ATC 2023.
// A demand of nothing loses nothing.
func Measure(s engine.Snapshot, demand []engine.Asked) Report {
	var all float64
	for i := range demand {
		if demand[i].Cards > 0 {
			all += demand[i].Weight
		}
	}
	var out Report
	for i := range s.Nodes {
		n := measureNode(&s.Nodes[i], demand, all)
		out.add(n.Room)
		out.Nodes = append(out.Nodes, n)
	}
	return out
}

func measureNode(n *engine.Node, demand []engine.Asked, all float64) NodeReport {
	out := NodeReport{NodeID: n.ID, Pools: make([]PoolReport, len(n.Pools))}
	for j := range n.Pools {
		out.Pools[j].Group = n.Pools[j].Group
		if n.Ready {
			out.Pools[j].FreeCards = freeCards(&n.Pools[j])
		}
	}
	for i := range demand {
		if a := &demand[i]; a.Cards > 0 && n.Ready {
			serves := servedBy(n, a)
			for j := range out.Pools {
				if !serves[j] {
					out.Pools[j].LostCards += a.Weight / all * out.Pools[j].FreeCards
				}
			}
		}
	}
	for j := range out.Pools {
		out.Pools[j].LostCards = min(out.Pools[j].LostCards, out.Pools[j].FreeCards)
		out.add(out.Pools[j].Room)
	}
	return out
}

func whole(p *engine.Pool) bool { return p.Form == accel.Whole || p.Form == accel.Partition }

// freeCards is what is free of a pool, slices as part of their card.
func freeCards(p *engine.Pool) float64 {
	if whole(p) {
		return float64(p.Free())
	}
	return float64(p.Free()) / float64(max(1, p.Total))
}

// servedBy says which pools of a node have room for an ask; none when the node has too few such cards, or too little
// beside them.
func servedBy(n *engine.Node, a *engine.Asked) []bool {
	out := make([]bool, len(n.Pools))
	if n.CPUMHz-n.UsedCPUMHz < a.CPUMHz || n.MemoryMiB-n.UsedMemoryMiB < a.MemoryMiB {
		return out
	}
	ask := accel.Ask{Count: a.Cards, MemoryMiB: a.CardMiB, Vendors: a.Vendors, Models: a.Patterns}
	cards := map[string]int{} // by model, since one ask takes cards of one model
	for j := range n.Pools {
		p := &n.Pools[j]
		fits := 0
		switch {
		case !ask.Accepts(p.Vendor, p.Model):
		case ask.Whole() && whole(p):
			fits = p.Free()
		case ask.Whole():
			if p.Total > 0 && p.Free() == p.Total {
				fits = 1
			}
		case !whole(p) && p.UnitMiB > 0 && uint64(p.Free())*p.UnitMiB >= a.CardMiB:
			fits = 1
		}
		out[j] = fits > 0
		cards[p.Model] += fits
	}
	for j := range out {
		out[j] = out[j] && cards[n.Pools[j].Model] >= a.Cards
	}
	return out
}
