package driver

import (
	"fmt"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/task-driver/share"
)

// asks are the shares to be made of the cards. A grant says how much of each, which may be less than whole slices; without
// one it is what the slices hold, by the best means that the node has.
func asks(cfg *driverpb.TaskConfig, cards []held, g grant.Grant) ([]share.Ask, error) {
	position, of := map[accel.Vendor]int{}, map[accel.Vendor]int{}
	for _, h := range cards {
		of[h.brand]++
	}
	var out []share.Ask
	for _, h := range cards {
		a := share.Ask{
			ID: share.NewID(cfg.GetId(), h.brand, h.card.UUID), TaskID: cfg.GetId(), AllocID: cfg.GetAllocId(),
			Vendor: h.brand, Card: h.card, Form: h.form, QoS: g.QoS, ComputePct: g.ComputePct,
			Position: position[h.brand], Of: of[h.brand],
		}
		a.Card.Units = h.units
		position[h.brand]++
		switch {
		case h.form != accel.Shared && h.form != accel.MIG:
		case g.MemoryMiB > 0:
			a.MemoryMiB = g.MemoryMiB
		case !h.whole():
			if a.MemoryMiB = h.memoryMiB(); a.MemoryMiB == 0 {
				return nil, fmt.Errorf("the slices of %s do not say how much memory they hold: upgrade the device plugin", h)
			}
		}
		out = append(out, a)
	}
	return out, nil
}
