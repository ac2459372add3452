package links

import (
	"math"
	"math/bits"
	"slices"
)

// groupSizes are the sizes of the groups that are kept whole for later, largest first: octets, quads and rings of four,
// pairs.
var groupSizes = [...]int{8, 4, 2}

// Box is a node's matrix with every set of its cards rated, so that a question is a look at the sets that are free. It
// does not change and may be used by several goroutines.
type Box struct {
	all   Set
	sets  []rated // by set
	parts []Set
	top   [2][MaxCards + 1]uint64 // the best pace of the empty node, without and with network cards, by number of cards
}

// rated is what one set of cards is worth by itself.
type rated struct {
	near, worst, ring uint16 // slowest path to a network card, link between two cards, link of the best ring through all
	nears             uint32 // all paths to network cards
	links             uint32 // all links between two cards
	groups            uint32 // how many groups of each size it can be cut into, eight bits for a size
	span              uint8  // NUMA nodes
}

// pace orders sets by their slowest links: the path to a network card first, where that matters.
func (r *rated) pace(nic bool) uint64 {
	pace := uint64(r.worst)<<16 | uint64(r.ring)
	if nic {
		pace |= uint64(r.near) << 32
	}
	return pace
}

// grade is what a group is judged by: the slowest links, then the NUMA nodes.
func (r *rated) grade() uint64 { return r.pace(false)<<8 | uint64(math.MaxUint8-r.span) }

// unlimited is the speed where there is no link to be slow.
const unlimited = math.MaxUint16

// Rate rates all sets of cards of a matrix. That takes some tens of milliseconds for 16 cards, a fraction of one for 8,
// and 24 bytes for each set: keep the answer by the matrix.
func Rate(m Matrix) *Box {
	size := 1 << m.n
	b := &Box{all: Set(size - 1), sets: make([]rated, size)}
	b.sets[0] = rated{near: unlimited, worst: unlimited}
	numa := make([]uint32, size)
	for s := 1; s < size; s++ {
		low := bits.TrailingZeros(uint(s))
		rest := s & (s - 1)
		r := b.sets[rest]
		for o := rest; o != 0; o &= o - 1 {
			link := m.speed[low][bits.TrailingZeros(uint(o))]
			r.worst, r.links = min(r.worst, link), r.links+uint32(link)
		}
		r.near, r.nears = min(r.near, m.nic[low]), r.nears+uint32(m.nic[low])
		numa[s] = numa[rest] | 1<<m.numa[low]&^1
		r.span = uint8(bits.OnesCount32(numa[s]))
		b.sets[s] = r
	}
	b.rings(&m)
	b.groups()
	for s := 1; s < size; s++ {
		k := Set(s).Len()
		b.top[0][k] = max(b.top[0][k], b.sets[s].pace(false))
		b.top[1][k] = max(b.top[1][k], b.sets[s].pace(true))
	}
	return b
}

// rings finds for every set the slowest link of the best ring through it, from the fastest speed down: with the links
// of at least that speed, which sets have a ring. The ends of the paths through a set that begin at its first card come
// from the ends of the paths through it without its last.
func (b *Box) rings(m *Matrix) {
	var speeds []uint16
	for i := range m.n {
		speeds = append(speeds, m.speed[i][:i]...)
	}
	slices.Sort(speeds)
	ends := make([]uint16, len(b.sets))
	for s := range b.sets {
		b.sets[s].ring = b.sets[s].worst // right for up to three cards, whose only ring has all links
	}
	for _, at := range slices.Backward(slices.Compact(speeds)) {
		var near [MaxCards]uint16
		for i := range m.n {
			for k := range m.n {
				if i != k && m.speed[i][k] >= at {
					near[i] |= 1 << k
				}
			}
		}
		for s := 1; s < len(ends); s++ {
			first := bits.TrailingZeros(uint(s))
			rest := uint16(s & (s - 1))
			if rest == 0 {
				ends[s] = uint16(s)
				continue
			}
			var e uint16
			for r := rest; r != 0; r &= r - 1 {
				last := bits.TrailingZeros16(r)
				if ends[uint16(s)&^(1<<last)]&near[last] != 0 {
					e |= 1 << last
				}
			}
			ends[s] = e
			if e&near[first] != 0 {
				b.sets[s].ring = max(b.sets[s].ring, at)
			}
		}
	}
}

// best lists the sets of a size that no other set of the size is better than, by their first card.
func (b *Box) best(size int) (byFirst [MaxCards][]Set) {
	var top uint64
	for s := range b.sets {
		if Set(s).Len() == size {
			top = max(top, b.sets[s].grade())
		}
	}
	for s := range b.sets {
		if x := Set(s); x.Len() == size && b.sets[s].grade() == top {
			first := bits.TrailingZeros16(uint16(x))
			byFirst[first] = append(byFirst[first], x)
		}
	}
	return byFirst
}

// groups counts for every set how many separate groups of each size it can be cut into that are as good as the best of
// the node, and cuts the whole node into parts.
func (b *Box) groups() {
	count := make([]uint8, len(b.sets))
	for _, size := range groupSizes {
		if size > b.all.Len() {
			continue
		}
		best := b.best(size)
		for s := 1; s < len(count); s++ {
			x := Set(s)
			n, most := count[x&(x-1)], uint8(x.Len()/size)
			if n < most { // else the first card is not needed
				for _, g := range best[bits.TrailingZeros16(uint16(x))] {
					if g&^x == 0 {
						if n = max(n, count[x&^g]+1); n == most {
							break
						}
					}
				}
			}
			count[s] = n
			b.sets[s].groups = b.sets[s].groups<<8 | uint32(n)
		}
		if b.parts == nil && size < b.all.Len() && int(count[b.all])*size == b.all.Len() {
			b.parts = cut(b.all, best, count)
		}
	}
	if b.parts == nil && b.all != 0 {
		b.parts = []Set{b.all}
	}
}

// cut divides a set that consists of groups into them.
func cut(s Set, best [MaxCards][]Set, count []uint8) []Set {
	var parts []Set
	for s != 0 {
		for _, g := range best[bits.TrailingZeros16(uint16(s))] {
			if g&^s == 0 && count[s&^g] == count[s]-1 {
				parts, s = append(parts, g), s&^g
				break
			}
		}
	}
	return parts
}

// Parts cuts the node into its largest equal groups that are not the node itself: the halves of most machines of eight
// cards. It is the node itself where there are none, and nil when it has no cards.
func (b *Box) Parts() []Set { return slices.Clone(b.parts) }

// All is the set of all cards of the node.
func (b *Box) All() Set { return b.all }
