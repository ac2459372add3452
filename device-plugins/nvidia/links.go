package nvidia

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/device-plugins/topology"
	"github.com/heteroflow/heteroflow/internal/accel"
)

var _ device.Linker = (*Detector)(nil)

// Links reads the matrix of nvidia-smi, completed by the kernel's PCI tree, which alone knows the links where the tool
// does not answer.
func (d *Detector) Links(ctx context.Context, cards []accel.Card) (topology.Graph, error) {
	bus, busErr := topology.FromBus(d.files, cards)
	limited, cancel := context.WithTimeout(ctx, toolLimit)
	defer cancel()
	matrix, err := d.smi.matrix(limited)
	if err != nil {
		return bus, errors.Join(fmt.Errorf("read the matrix of nvidia-smi: %w", err), busErr)
	}
	return topology.Join(&matrix, &bus, cards), busErr
}

// matrix reads which cards are connected how, and by how fast NVLinks. Speeds that cannot be read stay unknown.
func (s *smi) matrix(ctx context.Context) (topology.Graph, error) {
	out, err := s.run.Run(ctx, s.path, "topo", "-m")
	if err != nil {
		return topology.Graph{}, err
	}
	g, err := topology.ParseMatrix(out.Stdout)
	if err != nil || !g.Has(accel.LinkNVLink) {
		return g, err
	}
	s.nvlinks.Store(true)
	cards := s.readNVLinks(ctx)
	g.AddSpeeds(cards)
	g.MarkNVSwitches(cards)
	return g, nil
}

// readNVLinks reads the state of each NVLink. Cards of which the tool does not tell are left out.
func (s *smi) readNVLinks(ctx context.Context) []topology.NVLinks {
	out, err := s.run.Run(ctx, s.path, "nvlink", "-s")
	if err != nil {
		return nil
	}
	return topology.ParseNVLinks(out.Stdout)
}

// addNVLinks notes which links of the boards are up.
func (r *report) addNVLinks(cards []topology.NVLinks) {
	for _, c := range cards {
		for i := range r.gpus {
			g := &r.gpus[i]
			mine := g.uuid == c.UUID
			if g.repeated == c.UUID {
				mine = g.index != nil && c.Label == "GPU"+strconv.Itoa(*g.index)
			}
			if mine && g.links == nil {
				for _, speed := range c.GBps {
					g.links = append(g.links, speed != nil)
				}
			}
		}
	}
}
