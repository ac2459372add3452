package gang

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
)

// MaxParts is how many parts a node may have.
const MaxParts = 8

// Node is a machine on which members may run.
type Node struct {
	ID    string
	Path  []string // the domains it lies in, outermost first, one for each level of the cluster
	Parts []int    // cards of each part: two halves with fast links inside, or one part for all
	Free  []int    // free cards of each part; nil when all are
}

// Parts is a number of cards for each part of a node.
type Parts [MaxParts]uint8

func (p *Parts) sum() int {
	n := 0
	for _, c := range p {
		n += int(c)
	}
	return n
}

// Cluster is nodes in nested domains, with counts of nodes in the same state kept for every domain. It is not safe for
// concurrent use. Questions do not change it, and their answers depend on the nodes, their order and what is free alone,
// not on what came before.
type Cluster struct {
	levels  []string
	domains []domain // the first is the whole cluster
	nodes   []node
	index   index // its kinds are the distinct states of nodes
	states  map[state]int
}

// domain is a zone, a rack or the whole cluster. Domains lie after the one they lie in.
type domain struct {
	name     string
	level    int // in levels; -1 for the whole cluster
	parent   int // -1 for the whole cluster
	children []int
	nodes    []int // of the innermost level only
}

type node struct {
	id          string
	domain      int // innermost
	local       int // place among the nodes of the domain
	parts, free Parts
	kind        int
}

// state is what makes two nodes alike: their parts, ordered.
type state struct{ parts, free Parts }

// index counts the nodes of each kind.
type index struct {
	count [][]int32    // by domain and kind
	bits  [][][]uint64 // by innermost domain and kind: the nodes, by their place in it
	kinds []kind
}

// kind is what nodes that are counted together have in common.
type kind struct {
	state state
	limit int  // members beside what cards allow
	whole bool // all cards are free
}

// compare orders kinds by what they are, the fuller first; their numbers depend on what came before.
func (a *kind) compare(b *kind) int {
	return cmp.Or(
		cmp.Compare(a.state.free.sum(), b.state.free.sum()), slices.Compare(a.state.free[:], b.state.free[:]),
		slices.Compare(a.state.parts[:], b.state.parts[:]), cmp.Compare(a.limit, b.limit),
	)
}

// New makes a cluster. It fails when a node does not have a domain for each level, or has parts that cannot be.
func New(levels []string, nodes []Node) (*Cluster, error) {
	c := &Cluster{levels: slices.Clone(levels), domains: []domain{{level: -1, parent: -1}}, states: map[state]int{}}
	named := map[[2]string]int{}
	for i := range nodes {
		n := &nodes[i]
		made, err := n.made(len(levels))
		if err != nil {
			return nil, err
		}
		made.domain = c.domainOf(n.Path, named)
		d := &c.domains[made.domain]
		made.local = len(d.nodes)
		d.nodes = append(d.nodes, i)
		c.nodes = append(c.nodes, made)
	}
	c.index.count = make([][]int32, len(c.domains))
	c.index.bits = make([][][]uint64, len(c.domains))
	for i := range c.nodes {
		c.enter(i)
	}
	return c, nil
}

func (n *Node) made(levels int) (node, error) {
	out := node{id: n.ID}
	if len(n.Path) != levels {
		return out, fmt.Errorf("node %s lies in %d domains of %d levels", n.ID, len(n.Path), levels)
	}
	if len(n.Parts) == 0 || len(n.Parts) > MaxParts || n.Free != nil && len(n.Free) != len(n.Parts) {
		return out, fmt.Errorf("node %s has %d parts and %d free ones: 1 to %d are possible", n.ID, len(n.Parts), len(n.Free), MaxParts)
	}
	for p, cards := range n.Parts {
		free := cards
		if n.Free != nil {
			free = n.Free[p]
		}
		if cards < 0 || cards > 255 || free < 0 || free > cards {
			return out, fmt.Errorf("part %d of node %s has %d cards free of %d", p, n.ID, free, cards)
		}
		out.parts[p], out.free[p] = uint8(cards), uint8(free)
	}
	return out, nil
}

// domainOf is the innermost domain of a path, made with those around it when it is new.
func (c *Cluster) domainOf(path []string, named map[[2]string]int) int {
	at := 0
	for level, name := range path {
		key := [2]string{fmt.Sprint(at), name}
		next, ok := named[key]
		if !ok {
			next = len(c.domains)
			named[key] = next
			c.domains = append(c.domains, domain{name: name, level: level, parent: at})
			c.domains[at].children = append(c.domains[at].children, next)
		}
		at = next
	}
	return at
}

// Len is the number of nodes. Nodes are known by their place in the list given to New.
func (c *Cluster) Len() int { return len(c.nodes) }

// Free is the number of free cards in each part of a node.
func (c *Cluster) Free(node int) Parts { return c.nodes[node].free }

// Domain is the name of the domain of a level that a node lies in, empty when there is no such level.
func (c *Cluster) Domain(node int, level string) string {
	for d := c.nodes[node].domain; d >= 0; d = c.domains[d].parent {
		if l := c.domains[d].level; l >= 0 && c.levels[l] == level {
			return c.domains[d].name
		}
	}
	return ""
}

// Take takes the cards of the slots. It fails, and takes nothing, when they are not free.
func (c *Cluster) Take(slots []Slot) error { return c.move(slots, -1) }

// Give gives back the cards of the slots. It fails, and gives nothing, when they were not taken.
func (c *Cluster) Give(slots []Slot) error { return c.move(slots, 1) }

func (c *Cluster) move(slots []Slot, sign int) error {
	for i := range slots {
		if err := c.moveOne(&slots[i], sign); err != nil {
			for k := range slots[:i] {
				_ = c.moveOne(&slots[k], -sign) // undoes what has just been done
			}
			return err
		}
	}
	return nil
}

func (c *Cluster) moveOne(s *Slot, sign int) error {
	if s.Node < 0 || s.Node >= len(c.nodes) {
		return fmt.Errorf("there is no node %d", s.Node)
	}
	n := &c.nodes[s.Node]
	free := n.free
	for p, cards := range s.Parts {
		now := int(free[p]) + sign*int(cards)
		if now < 0 || now > int(n.parts[p]) {
			return fmt.Errorf("part %d of node %s has %d cards free of %d: %d more or less than there are", p, n.id, free[p], n.parts[p], cards)
		}
		free[p] = uint8(now)
	}
	c.leave(s.Node)
	n.free = free
	c.enter(s.Node)
	return nil
}

func (c *Cluster) enter(i int) {
	n := &c.nodes[i]
	key := state{n.parts, n.free}
	key.sort()
	k, ok := c.states[key]
	if !ok {
		k = len(c.index.kinds)
		c.states[key] = k
		c.index.kinds = append(c.index.kinds, kind{state: key, limit: unlimited, whole: key.free == key.parts})
	}
	n.kind = k
	c.index.add(c, n, k, 1)
}

func (c *Cluster) leave(i int) { c.index.add(c, &c.nodes[i], c.nodes[i].kind, -1) }

// sort puts the parts in order, so that nodes that differ in the names of their parts only are alike.
func (s *state) sort() {
	for i := 1; i < MaxParts; i++ {
		for k := i; k > 0 && (s.free[k] > s.free[k-1] || s.free[k] == s.free[k-1] && s.parts[k] > s.parts[k-1]); k-- {
			s.free[k], s.free[k-1] = s.free[k-1], s.free[k]
			s.parts[k], s.parts[k-1] = s.parts[k-1], s.parts[k]
		}
	}
}

// add counts a node in, or out, in all domains that it lies in.
func (x *index) add(c *Cluster, n *node, k int, by int32) {
	words := x.bits[n.domain]
	for len(words) <= k {
		words = append(words, make([]uint64, (len(c.domains[n.domain].nodes)+63)/64))
	}
	x.bits[n.domain] = words
	if by > 0 {
		words[k][n.local/64] |= 1 << (n.local % 64)
	} else {
		words[k][n.local/64] &^= 1 << (n.local % 64)
	}
	for d := n.domain; d >= 0; d = c.domains[d].parent {
		for len(x.count[d]) <= k {
			x.count[d] = append(x.count[d], 0)
		}
		x.count[d][k] += by
	}
}

// first is the first node of a kind in an innermost domain that is not among those left out, -1 when there is none.
func (x *index) first(c *Cluster, d, k int, without []uint64) int {
	if k >= len(x.bits[d]) {
		return -1
	}
	for w, word := range x.bits[d][k] {
		if without != nil {
			word &^= without[w]
		}
		if word != 0 {
			return c.domains[d].nodes[w*64+bits.TrailingZeros64(word)]
		}
	}
	return -1
}
