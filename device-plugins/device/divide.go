package device

import (
	"slices"

	"github.com/heteroflow/heteroflow/device-plugins/catalogue"
	"github.com/heteroflow/heteroflow/internal/accel"
)

// Reasons of cards that cannot be had in the form in which they are to be offered.
const (
	reasonNoSize   = "the memory of the card is not known, so that it cannot be offered in slices"
	reasonNoMIG    = "the config wants the form mig and the card tells no MIG mode: write another form for it"
	reasonMIGOff   = "the config wants the form mig and MIG mode is off: switch it on (nvidia-smi -i <index> -mig 1)"
	reasonMIGSizes = "the config wants the form mig and the sizes in which the card can be divided are not known: make partitions (nvidia-smi mig -cgi … -C)"
	reasonMIGEmpty = "MIG mode is on and no partition is listed: make partitions (nvidia-smi mig -cgi … -C), write the form mig for the card, or switch MIG mode off"
)

// health is the card's, unless it cannot be had in this form.
func (o offer) health() accel.Health {
	reason := ""
	switch {
	case !o.Health.OK:
	case o.waits != "":
		reason = o.waits
	case o.Form == accel.MIG:
		reason = o.noMIG()
	case o.found == accel.MIG:
		reason = reasonMIGEmpty
	case o.Form == accel.Shared && o.Slices(o.sliceMiB) == 0:
		reason = reasonNoSize
	}
	if reason != "" {
		return accel.Health{Reason: reason}
	}
	return o.Health
}

// noMIG says why the card cannot be divided at the start of a task, empty when it can.
func (o offer) noMIG() string {
	switch {
	case !slices.Contains(o.Modes, accel.ModeMIG):
		return reasonNoMIG
	case o.found != accel.MIG:
		return reasonMIGOff
	case o.MemoryMiB == nil:
		return reasonNoSize
	case o.sliceMiB == 0:
		return reasonMIGSizes
	}
	return ""
}

// migSliceMiB is the memory of one of the slices that MIG counts in: a card of 7 parts has 8 of them, others as many as parts.
// It is 0 when it is not known.
func migSliceMiB(c accel.Card) uint64 {
	i := slices.IndexFunc(c.Rounding, func(r accel.Rounding) bool { return r.Mode == accel.ModeMIG })
	if i < 0 || c.MemoryMiB == nil {
		return 0
	}
	n := uint64(c.Rounding[i].Parts)
	if n == 7 {
		n = 8
	}
	if n == 0 {
		return 0
	}
	return *c.MemoryMiB / n
}

// roundings are the rules of the card's modes, as the detector probed them, else as they are published. A partition is not
// divided again.
func roundings(c accel.Card) []accel.Rounding {
	if c.Form == accel.Partition || c.Form == accel.Divided {
		return nil
	}
	product, _ := catalogue.ByName(c.Vendor, c.RawName, c.Model)
	var rules []accel.Rounding
	for _, mode := range c.Modes {
		if i := slices.IndexFunc(c.Rounding, func(r accel.Rounding) bool { return r.Mode == mode }); i >= 0 {
			rules = append(rules, c.Rounding[i])
		} else if r, ok := product.Rounding(c.Vendor, mode); ok {
			rules = append(rules, r)
		}
	}
	return rules
}
