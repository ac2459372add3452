package brand

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/device-plugins/topology"
	"github.com/heteroflow/heteroflow/internal/accel"
)

var _ device.Linker = (*Detector)(nil)

// Links reads how the cards are connected: by the tool that lists them, where it tells, completed by the kernel's PCI
// tree. Without the tool the makers' own links stay unknown.
func (d *Detector) Links(ctx context.Context, cards []accel.Card) (topology.Graph, error) {
	bus, busErr := topology.FromBus(d.files, cards)
	d.mu.Lock()
	tool := d.tool
	d.mu.Unlock()
	if d.spec.Links == nil || tool == "" {
		return bus, busErr
	}
	limited, cancel := context.WithTimeout(ctx, toolLimit)
	defer cancel()
	name := filepath.Base(tool)
	matrix, err := d.spec.Links(name, d.caller(limited, d.run, tool))
	if err != nil {
		return bus, errors.Join(fmt.Errorf("read the links that %s shows: %w", name, err), busErr)
	}
	return topology.Join(&matrix, &bus, cards), busErr
}

// use remembers the tool that listed cards of this brand.
func (d *Detector) use(tool string) {
	d.say(tool, nil)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tool = tool
}
