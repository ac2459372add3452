package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/heteroflow/heteroflow/device-plugins/topology"
	"github.com/heteroflow/heteroflow/internal/accel"
)

// Links is how the config file connects the cards. A control file takes no link out of it: a fault does not change how a
// machine is built.
func (d *Detector) Links(context.Context, []accel.Card) (topology.Graph, error) {
	return d.graph, nil
}

// graph connects the cards. The error joins everything that is wrong with the links.
func (f file) graph(cards []accel.Card) (topology.Graph, error) {
	var g topology.Graph
	var problems []error
	for _, c := range cards {
		g.AddVertex(topology.Vertex{ID: c.UUID, Kind: topology.Card, NUMA: c.NUMANode})
	}
	for _, b := range f.Links {
		link, err := accel.ParseLink(b.Kind)
		ends, wrong := chosen(cards, b.Cards)
		if err = errors.Join(err, wrong); err != nil {
			problems = append(problems, fmt.Errorf(`link %q: %w: write for example link "nv12" { cards = ["nvidia/0", "nvidia/1"] }`, b.Kind, err))
			continue
		}
		for i, a := range ends {
			for _, peer := range ends[i+1:] {
				g.AddEdge(topology.Edge{A: a, B: peer, Link: link})
			}
		}
	}
	for _, b := range f.NICs {
		if b.Link == "" {
			b.Link = string(accel.LinkPIX)
		}
		link, err := accel.ParseLink(b.Link)
		ends, wrong := chosen(cards, b.Cards)
		if err = errors.Join(err, wrong); err != nil {
			problems = append(problems, fmt.Errorf(`nic %q: %w: write for example nic "mlx5_0" { cards = ["nvidia/0"] }`, b.Name, err))
			continue
		}
		g.AddVertex(topology.Vertex{ID: b.Name, Kind: topology.NIC, Name: b.Name})
		for _, end := range ends {
			g.AddEdge(topology.Edge{A: end, B: b.Name, Link: link})
		}
	}
	return g, errors.Join(problems...)
}

// chosen are the UUIDs of the cards that the names mean, each once.
func chosen(cards []accel.Card, all []string) ([]string, error) {
	var ends []string
	for _, text := range all {
		found := false
		for _, c := range cards {
			if !names(text, c) {
				continue
			}
			found = true
			if !slices.Contains(ends, c.UUID) {
				ends = append(ends, c.UUID)
			}
		}
		if !found {
			return nil, fmt.Errorf("no card is called %q", text)
		}
	}
	return ends, nil
}
