package brand

import (
	"slices"

	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/internal/accel"
)

// ReasonDivided is the reason of a card that cannot be used: not whole, because it is divided, and not in parts.
const ReasonDivided = device.ReasonDivided

// Part is a part of a card that an administrator made.
type Part struct {
	ID        string // sets it apart from the other parts of its card, and stays as long as the part
	Number    *int   // the tool's own, for display
	Kind      string // such as vir04
	MemoryMiB *uint64
	From      string // what told the memory: cli, sysfs, or catalogue where only the name of its size is known
	Nodes     []string
}

// maxParts bounds what is taken of a text: no card has so many parts.
const maxParts = 64

// Mode notes a sharing mode, and what showed it: cli, sysfs or the path of a file.
func (c *Card) Mode(mode accel.Mode, source string) {
	if slices.Contains(c.Modes, mode) {
		return
	}
	c.Modes = append(c.Modes, mode)
	c.Fact(accel.SourceOfMode(mode), source)
}

// Split adds a part of the card.
func (c *Card) Split(p Part) {
	same := func(o Part) bool { return o.ID == p.ID }
	if p.ID != "" && len(c.Parts) < maxParts && !slices.ContainsFunc(c.Parts, same) {
		c.Parts = append(c.Parts, p)
	}
}

// capable adds to an offered card what is known of its modes and its parts.
func (c Card) capable(out *accel.Card) {
	for _, mode := range out.Modes {
		out.Sources[accel.SourceOfMode(mode)] = c.Facts[accel.SourceOfMode(mode)]
	}
	for _, r := range c.Rounding {
		if slices.Contains(out.Modes, r.Mode) {
			out.Rounding = append(out.Rounding, r)
		}
	}
	switch {
	case c.Partition != "":
		out.Modes, out.Rounding = nil, nil
	case len(c.Parts) > 0:
		out.Form = accel.Divided
	case c.Divided:
		out.Form = accel.Divided
		if out.Health.OK {
			out.Health = accel.Health{Reason: ReasonDivided}
		}
	}
}

// parts are the parts of a card as cards of their own: the facts of their board, and what each has for itself.
func (c Card) parts(board accel.Card) []accel.Card {
	cards := make([]accel.Card, 0, len(c.Parts))
	for _, p := range c.Parts {
		part := board
		part.Form, part.Parent, part.UUID = accel.Partition, board.UUID, board.UUID+"-"+p.ID
		part.Model, part.RawName = board.Model+" "+p.Kind, board.RawName+" "+p.Kind
		part.MemoryMiB, part.Modes, part.Rounding, part.Index = p.MemoryMiB, nil, nil, -1
		if p.Number != nil {
			part.Index = *p.Number
		}
		part.Sources = map[string]string{}
		for _, field := range []string{accel.AttrModel, accel.AttrPCI, accel.AttrDriver, accel.AttrNUMA} {
			if source := board.Sources[field]; source != "" {
				part.Sources[field] = source
			}
		}
		if p.MemoryMiB != nil {
			part.Sources[accel.AttrMemory] = p.From
		}
		cards = append(cards, part)
	}
	return cards
}
