package preempt

import (
	"cmp"
	"maps"
	"slices"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// search is the work on one question under one set of rules. Several ways propose a set of units; each is thinned until
// every unit in it is needed, and the cheapest is taken.
type search struct {
	q       *Question
	cards   map[place]int
	units   []unit // what may be evicted, cheapest first
	emptied *stage // without any of it
	real    *stage // as it is
	price   *price
	engine  *engine.Engine // that chooses by price
	free    int64          // thousandths of cards that nobody holds
	at      map[string]int // nodes of the snapshot by their id
	chosen  []int          // units of the plan
}

func newSearch(q *Question, why []Why) *search {
	s := &search{q: q, cards: perCard(q.Snapshot), emptied: newStage(q.Snapshot.Nodes), real: newStage(q.Snapshot.Nodes), at: map[string]int{}}
	s.units = q.unitsOf(why, s.cards)
	for u := range s.units {
		s.evict(s.emptied, u)
	}
	for i := range q.Snapshot.Nodes {
		s.at[q.Snapshot.Nodes[i].ID] = i
	}
	for at, p := range s.real.pools {
		s.free += int64(p.pool.Free()) * 1000 / int64(s.cards[at])
	}
	s.setPrices()
	s.engine = q.Engine.With(s.price, priceWeight)
	return s
}

func (s *search) evict(st *stage, unit int) {
	for _, a := range s.units[unit].members {
		st.evict(&s.q.Running[a])
	}
}

func (s *search) restore(st *stage, unit int) {
	for _, a := range s.units[unit].members {
		st.restore(&s.q.Running[a])
	}
}

// setPrices notes what each unit gives back where.
func (s *search) setPrices() {
	s.price = &price{pools: map[place]*poolPrice{}, nodes: map[string]*nodePrice{}, most: 1}
	for at := range s.real.pools {
		s.price.pools[at] = &poolPrice{free: s.real.free(at), empty: s.emptied.free(at)}
	}
	for id, now := range s.real.nodes {
		then := s.emptied.nodes[id]
		s.price.nodes[id] = &nodePrice{[3]sidePrice{
			{free: now.CPUMHz - now.UsedCPUMHz, empty: then.CPUMHz - then.UsedCPUMHz},
			{free: now.MemoryMiB - now.UsedMemoryMiB, empty: then.MemoryMiB - then.UsedMemoryMiB},
			{free: now.DiskMiB - now.UsedDiskMiB, empty: then.DiskMiB - then.UsedDiskMiB},
		}}
	}
	for u := range s.units {
		s.price.most += float64(s.units[u].cost)
		s.setPrice(u)
	}
	for _, n := range s.price.nodes {
		for i := range n.beside {
			n.beside[i].sort()
		}
	}
}

func (s *search) setPrice(u int) {
	pools, sides := map[place]int{}, map[string][3]int{}
	for _, m := range s.units[u].members {
		a := &s.q.Running[m]
		for _, c := range a.Claims {
			pools[place{a.NodeID, c.Group}] += c.Units
		}
		side := sides[a.NodeID]
		side[0], side[1], side[2] = side[0]+a.CPUMHz, side[1]+a.MemoryMiB, side[2]+a.DiskMiB
		sides[a.NodeID] = side
	}
	cost := s.units[u].cost
	for at, units := range pools {
		if p := s.price.pools[at]; p != nil && units > 0 {
			p.pieces = append(p.pieces, piece{u, units, cost})
		}
	}
	for id, side := range sides {
		n := s.price.nodes[id]
		for i, amount := range side {
			if n != nil && amount > 0 {
				n.beside[i].pieces = append(n.beside[i].pieces, piece{u, amount, cost})
			}
		}
	}
}

// plan finds the victims.
func (s *search) plan() Plan {
	d := s.q.Engine.Decide(s.emptied.snapshot, s.q.Request)
	switch {
	case len(s.units) == 0:
		return Plan{Refusal: &Refusal{Code: CodeNoVictims}}
	case !d.Placed || s.q.Request.Loose != "":
		return Plan{Decision: d, Refusal: &Refusal{Code: CodeNoHelp}}
	}
	all := make([]int, len(s.units))
	for i := range all {
		all[i] = i
	}
	best := all
	for _, set := range s.proposals() {
		if len(set) > 0 && s.cost(set) < s.cost(best) && s.fits(s.q.Snapshot.Nodes, set) {
			best = set
		}
	}
	best = s.thin(s.q.Snapshot.Nodes, best, s.q.Request)
	if len(s.units) <= fewUnits {
		best = s.thin(s.q.Snapshot.Nodes, s.smaller(best), s.q.Request)
	}
	return s.planOf(best)
}

func (s *search) planOf(set []int) Plan {
	slices.Sort(set)
	s.chosen = set
	st := newStage(s.q.Snapshot.Nodes)
	p := Plan{MilliCards: map[string]int64{}}
	var milli int64
	for _, u := range set {
		s.evict(st, u)
		milli += s.units[u].milli
		p.MilliCards[s.q.Running[s.units[u].members[0]].Job] += s.units[u].milli
		for _, m := range s.units[u].members {
			a := &s.q.Running[m]
			p.Victims = append(p.Victims, a.ID)
			p.Jobs = append(p.Jobs, a.Job)
			if a.Tenant == s.q.Request.Tenant {
				p.own = append(p.own, a.Job)
			}
		}
	}
	slices.Sort(p.Victims)
	p.Jobs, p.own = each(p.Jobs), each(p.own)
	p.Foreign = len(p.Jobs) - len(p.own)
	p.Cards = float64(milli) / 1000
	p.Decision = s.q.Engine.Decide(st.snapshot, s.q.Request)
	p.Asked = float64(s.asked(p.Decision)) / 1000
	return p
}

// each is a list sorted, with everything in it once.
func each(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}

// asked is thousandths of cards that a decision takes.
func (s *search) asked(d engine.Decision) int64 {
	var sum int64
	for _, g := range d.Groups {
		for _, place := range g.Placements {
			for _, t := range place.Tasks {
				sum += milliOf(place.NodeID, t.Claims, s.cards)
			}
		}
	}
	return sum
}

func (s *search) cost(set []int) int64 {
	var sum int64
	for _, u := range set {
		sum += s.units[u].cost
	}
	return sum
}

// fits reports whether the request fits on these nodes without the units.
func (s *search) fits(nodes []engine.Node, set []int) bool {
	st := newStage(nodes)
	for _, u := range set {
		s.evict(st, u)
	}
	return s.q.Engine.Fits(st.snapshot, s.q.Request)
}

// thin leaves out what is not needed for the request on these nodes, the dearest first. A set with which it does not fit
// there stays as it is.
func (s *search) thin(nodes []engine.Node, set []int, r engine.Request) []int {
	st := newStage(nodes)
	for _, u := range set {
		s.evict(st, u)
	}
	if !s.q.Engine.Fits(st.snapshot, r) {
		return set
	}
	order := slices.Clone(set)
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(s.units[b].cost, s.units[a].cost) })
	var out []int
	for part := range slices.Chunk(order, len(order)/maxParts+1) { // of a few thousand nearly all can stay, of a few dozen none
		out = append(out, s.thinPart(st, part, r)...)
	}
	return out
}

// maxParts is in how many parts a set is thinned at first.
const maxParts = 64

// thinPart puts back a part of what is evicted if the request fits all the same, or else each half, and lists what stays
// evicted.
func (s *search) thinPart(st *stage, part []int, r engine.Request) []int {
	for _, u := range part {
		s.restore(st, u)
	}
	if s.q.Engine.Fits(st.snapshot, r) {
		return nil
	}
	for _, u := range part {
		s.evict(st, u)
	}
	if len(part) == 1 {
		return []int{part[0]}
	}
	half := len(part) / 2
	return append(s.thinPart(st, part[:half], r), s.thinPart(st, part[half:], r)...)
}

// proposals are sets of units with which the request fits, for each kind of pool that may serve it.
func (s *search) proposals() [][]int {
	var out [][]int
	add := func(p proposal) {
		if len(p.set) > 0 {
			out = append(out, s.thin(s.nodesNamed(p.nodes), p.set, s.q.Request))
		}
	}
	for _, nodes := range s.variants() {
		p := s.greedy(nodes)
		add(p)
		if !s.isLeast(p) {
			add(s.spread(nodes))
		}
	}
	return out
}

// proposal is a set of units, and the nodes on which the request fits without them.
type proposal struct {
	set   []int
	nodes map[string]bool
	least bool  // none is cheaper that frees the same pools
	asked int64 // thousandths of cards that the request takes there
}

// isLeast reports whether no other set can be smaller, since the request needs as much beyond what is free.
func (s *search) isLeast(p proposal) bool {
	for _, g := range s.q.Request.Groups {
		for _, t := range g.Tasks {
			if t.Ask != nil && !t.Ask.Whole() {
				return false // of another card a share may be a smaller part
			}
		}
	}
	var milli int64
	for _, u := range p.set {
		milli += s.units[u].milli
	}
	return len(p.set) > 0 && milli <= p.asked-s.free
}

// variants are the emptied cluster, and the same with one kind of pool alone: the engine takes the first form that
// serves, which need not be the cheapest to empty.
func (s *search) variants() [][]engine.Node {
	type kind struct {
		form   accel.Form
		vendor accel.Vendor
		model  string
		unit   uint64
	}
	var kinds []kind
	of := func(p *engine.Pool) kind { return kind{p.Form, p.Vendor, p.Model, p.UnitMiB} }
	nodes := s.emptied.snapshot.Nodes
	for i := range nodes {
		for j := range nodes[i].Pools {
			if p := &nodes[i].Pools[j]; p.Free() > 0 && !slices.Contains(kinds, of(p)) {
				kinds = append(kinds, of(p))
			}
		}
	}
	out := [][]engine.Node{nodes}
	const most = 8 // kinds are few
	if len(kinds) < 2 || len(kinds) > most {
		return out
	}
	for _, k := range kinds {
		st := newStage(nodes)
		for _, p := range st.pools {
			if of(p.pool) != k {
				p.pool.Used = max(p.pool.Used, p.pool.Total)
			}
		}
		out = append(out, st.snapshot.Nodes)
	}
	return out
}

// nodesNamed are some nodes as they are.
func (s *search) nodesNamed(ids map[string]bool) []engine.Node {
	out := make([]engine.Node, 0, len(ids))
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		out = append(out, s.q.Snapshot.Nodes[s.at[id]])
	}
	return out
}
