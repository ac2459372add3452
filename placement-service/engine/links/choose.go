package links

import "math/bits"

// Ask is what a task wants of one node.
type Ask struct {
	Cards int  // different cards, at least 1
	NIC   bool // each card talks to other nodes: near its network card comes first
}

// Choice is the best set for an ask.
type Choice struct {
	Cards Set
	// Best reports that no set of the empty node has faster slowest links than this one.
	Best bool
}

// Choose is the best set of the free cards for an ask; false when too few are free. The order of worth is:
//
//  1. where network cards matter, the slowest path from a card to its nearest one;
//  2. the slowest link between two cards, then the slowest link of the best ring through all of them;
//  3. the sum of all links, and of the paths to network cards where they matter;
//  4. the fewest NUMA nodes;
//  5. what stays free: the most groups of eight, four and two cards that are as good as the best of the node, then the
//     sum of its links, then of its paths to network cards;
//  6. the set whose highest number is the lowest.
func (b *Box) Choose(free Set, a Ask) (Choice, bool) {
	free &= b.all
	if a.Cards < 1 || free.Len() < a.Cards {
		return Choice{}, false
	}
	var best Set
	var pace uint64
	for s := (-free) & free; s != 0; s = (s - free) & free { // every subset, ascending
		if bits.OnesCount16(uint16(s)) != a.Cards {
			continue
		}
		p := b.sets[s].pace(a.NIC)
		if best == 0 || p > pace || p == pace && b.better(s, best, free, a.NIC) {
			best, pace = s, p
		}
	}
	return Choice{Cards: best, Best: pace == b.top[index(a.NIC)][a.Cards]}, true
}

// better compares two sets of equal pace.
func (b *Box) better(x, y, free Set, nic bool) bool {
	i, o := &b.sets[x], &b.sets[y]
	mine, other := i.links, o.links
	if nic {
		mine, other = mine+i.nears, other+o.nears
	}
	switch {
	case mine != other:
		return mine > other
	case i.span != o.span:
		return i.span < o.span
	}
	i, o = &b.sets[free&^x], &b.sets[free&^y]
	switch {
	case i.groups != o.groups:
		return i.groups > o.groups
	case i.links != o.links:
		return i.links > o.links
	}
	return i.nears > o.nears // else the one that came first
}

func index(nic bool) int {
	if nic {
		return 1
	}
	return 0
}
