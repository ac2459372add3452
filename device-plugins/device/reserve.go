package device

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/devicepb"
)

// Reserve answers with one variable that tells our driver which cards, and how much of each, the instances are, and with
// the brand's own variables for drivers that know nothing of it. It returns no mounts and no device nodes, because Nomad
// would forget them when its agent restarts and wipe the task's volumes. The same ids always give the same answer.
func (p *Plugin) Reserve(ctx context.Context, ids []string) (*devicepb.ContainerReservation, error) {
	if len(ids) == 0 {
		return nil, errors.New("reserve nothing: no instance ids were given")
	}
	if err := p.ready(); err != nil {
		return nil, err
	}
	p.awaitFirst(ctx)
	r, cards, err := p.resolve(ids)
	if err != nil {
		return nil, err
	}
	for _, s := range p.sourcesOf(cards) {
		if gate, ok := s.source.Detector.(Reserver); ok {
			if err := gate.BeforeReserve(ctx, s.cards); err != nil {
				return nil, fmt.Errorf("reserve %d instances of %s: %w", len(ids), r.Vendor, err)
			}
		}
	}
	name, value, err := r.Env()
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(cards, func(a, b accel.Card) int { return a.Index - b.Index })
	env := accel.OwnEnv(cards)
	env[name] = value
	return &devicepb.ContainerReservation{Envs: env}, nil
}

// resolve finds the cards behind instance ids and notes that they are in use from now on.
func (p *Plugin) resolve(ids []string) (grant.Reservation, []accel.Card, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	owner := map[string]offer{}
	for _, o := range p.offers() {
		for _, id := range o.instances() {
			owner[id] = o
		}
	}
	r := grant.Reservation{Instances: slices.Compact(slices.Sorted(slices.Values(ids)))}
	var cards []accel.Card
	for _, id := range r.Instances {
		o, known := owner[id]
		switch {
		case !known:
			return r, nil, fmt.Errorf("unknown device %q: the card is gone or is offered in another form now, the task must be placed again", id)
		case !o.health().OK:
			return r, nil, fmt.Errorf("device %q cannot be used: %s", id, o.health().Reason)
		case len(r.Cards) == 0:
			r.Vendor, r.Form = o.Vendor, o.Form
			if unit := o.unitMiB(); unit != nil {
				r.UnitMiB = *unit
			}
		case o.Vendor != r.Vendor || o.Form != r.Form:
			return r, nil, fmt.Errorf("devices %q and %q are of different device groups", r.Instances[0], id)
		}
		if n := len(r.Cards); n > 0 && r.Cards[n-1].UUID == o.UUID {
			r.Cards[n-1].Units++
			continue
		}
		r.Cards = append(r.Cards, p.reservedCard(o))
		cards = append(cards, o.Card)
	}
	slices.SortStableFunc(r.Cards, func(a, b grant.Card) int { return a.Index - b.Index })
	p.tidy()
	if err := p.marks.Add(r, p.now()); err != nil {
		return r, nil, fmt.Errorf("note the reservation for the driver: %w", err)
	}
	return r, cards, nil
}

// tidy removes marks of reservations whose tasks never came. The caller holds mu.
func (p *Plugin) tidy() {
	if err := p.marks.Tidy(reserveGrace); err != nil {
		p.log.Warn("old reservations stay", "error", err)
	}
}

func (p *Plugin) reservedCard(o offer) grant.Card {
	c := grant.Card{UUID: o.UUID, Model: o.Model, Index: o.Index, PCI: o.PCIAddress, Units: 1}
	if o.MemoryMiB != nil {
		c.MemoryMiB = *o.MemoryMiB
	}
	for _, s := range p.sources {
		if _, mine := s.tracker.known[o.UUID]; !mine {
			continue
		}
		if nodes, ok := s.Detector.(NodeLister); ok {
			c.Nodes = nodes.Nodes(o.Card)
		}
	}
	return c
}

type sourceCards struct {
	source *source
	cards  []accel.Card
}

// sourcesOf sorts cards by the source that found them, in the order of the sources.
func (p *Plugin) sourcesOf(cards []accel.Card) []sourceCards {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []sourceCards
	for _, s := range p.sources {
		var own []accel.Card
		for _, c := range cards {
			if _, mine := s.tracker.known[c.UUID]; mine {
				own = append(own, c)
			}
		}
		if len(own) > 0 {
			out = append(out, sourceCards{s, own})
		}
	}
	return out
}
