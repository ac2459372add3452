package gang

import (
	"cmp"
	"slices"
)

// oneNode places all members on one node, if one holds them.
func (v *view) oneNode(members int) bool {
	best, bestKind := -1, -1
	var bestCost cost
	costs := make([]cost, len(v.index.kinds))
	for k := range costs {
		if v.room[k] >= members {
			costs[k] = v.costOf(k, members)
		}
	}
	for d := range v.c.domains {
		if v.c.domains[d].nodes == nil || !v.inside(d, v.inDomain) {
			continue
		}
		whole := -1
		for k, n := range v.index.count[d] {
			if n == 0 || v.room[k] < members {
				continue
			}
			if whole < 0 {
				whole = v.whole(d)
			}
			at := costs[k]
			at.whole = whole
			order := at.compare(&bestCost)
			if best < 0 || order < 0 || order == 0 && v.index.kinds[k].compare(&v.index.kinds[bestKind]) < 0 {
				best, bestKind, bestCost = d, k, at
			}
		}
	}
	if best < 0 {
		return false
	}
	v.seat(v.index.first(v.c, best, bestKind, nil), members)
	return true
}

// cost is what it costs to place members on a node, in the order in which it counts.
type cost struct {
	cut    int    // parts that are touched beyond the fewest possible
	broken groups // that were whole before
	left   int    // free cards that stay on the node
	whole  int    // untouched nodes of its domain
}

func (a *cost) compare(b *cost) int {
	return cmp.Or(
		cmp.Compare(a.cut, b.cut), cmp.Compare(a.broken.nodes, b.broken.nodes), cmp.Compare(a.left, b.left),
		cmp.Compare(a.broken.parts, b.broken.parts), cmp.Compare(a.broken.pairs, b.broken.pairs), cmp.Compare(a.whole, b.whole),
	)
}

// groups are what a node has for those who want cards near each other.
type groups struct {
	nodes, parts, pairs int // all of its cards free, parts of which all are, and pairs within parts
}

func (s *state) groups() groups {
	var g groups
	if s.free == s.parts {
		g.nodes = 1
	}
	for p, n := range s.free {
		if n > 0 && n == s.parts[p] {
			g.parts++
		}
		g.pairs += int(n) / 2
	}
	return g
}

func (v *view) costOf(k, members int) cost {
	s := v.index.kinds[k].state
	free, largest := s.free, int(slices.Max(s.parts[:]))
	fewest := func(cards int) int { return (cards + largest - 1) / largest }
	out := cost{left: free.sum() - members*v.cards}
	var all Parts
	for _, member := range v.seats(&s.parts, &free, members) {
		out.cut += member.touched() - fewest(v.cards)
		for p, n := range member {
			all[p] += n
		}
	}
	out.cut += all.touched() - fewest(members*v.cards)
	before, after := s.groups(), (&state{s.parts, free}).groups()
	out.broken = groups{before.nodes - after.nodes, before.parts - after.parts, before.pairs - after.pairs}
	return out
}

// touched is how many parts have a card.
func (p *Parts) touched() int {
	n := 0
	for _, cards := range p {
		if cards > 0 {
			n++
		}
	}
	return n
}

// whole is how many nodes of an innermost domain have all their cards free.
func (v *view) whole(d int) int {
	n := 0
	for k, count := range v.index.count[d] {
		if v.index.kinds[k].whole {
			n += int(count)
		}
	}
	return n
}

// seatOne takes the cards of one member from what is free on a node: from the part with the least room that holds them,
// else from the parts with the most room.
func seatOne(parts, free *Parts, cards int) Parts {
	var out Parts
	for cards > 0 {
		best := -1
		for p, n := range free {
			if parts[p] == 0 || n == 0 {
				continue
			}
			switch fits := int(n) >= cards; {
			case best < 0, fits && (int(free[best]) < cards || n < free[best]), !fits && n > free[best]:
				best = p
			}
		}
		n := min(cards, int(free[best]))
		out[best] += uint8(n)
		free[best] -= uint8(n)
		cards -= n
	}
	return out
}

// seats takes the cards of members that follow each other: all from one part where one holds them.
func (v *view) seats(parts, free *Parts, members int) []Parts {
	out := make([]Parts, 0, members)
	together := seatOne(parts, free, members*v.cards)
	if together.touched() > 1 { // each by itself
		for p := range free {
			free[p] += together[p]
		}
		for range members {
			out = append(out, seatOne(parts, free, v.cards))
		}
		return out
	}
	for p, n := range together {
		if n > 0 {
			for range members {
				out = append(out, Parts{})
				out[len(out)-1][p] = uint8(v.cards)
			}
		}
	}
	return out
}

// seat gives members slots on a node that has room for them.
func (v *view) seat(n, members int) {
	free := v.c.nodes[n].free
	for _, parts := range v.seats(&v.c.nodes[n].parts, &free, members) {
		v.slots = append(v.slots, Slot{Node: n, Parts: parts})
	}
}

// fill places members in a domain that has room for them, in as few of what lies in it as can be: in the one with the
// least room that holds what is left, else in the one with the most.
func (v *view) fill(d, members int) {
	if v.c.domains[d].children == nil {
		v.fillNodes(d, members)
		return
	}
	open := slices.Clone(v.c.domains[d].children)
	for members > 0 {
		best := 0
		for i, o := range open {
			if v.before(v.of[o], v.of[open[best]], members) {
				best = i
			}
		}
		n := min(members, v.of[open[best]])
		v.fill(open[best], n)
		members -= n
		open = slices.Delete(open, best, best+1)
	}
}

// before reports whether room a is the better one for what is left.
func (v *view) before(a, b, members int) bool {
	if a >= members && b >= members {
		return a < b
	}
	return a > b
}

func (v *view) fillNodes(d, members int) {
	used := make([]uint64, (len(v.c.domains[d].nodes)+63)/64)
	kinds := v.kindsIn(d)
	for members > 0 {
		best, node := -1, -1
		for i, k := range kinds {
			if best < 0 || v.before(v.room[k], v.room[kinds[best]], members) {
				if n := v.index.first(v.c, d, k, used); n >= 0 {
					best, node = i, n
				}
			}
		}
		n := min(members, v.room[kinds[best]])
		v.seat(node, n)
		members -= n
		local := v.c.nodes[node].local
		used[local/64] |= 1 << (local % 64)
	}
}

// kindsIn are the kinds of nodes in a domain that take members, those with the least free cards first, so that of two
// with equal room the fuller node is taken.
func (v *view) kindsIn(d int) []int {
	var out []int
	for k, n := range v.index.count[d] {
		if n > 0 && v.room[k] > 0 {
			out = append(out, k)
		}
	}
	slices.SortFunc(out, func(a, b int) int { return v.index.kinds[a].compare(&v.index.kinds[b]) })
	return out
}

// balance places members evenly over as few domains of the level as hold them: over those of the domain farthest in
// that holds all, with as much room as an even share needs and no more.
func (v *view) balance(a *Ask, members int) {
	level := slices.Index(v.c.levels, a.Level)
	around := v.narrowest(members)
	for v.c.domains[around].level > level {
		around = v.c.domains[around].parent
	}
	var open []int
	for d := range v.c.domains {
		if v.c.domains[d].level == level && v.of[d] > 0 && v.inside(d, around) {
			open = append(open, d)
		}
	}
	slices.SortStableFunc(open, func(x, y int) int { return cmp.Compare(v.of[y], v.of[x]) }) // most room first
	few, room := 0, 0
	for few < len(open) && room < members {
		room += v.of[open[few]]
		few++
	}
	// Where more domains than these have room for an even share, the ones with the least of it serve.
	even := (members + few - 1) / few
	enough := 0
	for enough < len(open) && v.of[open[enough]] >= even {
		enough++
	}
	chosen := open[:few]
	if enough > few {
		chosen = open[enough-few : enough]
	}
	for i, d := range slices.Backward(chosen) { // least room first: what it cannot take falls to the others
		n := min(v.of[d], members/(i+1))
		v.fill(d, n)
		members -= n
	}
}

func (v *view) inside(d, around int) bool {
	for ; d >= 0; d = v.c.domains[d].parent {
		if d == around {
			return true
		}
	}
	return false
}
