package preempt

import (
	"cmp"
	"slices"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// judge says for each allocation why it stays; empty when it may be evicted.
func (q *Question) judge() []Why {
	why := make([]Why, len(q.Running))
	stays := map[string]bool{} // gangs of which something stays
	for i := range q.Running {
		a := &q.Running[i]
		if why[i] = q.rule(a); why[i] != "" && a.Whole {
			stays[a.Job] = true
		}
	}
	for i := range q.Running {
		if a := &q.Running[i]; a.Whole && why[i] == "" && stays[a.Job] {
			why[i] = WhyGang
		}
	}
	return why
}

// rule is the first rule by which an allocation stays.
func (q *Question) rule(a *Allocation) Why {
	p := &q.Policy
	switch {
	case a.Priority >= q.Request.Priority:
		return WhyPriority
	case a.Gold:
		return WhyGold
	case a.Pinned:
		return WhyPinned
	case a.StartedAt != 0 && p.Mode != Running:
		return WhyMode
	case a.StartedAt != 0 && q.Now-a.StartedAt < max(p.MinRuntime, a.MinRuntime):
		return WhyMinRuntime
	case a.EvictedAt != 0 && q.Now-a.EvictedAt < p.Guard:
		return WhyGuard
	case p.Budget > 0 && q.Lost[a.Tenant] >= p.Budget:
		return WhyBudget
	}
	return ""
}

// overBudget lists victims of tenants that would lose more than they may: those beyond the budget, cheapest kept first.
func (s *search) overBudget(p Plan) []int {
	if s.q.Policy.Budget <= 0 {
		return nil
	}
	lost := map[string]float64{}
	for tenant, cards := range s.q.Lost {
		lost[tenant] = cards
	}
	var over []int
	for _, u := range s.chosen {
		unit := &s.units[u]
		if lost[unit.tenant] += float64(unit.milli) / 1000; lost[unit.tenant] > s.q.Policy.Budget+1e-9 {
			over = append(over, unit.members...)
			lost[unit.tenant] -= float64(unit.milli) / 1000
		}
	}
	return over
}

func count(why []Why) []Kept {
	n := map[Why]int{}
	for _, w := range why {
		if w != "" {
			n[w]++
		}
	}
	var out []Kept
	for w, c := range n {
		out = append(out, Kept{Why: w, Allocations: c})
	}
	slices.SortFunc(out, func(a, b Kept) int {
		return cmp.Or(cmp.Compare(b.Allocations, a.Allocations), cmp.Compare(a.Why, b.Why))
	})
	return out
}

// unit is what is evicted together: one allocation, or all of a gang.
type unit struct {
	members []int // in Question.Running
	tenant  string
	milli   int64 // thousandths of cards
	cost    int64 // what is made small
}

const (
	// milliCost, priorityCost: a victim less is worth more than any difference in priority, and that more than any in
	// the time that is lost.
	milliCost    = 1 << 20
	priorityCost = 1 << 12
	mostPriority = 200
	mostMinutes  = priorityCost - 1
)

// unitsOf groups what may be evicted, the cheapest first.
func (q *Question) unitsOf(why []Why, cards map[place]int) []unit {
	var out []unit
	gangs := map[string]int{}
	for i := range q.Running {
		a := &q.Running[i]
		if why[i] != "" {
			continue
		}
		at, known := gangs[a.Job]
		if !a.Whole || !known {
			at = len(out)
			out = append(out, unit{tenant: a.Tenant})
			if a.Whole {
				gangs[a.Job] = at
			}
		}
		u := &out[at]
		u.members = append(u.members, i)
		milli := milliOf(a.NodeID, a.Claims, cards)
		u.milli += milli
		minutes := int64(0)
		if a.StartedAt != 0 {
			minutes = min(max(0, q.Now-a.StartedAt)/60, mostMinutes)
		}
		u.cost += milli*milliCost + int64(min(max(a.Priority, 0), mostPriority))*priorityCost + minutes
	}
	slices.SortStableFunc(out, func(a, b unit) int {
		return cmp.Or(cmp.Compare(a.cost, b.cost), cmp.Compare(q.Running[a.members[0]].ID, q.Running[b.members[0]].ID))
	})
	return out
}

// place is a pool of a node.
type place struct{ node, group string }

// perCard is how many instances one card of each pool has.
func perCard(s engine.Snapshot) map[place]int {
	out := map[place]int{}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		for j := range n.Pools {
			p := &n.Pools[j]
			units := 1
			if p.Form != accel.Whole && p.Form != accel.Partition {
				units = max(units, p.Total)
				for _, c := range p.Cards {
					units = max(units, c.Units)
				}
			}
			out[place{n.ID, p.Group}] = units
		}
	}
	return out
}

// milliOf is thousandths of cards that claims on a node take, rounded up for each.
func milliOf(node string, claims []engine.Claim, cards map[place]int) int64 {
	var sum int64
	for _, c := range claims {
		of := int64(max(1, cards[place{node, c.Group}]))
		sum += (int64(c.Units)*1000 + of - 1) / of
	}
	return sum
}
