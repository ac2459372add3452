package nvidia

import (
	"context"
	"errors"
	"fmt"

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
	if out, err = s.run.Run(ctx, s.path, "nvlink", "-s"); err == nil {
		g.AddSpeeds(topology.ParseNVLinks(out.Stdout))
	}
	return g, nil
}
