package preempt

import (
	"slices"

	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// stage is a cluster of one's own, of which allocations are taken and to which they are put back.
type stage struct {
	snapshot engine.Snapshot
	pools    map[place]*stagePool
	nodes    map[string]*engine.Node
}

// stagePool counts on below 0, where claims of more than is taken were given back.
type stagePool struct {
	pool *engine.Pool
	used int
	held bool // it is known which tenants have what is used
}

// newStage copies some nodes of a snapshot.
func newStage(nodes []engine.Node) *stage {
	st := &stage{pools: map[place]*stagePool{}, nodes: make(map[string]*engine.Node, len(nodes))}
	st.snapshot.Nodes = slices.Clone(nodes)
	for i := range st.snapshot.Nodes {
		n := &st.snapshot.Nodes[i]
		n.Pools = slices.Clone(n.Pools)
		st.nodes[n.ID] = n
		for j := range n.Pools {
			n.Pools[j].Cards = slices.Clone(n.Pools[j].Cards)
			st.pools[place{n.ID, n.Pools[j].Group}] = &stagePool{&n.Pools[j], n.Pools[j].Used, n.Pools[j].Used == 0 || len(n.Pools[j].Holders) > 0}
		}
	}
	return st
}

// evict gives back what an allocation holds; restore takes it again.
func (st *stage) evict(a *Allocation)   { st.move(a, -1) }
func (st *stage) restore(a *Allocation) { st.move(a, 1) }

func (st *stage) move(a *Allocation, sign int) {
	n := st.nodes[a.NodeID]
	if n == nil {
		return
	}
	n.UsedCPUMHz += sign * a.CPUMHz
	n.UsedMemoryMiB += sign * a.MemoryMiB
	n.UsedDiskMiB += sign * a.DiskMiB
	for _, c := range a.Claims {
		p := st.pools[place{a.NodeID, c.Group}]
		if p == nil {
			continue
		}
		p.used += sign * c.Units
		p.pool.Used = max(0, p.used)
		if p.held {
			p.pool.Hold(a.Tenant, sign*c.Units)
		}
		if cards := p.pool.Cards; len(cards) == 1 { // of several nobody says here which one it was
			cards[0].UsedUnits = p.pool.Used
		}
	}
}

// free is what nobody holds of a pool now.
func (st *stage) free(at place) int {
	if p := st.pools[at]; p != nil {
		return p.pool.Free()
	}
	return 0
}

// Without is the snapshot without some allocations.
func Without(s engine.Snapshot, gone []Allocation) engine.Snapshot {
	st := newStage(s.Nodes)
	for i := range gone {
		st.evict(&gone[i])
	}
	return st.snapshot
}

// With is the snapshot with what a decision for a request takes, also beyond what is free.
func With(s engine.Snapshot, r engine.Request, d engine.Decision) engine.Snapshot {
	var taken []Allocation
	for i, g := range d.Groups {
		for _, p := range g.Placements {
			a := Allocation{Tenant: r.Tenant, NodeID: p.NodeID, CPUMHz: -r.Groups[i].CPUMHz, MemoryMiB: -r.Groups[i].MemoryMiB, DiskMiB: -r.Groups[i].DiskMiB}
			for _, t := range p.Tasks {
				for _, c := range t.Claims {
					a.Claims = append(a.Claims, engine.Claim{Group: c.Group, Units: -c.Units})
				}
			}
			taken = append(taken, a)
		}
	}
	return Without(s, taken)
}
