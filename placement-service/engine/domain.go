package engine

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/heteroflow/heteroflow/internal/constraint"
)

// domains counts the allocations of a decision by failure domain: the nodes with one value of an attribute.
type domains struct {
	snap    *Snapshot
	ask     *GroupAsk
	ofJob   map[domain]int // of all groups so far
	ofGroup map[domain]int
}

// domain is the nodes on which the attribute has the value.
type domain struct{ attribute, value string }

// reset begins a decision.
func (d *domains) reset() { clear(d.ofJob) }

// begin begins a group.
func (d *domains) begin(s *Snapshot, g *GroupAsk) {
	d.snap, d.ask = s, g
	clear(d.ofGroup)
}

// of is the domain of a node by an attribute.
func (d *domains) of(node int, attribute string) (domain, bool) {
	value, there := constraint.Resolve(attribute, d.snap.Nodes[node].value)
	return domain{attribute, value}, there && value != ""
}

// take counts allocations on a node.
func (d *domains) take(node, times int) {
	for _, attribute := range d.ask.domains() {
		if in, there := d.of(node, attribute); there {
			count(&d.ofGroup, in, times)
			count(&d.ofJob, in, times)
		}
	}
}

func count(in *map[domain]int, at domain, times int) {
	if *in == nil {
		*in = map[domain]int{}
	}
	(*in)[at] += times
}

// domains are the attributes that make failure domains of the group, each once.
func (g *GroupAsk) domains() []string {
	var out []string
	for i := range g.Apart {
		out = append(out, g.Apart[i].Attribute)
	}
	for i := range g.Spread {
		out = append(out, g.Spread[i].Attribute)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// full reports whether so many more allocations may not go to the node.
func (d *domains) full(node, allocations int) bool {
	_, is := d.fullOne(node, allocations)
	return is
}

// fullOne is the first rule that keeps them off.
func (d *domains) fullOne(node, allocations int) (*Apart, bool) {
	for i := range d.ask.Apart {
		a := &d.ask.Apart[i]
		in, there := d.of(node, a.Attribute)
		if !there || d.in(a, in)+allocations > max(1, a.Most) {
			return a, true
		}
	}
	return nil, false
}

func (d *domains) in(a *Apart, at domain) int {
	if a.OfJob {
		return d.ofJob[at]
	}
	return d.ofGroup[at]
}

// spread is what a place on the node is worth with the failure domains: each rule of spread is one more score, 100 where
// the domain has no allocation of the group, 100/(1 + n) where it has n, 0 where the node is in none.
func (d *domains) spread(node int, worth float64) float64 {
	sum, weights := worth, 1.0
	for i := range d.ask.Spread {
		s := &d.ask.Spread[i]
		weight := float64(s.Weight) / 100
		weights += weight
		if in, there := d.of(node, s.Attribute); there {
			sum += weight * 100 / float64(1+d.ofGroup[in])
		}
	}
	return sum / weights
}

// why says which rule keeps the next allocation off the node.
func (d *domains) why(node int) string {
	n := &d.snap.Nodes[node]
	a, is := d.fullOne(node, 1)
	if !is {
		return "its allocations are to be in different failure domains"
	}
	in, there := d.of(node, a.Attribute)
	if !there {
		return fmt.Sprintf("its allocations are to be apart by %s, and every node with room is in a domain that is full or has no such attribute, such as node %s",
			a.Attribute, cmp.Or(n.Name, n.ID))
	}
	return fmt.Sprintf("its allocations are to be apart by %s, at most %d for each value, and every node with room is in a domain that has as many, such as %q",
		a.Attribute, max(1, a.Most), in.value)
}
