package backfill

import (
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/engine/preempt"
)

// CodeReserved is the code of what would fit and would delay the job at the head.
const CodeReserved engine.Code = "reserved"

// Allocation is one that holds room. Pinned ones never end by themselves.
type Allocation struct {
	preempt.Allocation
	EndsAt int64 // seconds, at the latest; 0 when nobody knows
}

// Question is the cluster and the job at the head, which does not fit. Nothing of it is changed.
type Question struct {
	Engine   *engine.Engine
	Snapshot engine.Snapshot
	Head     engine.Request
	Running  []Allocation
	Now      int64 // seconds, on the clock of EndsAt
}

// Plan is the room that is kept for the head.
type Plan struct {
	// At is when it starts at the latest, in seconds: by then enough has ended. 0 when that is not known.
	At    int64
	Place engine.Decision // where it starts then
	Waits []string        // ids of the allocations that have to end before it, sorted; empty when At says it
}

// Find plans for the head: where it can start soonest by the ends that are known, else where the least has to end whose
// end nobody knows. It is false where it fits only after what never ends.
func Find(q Question) (Plan, bool) {
	var times []int64
	for i := range q.Running {
		if at := q.Running[i].EndsAt; at > 0 {
			times = append(times, max(at, q.Now))
		}
	}
	slices.Sort(times)
	times = slices.Compact(times)
	first := sort.Search(len(times), func(i int) bool { return q.Engine.Fits(q.at(times[i]), q.Head) })
	if first < len(times) {
		return Plan{At: times[first], Place: q.Engine.Decide(q.at(times[first]), q.Head)}, true
	}
	ask := preempt.Question{
		Engine: q.Engine, Snapshot: q.Snapshot, Request: q.Head, Policy: preempt.Policy{Mode: preempt.Running}, Now: q.Now,
		Running: make([]preempt.Allocation, len(q.Running)),
	}
	ask.Request.Priority = math.MaxInt // nobody is evicted: priority has no say
	for i := range q.Running {
		ask.Running[i] = q.Running[i].Allocation
		ask.Running[i].Whole, ask.Running[i].Gold = false, false
	}
	set := preempt.Find(ask)
	return Plan{Place: set.Decision, Waits: set.Victims}, set.Refusal == nil && set.Decision.Placed
}

// at is the cluster as it will be once all that ends by then has ended.
func (q *Question) at(then int64) engine.Snapshot {
	var gone []preempt.Allocation
	for i := range q.Running {
		if a := &q.Running[i]; a.EndsAt > 0 && max(a.EndsAt, q.Now) <= then {
			gone = append(gone, a.Allocation)
		}
	}
	return preempt.Without(q.Snapshot, gone)
}

// Stands reports whether the head could still start there once all of it is free: nodes and cards come and go.
func (p *Plan) Stands(q Question) bool {
	empty := slices.Clone(q.Snapshot.Nodes)
	for i := range empty {
		n := &empty[i]
		n.Pools = slices.Clone(n.Pools)
		n.UsedCPUMHz, n.UsedMemoryMiB, n.UsedDiskMiB = 0, 0, 0
		for j := range n.Pools {
			n.Pools[j].Used, n.Pools[j].Holders = 0, nil
		}
	}
	return takes(engine.Snapshot{Nodes: empty}, q.Head, p.Place)
}

// Beside is what becomes of a decision for another request, of which an allocation ends at a time at the latest, 0 for
// nobody knows: it stays where it does not delay the head, else it is what elsewhere decides on the cluster without the
// room that is kept, else a refusal.
func (p *Plan) Beside(q Question, r engine.Request, d engine.Decision, ends int64, elsewhere func(engine.Snapshot) engine.Decision) engine.Decision {
	if !d.Placed || p.allows(q, r, d, ends) {
		return d
	}
	if other := elsewhere(p.kept(q)); other.Placed && p.allows(q, r, other, ends) {
		return other
	}
	return engine.Decision{Refusal: &engine.Refusal{Code: CodeReserved, Sentence: "would fit, but the room is kept for a job that waits in front of it"}}
}

// allows reports whether the head starts as planned beside what a decision takes.
func (p *Plan) allows(q Question, r engine.Request, d engine.Decision, ends int64) bool {
	switch {
	case p.At == 0:
		return takes(p.kept(q), r, d)
	case ends > 0 && ends <= p.At:
		return true
	}
	return q.Engine.Fits(preempt.With(q.at(p.At), r, d), q.Head)
}

type pool struct{ node, group string }

// kept is the cluster with the room taken that the head needs of what is free now: what it takes in its place, without
// what will have come free there by itself.
func (p *Plan) kept(q Question) engine.Snapshot {
	units := map[pool]int{}
	beside := map[string]preempt.Allocation{} // processor, memory and disk, by node
	for i, g := range p.Place.Groups {
		for _, at := range g.Placements {
			b := beside[at.NodeID]
			b.CPUMHz, b.MemoryMiB, b.DiskMiB = b.CPUMHz+q.Head.Groups[i].CPUMHz, b.MemoryMiB+q.Head.Groups[i].MemoryMiB, b.DiskMiB+q.Head.Groups[i].DiskMiB
			beside[at.NodeID] = b
			for _, t := range at.Tasks {
				for _, c := range t.Claims {
					units[pool{at.NodeID, c.Group}] += c.Units
				}
			}
		}
	}
	for i := range q.Running {
		a := &q.Running[i]
		if !p.endsBefore(q, a) {
			continue
		}
		b, here := beside[a.NodeID]
		if !here {
			continue
		}
		b.CPUMHz, b.MemoryMiB, b.DiskMiB = b.CPUMHz-a.CPUMHz, b.MemoryMiB-a.MemoryMiB, b.DiskMiB-a.DiskMiB
		beside[a.NodeID] = b
		for _, c := range a.Claims {
			if _, wanted := units[pool{a.NodeID, c.Group}]; wanted {
				units[pool{a.NodeID, c.Group}] -= c.Units
			}
		}
	}
	var taken []preempt.Allocation
	for i := range q.Snapshot.Nodes {
		n := &q.Snapshot.Nodes[i]
		b, here := beside[n.ID]
		if !here {
			continue
		}
		a := preempt.Allocation{
			Tenant: q.Head.Tenant, NodeID: n.ID, CPUMHz: -max(0, b.CPUMHz), MemoryMiB: -max(0, b.MemoryMiB), DiskMiB: -max(0, b.DiskMiB),
		}
		for j := range n.Pools {
			left, wanted := units[pool{n.ID, n.Pools[j].Group}]
			if form := n.Pools[j].Form; wanted && (form == accel.Shared || form == accel.MIG) {
				left = max(1, left) // a tenant that the head may not be beside must not come onto the card
			}
			if wanted && left > 0 {
				a.Claims = append(a.Claims, engine.Claim{Group: n.Pools[j].Group, Units: -left})
			}
		}
		taken = append(taken, a)
	}
	return preempt.Without(q.Snapshot, taken)
}

// endsBefore reports whether the head starts after the end of an allocation.
func (p *Plan) endsBefore(q Question, a *Allocation) bool {
	if p.At > 0 {
		return a.EndsAt > 0 && max(a.EndsAt, q.Now) <= p.At
	}
	_, waits := slices.BinarySearch(p.Waits, a.ID)
	return waits
}

// takes reports whether what a decision takes is free.
func takes(s engine.Snapshot, r engine.Request, d engine.Decision) bool {
	after := preempt.With(s, r, d)
	touched := map[string]bool{}
	for _, g := range d.Groups {
		for _, p := range g.Placements {
			touched[p.NodeID] = true
		}
	}
	for i := range after.Nodes {
		n := &after.Nodes[i]
		if !touched[n.ID] {
			continue
		}
		delete(touched, n.ID)
		over := n.UsedCPUMHz > n.CPUMHz || n.UsedMemoryMiB > n.MemoryMiB || n.DiskMiB > 0 && n.UsedDiskMiB > n.DiskMiB
		if !n.Ready || over || !claimsFit(n, d) {
			return false
		}
	}
	return d.Placed && len(touched) == 0
}

// claimsFit reports whether every pool that the decision takes of the node is there and not over what it has.
func claimsFit(n *engine.Node, d engine.Decision) bool {
	for _, g := range d.Groups {
		for _, p := range g.Placements {
			if p.NodeID != n.ID {
				continue
			}
			for _, t := range p.Tasks {
				for _, c := range t.Claims {
					at := slices.IndexFunc(n.Pools, func(p engine.Pool) bool { return p.Group == c.Group })
					if at < 0 || n.Pools[at].Used > n.Pools[at].Total {
						return false
					}
				}
			}
		}
	}
	return true
}

// Sentence says where and when the head starts. nodeName names nodes, and clock a moment in seconds.
func (p *Plan) Sentence(nodeName func(string) string, clock func(int64) string) string {
	var nodes []string
	for _, g := range p.Place.Groups {
		for _, at := range g.Placements {
			if name := nodeName(at.NodeID); !slices.Contains(nodes, name) {
				nodes = append(nodes, name)
			}
		}
	}
	slices.Sort(nodes)
	const most = 3
	where := ""
	for i, name := range nodes[:min(len(nodes), most)] {
		if i > 0 {
			where += ", "
		}
		where += name
	}
	if more := len(nodes) - most; more > 0 {
		where += fmt.Sprintf(" and %d more", more)
	}
	if p.At > 0 {
		return fmt.Sprintf("it starts at %s at the latest, for which room is kept on %s", clock(p.At), where)
	}
	return "room that comes free on " + where + " is kept for it"
}
