package device

import (
	"slices"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// What is uncertain of parts and places is decided here so that no piece of hardware is offered twice: not a card beside
// its parts, and nothing under two names.

// doubtful are the listed places that may be of cards of which nothing tells where they are and that are not listed
// themselves. Nothing tells which is which: offered under another name they would be there twice.
func (t *tracker) doubtful(listed []accel.Card, named map[string]bool) map[string]bool {
	placeless := 0
	for uuid, e := range t.known {
		if e.card.PCIAddress == "" && e.card.Form != accel.Partition && !named[uuid] {
			placeless++
		}
	}
	places := map[string]bool{}
	for _, c := range listed {
		if placeless > len(places) && t.known[c.UUID] == nil && placeOnly(c) && c.PCIAddress != "" && len(t.at(c)) == 0 {
			places[c.UUID] = true
		}
	}
	return places
}

// stillDivided tells whether a card that is listed whole, or a part that is new, is of a card with parts of which it is not
// certain that they are gone: a tool that forgets them once, or names them otherwise, must not have their card offered
// beside them, nor in their stead, nor them twice.
func (t *tracker) stillDivided(c accel.Card, named map[string]bool) bool {
	if c.Form == accel.Divided || !c.Health.OK || c.Form == accel.Partition && t.known[c.UUID] != nil {
		return false
	}
	for uuid, e := range t.known {
		// A reading that names the card by its place stands for the parts that are known there, see take.
		doubt := e.left+1 < t.limit || byPlace(c.Parent) && !byPlace(e.card.Parent)
		if e.card.Form == accel.Partition && !named[uuid] && doubt && t.partOf(e.card, c) {
			return true
		}
	}
	return false
}

// partOf tells whether a part is one of the card, or of the card that another part is of: by its name, else, where one of
// the two names is not of a card that is known, by the place. A part that was named by the place of its card may be of any
// card that is listed without one.
func (t *tracker) partOf(part, c accel.Card) bool {
	board := c.UUID
	if c.Form == accel.Partition {
		board = c.Parent
	}
	named := func(uuid string) bool { return t.known[uuid] != nil && !byPlace(uuid) }
	switch here, there := t.place(part), t.place(c); {
	case part.Parent == board && board != "":
		return true
	case named(part.Parent) && (c.Form != accel.Partition || named(board)):
		return false // chips of one board
	case there == "":
		return byPlace(part.Parent)
	case here == "":
		return byPlace(board)
	default:
		return here == there && !placeOnly(c)
	}
}

// place is where a card is, by what was known of it or of its board where it does not say so itself; empty when not known.
func (t *tracker) place(c accel.Card) string {
	place := c.PCIAddress
	for _, uuid := range []string{c.UUID, c.Parent} {
		if e := t.known[uuid]; e != nil && place == "" {
			place = e.card.PCIAddress
		}
	}
	return place
}

// boardShown tells whether a reading shows the board of a part, or other parts of it, in good health.
func (t *tracker) boardShown(part accel.Card, listed []accel.Card) bool {
	return slices.ContainsFunc(listed, func(c accel.Card) bool {
		atPlace := part.PCIAddress != "" && c.PCIAddress == part.PCIAddress && !placeOnly(c)
		return c.Health.OK && (atPlace || t.partOf(part, c))
	})
}

// divide withdraws the cards of which there are parts, also those too sick to be believed.
func (t *tracker) divide() {
	for _, part := range t.known {
		if part.card.Form != accel.Partition {
			continue
		}
		for uuid, board := range t.known {
			atPlace := byPlace(part.card.Parent) && part.card.PCIAddress != "" && board.card.PCIAddress == part.card.PCIAddress
			if board.card.Form != accel.Partition && (part.card.Parent == uuid || atPlace) {
				board.card.Form = accel.Divided
			}
		}
	}
}
