package preempt

import (
	"cmp"
	"maps"
	"slices"

	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// greedy has the engine put one allocation after the other where it costs least.
func (s *search) greedy(nodes []engine.Node) proposal {
	d := s.engine.Decide(engine.Snapshot{Nodes: nodes}, s.q.Request)
	if !d.Placed {
		return proposal{}
	}
	p := s.cover(d)
	p.asked = s.asked(d)
	return p
}

// spread shares the allocations of a single group out to the nodes so that all of them together cost least: what the
// first ones cost on each node is known, and the best division is found among all.
func (s *search) spread(nodes []engine.Node) proposal {
	r := s.q.Request
	if len(r.Groups) != 1 || r.Groups[0].Count < 2 || r.Groups[0].Keep != nil {
		return proposal{}
	}
	count := r.Groups[0].Count
	most := count
	if r.DistinctHosts || r.Groups[0].DistinctHosts {
		most = 1
	}
	var sets [][]proposal // by node, for 1, 2, … allocations
	for i := range nodes {
		sets = append(sets, s.onNode(nodes[i:i+1], most))
	}
	division := s.divide(sets, count)
	if division == nil {
		return proposal{}
	}
	out := proposal{nodes: map[string]bool{}}
	for i, n := range division {
		if n > 0 {
			out.nodes[nodes[i].ID] = true
			out.set = append(out.set, sets[i][n-1].set...)
		}
	}
	slices.Sort(out.set)
	out.set = slices.Compact(out.set)
	return out
}

// onNode is what has to go from one node for 1, 2, … allocations of the request's group, as many as there is room for.
func (s *search) onNode(node []engine.Node, most int) []proposal {
	r := s.q.Request
	r.Groups = slices.Clone(r.Groups)
	var out []proposal
	for n := 1; n <= most; n++ {
		r.Groups[0].Count = n
		d := s.engine.Decide(engine.Snapshot{Nodes: node}, r)
		if !d.Placed {
			break
		}
		p := s.cover(d)
		if !p.least {
			p.set = s.thin(s.nodesNamed(p.nodes), p.set, r)
		}
		out = append(out, p)
	}
	return out
}

// divide finds how many allocations each node takes, nil when they do not find room.
func (s *search) divide(sets [][]proposal, count int) []int {
	const none = impossible
	best := make([]int64, count+1) // cost of so many allocations on the nodes so far
	for i := 1; i <= count; i++ {
		best[i] = none
	}
	took := make([][]int16, len(sets))
	for i, options := range sets {
		took[i] = make([]int16, count+1)
		costs := make([]int64, len(options))
		for j := range options {
			costs[j] = s.cost(options[j].set)
		}
		for n := count; n > 0; n-- {
			for j, cost := range costs {
				if k := n - j - 1; k >= 0 && best[k] < none && best[k]+cost < best[n] {
					best[n], took[i][n] = best[k]+cost, int16(j+1)
				}
			}
		}
	}
	if best[count] >= none {
		return nil
	}
	out := make([]int, len(sets))
	for i, n := len(sets)-1, count; i >= 0; i-- {
		out[i] = int(took[i][n])
		n -= out[i]
	}
	return out
}

// cover is units whose room a decision on the emptied cluster takes, the cheapest for each pool and node.
func (s *search) cover(d engine.Decision) proposal {
	p := proposal{nodes: map[string]bool{}}
	units, beside := s.needs(d)
	taken := map[int]bool{}
	steps := 0
	for _, at := range slices.SortedFunc(maps.Keys(units), func(a, b place) int {
		return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.group, b.group))
	}) {
		p.nodes[at.node] = true
		pool := s.price.pools[at]
		steps += claim(taken, pool.pieces, units[at]-pool.free, cheapest)
	}
	for _, id := range slices.Sorted(maps.Keys(beside)) {
		p.nodes[id] = true
		for i, amount := range beside[id] {
			side := &s.price.nodes[id].beside[i]
			steps += claim(taken, side.pieces, amount-side.free, first)
		}
	}
	p.least = steps < 2
	p.set = slices.Sorted(maps.Keys(taken))
	return p
}

// claim adds units to those taken until their pieces give the amount. It returns 0 when that needs none.
func claim(taken map[int]bool, pieces []piece, need int, choose func([]piece, int) []int) int {
	var left []piece
	for _, piece := range pieces {
		if taken[piece.unit] {
			need -= piece.amount
		} else {
			left = append(left, piece)
		}
	}
	if need <= 0 {
		return 0
	}
	for _, u := range choose(left, need) {
		taken[u] = true
	}
	return 1
}

// first are the units of the first pieces that give the amount.
func first(pieces []piece, need int) []int {
	var out []int
	for _, p := range pieces {
		if need <= 0 {
			break
		}
		out = append(out, p.unit)
		need -= p.amount
	}
	return out
}

// needs is what a decision takes of pools, and beside the cards of nodes.
func (s *search) needs(d engine.Decision) (units map[place]int, beside map[string][3]int) {
	units, beside = map[place]int{}, map[string][3]int{}
	for i, g := range d.Groups {
		ask := &s.q.Request.Groups[i]
		for _, p := range g.Placements {
			side := beside[p.NodeID]
			side[0], side[1], side[2] = side[0]+ask.CPUMHz, side[1]+ask.MemoryMiB, side[2]+ask.DiskMiB
			beside[p.NodeID] = side
			for _, t := range p.Tasks {
				for _, c := range t.Claims {
					units[place{p.NodeID, c.Group}] += c.Units
				}
			}
		}
	}
	return units, beside
}
