package topology

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// String writes the graph as text: one line for each vertex, then one for each link, in a fixed order.
//
//	card GPU0 numa=0 cpus=0-23
//	nic NIC0 name=mlx5_0
//	link GPU0 NIC0 pix
//	link GPU0 GPU1 nv18 gbps=478.116
func (g *Graph) String() string {
	var b strings.Builder
	for _, v := range g.Vertices() {
		fmt.Fprintf(&b, "%s %s", v.Kind, v.ID)
		if v.Name != "" {
			fmt.Fprintf(&b, " name=%s", v.Name)
		}
		if v.NUMA != nil {
			fmt.Fprintf(&b, " numa=%d", *v.NUMA)
		}
		if v.CPUs != "" {
			fmt.Fprintf(&b, " cpus=%s", v.CPUs)
		}
		b.WriteByte('\n')
	}
	for _, e := range g.Edges() {
		fmt.Fprintf(&b, "link %s %s %s", e.A, e.B, e.Link)
		if e.GBps != nil {
			fmt.Fprintf(&b, " gbps=%s", strconv.FormatFloat(*e.GBps, 'f', -1, 64))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// Parse reads what String writes. Empty lines are passed over.
func Parse(text string) (Graph, error) {
	var g Graph
	line := 0
	for body := range strings.Lines(text) {
		line++
		words := strings.Fields(body)
		if len(words) == 0 {
			continue
		}
		if err := g.parseLine(words); err != nil {
			return Graph{}, fmt.Errorf("line %d of the topology: %w", line, err)
		}
	}
	return g, nil
}

func (g *Graph) parseLine(words []string) error {
	switch kind := Kind(words[0]); kind {
	case Card, NIC, Switch, NUMA:
		if len(words) < 2 {
			return errors.New("a vertex has no name")
		}
		return g.parseVertex(Vertex{ID: words[1], Kind: kind}, words[2:])
	case "link":
		if len(words) < 4 {
			return errors.New("a link has two ends and a kind")
		}
		return g.parseEdge(words)
	}
	return fmt.Errorf("%q is no kind of vertex and no link", words[0])
}

func (g *Graph) parseVertex(v Vertex, facts []string) error {
	for _, fact := range facts {
		key, value, _ := strings.Cut(fact, "=")
		switch key {
		case "name":
			v.Name = value
		case "cpus":
			v.CPUs = value
		case "numa":
			if v.NUMA = numaNode(value); v.NUMA == nil {
				return fmt.Errorf("%q is no NUMA node", value)
			}
		default:
			return fmt.Errorf("%q is no fact of a vertex", key)
		}
	}
	g.AddVertex(v)
	return nil
}

func (g *Graph) parseEdge(words []string) error {
	e := Edge{A: words[1], B: words[2]}
	for _, end := range []string{e.A, e.B} {
		if _, known := g.vertices[end]; !known {
			return fmt.Errorf("nothing is named %q", end)
		}
	}
	var err error
	if e.Link, err = accel.ParseLink(words[3]); err != nil {
		return err
	}
	for _, fact := range words[4:] {
		value, ok := strings.CutPrefix(fact, "gbps=")
		if !ok {
			return fmt.Errorf("%q is no fact of a link", fact)
		}
		if e.GBps = bandwidth(value); e.GBps == nil {
			return fmt.Errorf("%q is no bandwidth", value)
		}
	}
	g.AddEdge(e)
	return nil
}

// numaNode reads the number of a NUMA node; nil when it is none.
func numaNode(s string) *int {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > 1<<16 {
		return nil
	}
	return &n
}

// bandwidth reads gigabytes per second; nil when it is no sensible number.
func bandwidth(s string) *float64 {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || !(f > 0 && f < 1e6) {
		return nil
	}
	return &f
}
