// Package topology holds how the cards of one machine are connected with one another, with network cards, PCIe switches
// and NUMA nodes: one graph for all brands, read from the tools' matrices or from the kernel's PCI tree. Which cards a
// task gets for it is decided by the placement service and does not belong here.
package topology

import (
	"cmp"
	"maps"
	"slices"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// Kind is what a vertex stands for.
type Kind string

// The kinds of vertices.
const (
	Card   Kind = "card"
	NIC    Kind = "nic"
	Switch Kind = "switch" // PCIe
	NUMA   Kind = "numa"
)

// Vertex is one end of links.
type Vertex struct {
	ID   string // UUID of a card, or the label that the tool gives it; never empty, without blanks
	Kind Kind
	Name string // RDMA device of a network card; empty when not known
	CPUs string // list of processors near it, as the tool writes it; empty when not known
	NUMA *int   // nil when not known
}

// Edge is a link between two vertices. It has no direction: A comes before B.
type Edge struct {
	A, B string
	Link accel.Link
	GBps *float64 // of all parallel links together, one way; nil when not known
}

// Graph is the topology of one machine. The zero value is an empty one. What is not known has no edge. It is not safe
// for concurrent use.
type Graph struct {
	vertices map[string]Vertex
	edges    map[[2]string]Edge
}

// AddVertex adds a vertex, or adds to one of this name what it did not know.
func (g *Graph) AddVertex(v Vertex) {
	if g.vertices == nil {
		g.vertices = map[string]Vertex{}
	}
	if have, ok := g.vertices[v.ID]; ok {
		v.Kind, v.Name, v.CPUs, v.NUMA = have.Kind, cmp.Or(have.Name, v.Name), cmp.Or(have.CPUs, v.CPUs), cmp.Or(have.NUMA, v.NUMA)
	}
	g.vertices[v.ID] = v
}

// AddEdge adds a link between two vertices, in place of one that was there.
func (g *Graph) AddEdge(e Edge) {
	if e.A == e.B {
		return
	}
	if order(e.A, e.B) > 0 {
		e.A, e.B = e.B, e.A
	}
	if g.edges == nil {
		g.edges = map[[2]string]Edge{}
	}
	g.edges[[2]string{e.A, e.B}] = e
}

// Vertices lists all vertices in the order in which people count them: GPU2 before GPU10.
func (g *Graph) Vertices() []Vertex {
	return slices.SortedFunc(maps.Values(g.vertices), func(a, b Vertex) int { return order(a.ID, b.ID) })
}

// Edges lists all links, ordered by their ends.
func (g *Graph) Edges() []Edge {
	return slices.SortedFunc(maps.Values(g.edges), func(x, y Edge) int { return cmp.Or(order(x.A, y.A), order(x.B, y.B)) })
}

// Vertex is the vertex of this name.
func (g *Graph) Vertex(id string) (Vertex, bool) {
	v, ok := g.vertices[id]
	return v, ok
}

// Edge is the link between two vertices, if it is known.
func (g *Graph) Edge(a, b string) (Edge, bool) {
	if order(a, b) > 0 {
		a, b = b, a
	}
	e, ok := g.edges[[2]string{a, b}]
	return e, ok
}

// Has tells whether there is a link of a kind.
func (g *Graph) Has(kind accel.LinkKind) bool {
	for _, e := range g.edges {
		if e.Link.Kind == kind {
			return true
		}
	}
	return false
}

// Links are the links of a vertex to others of a kind, by their names.
func (g *Graph) Links(id string, kind Kind) map[string]accel.Link {
	links := map[string]accel.Link{}
	for _, e := range g.edges {
		peer := e.B
		if peer == id {
			peer = e.A
		} else if e.A != id {
			continue
		}
		if g.vertices[peer].Kind == kind {
			links[peer] = e.Link
		}
	}
	return links
}

// Rename returns the graph with vertices named anew. Names that are not in the map stay.
func (g *Graph) Rename(names map[string]string) Graph {
	name := func(id string) string { return cmp.Or(names[id], id) }
	var out Graph
	for _, v := range g.Vertices() {
		v.ID = name(v.ID)
		out.AddVertex(v)
	}
	for _, e := range g.Edges() {
		e.A, e.B = name(e.A), name(e.B)
		out.AddEdge(e)
	}
	return out
}

// Add adds what another reading of the same machine knows and this one does not.
func (g *Graph) Add(other *Graph) {
	for _, v := range other.Vertices() {
		g.AddVertex(v)
	}
	for _, e := range other.Edges() {
		if _, known := g.Edge(e.A, e.B); !known {
			g.AddEdge(e)
		}
	}
}

// Near is the network card nearest to a card.
type Near struct {
	Name string // RDMA device
	Link accel.Link
}

// NearestNICs finds the nearest network card of each card, in the order given. Among equally near ones the cards take
// turns, so that two cards under one switch with two network cards get one each; the lowest name comes first. A card
// without a known link to a named network card is left out.
func (g *Graph) NearestNICs(cards []string) map[string]Near {
	nearest, taken := map[string]Near{}, map[string]int{}
	for _, id := range cards {
		var best []Near
		for nic, link := range g.Links(id, NIC) {
			if name := g.vertices[nic].Name; name != "" {
				best = append(best, Near{Name: name, Link: link})
			}
		}
		if len(best) == 0 {
			continue
		}
		near := slices.MinFunc(best, func(a, b Near) int {
			return cmp.Or(a.Link.Compare(b.Link), cmp.Compare(taken[a.Name], taken[b.Name]), order(a.Name, b.Name))
		})
		taken[near.Name]++
		nearest[id] = near
	}
	return nearest
}

// order compares names with numbers in them by the numbers.
func order(a, b string) int {
	for x, y := a, b; x != "" && y != ""; {
		if !digit(x[0]) || !digit(y[0]) {
			if x[0] != y[0] {
				return cmp.Compare(x[0], y[0])
			}
			x, y = x[1:], y[1:]
			continue
		}
		var m, n string
		m, x = number(x)
		n, y = number(y)
		if c := cmp.Or(cmp.Compare(len(m), len(n)), cmp.Compare(m, n)); c != 0 {
			return c
		}
	}
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

func digit(c byte) bool { return '0' <= c && c <= '9' }

// number cuts the number off the front, without the zeros before it.
func number(s string) (digits, rest string) {
	end := 0
	for end < len(s) && digit(s[end]) {
		end++
	}
	start := 0
	for start < end-1 && s[start] == '0' {
		start++
	}
	return s[start:end], s[end:]
}
