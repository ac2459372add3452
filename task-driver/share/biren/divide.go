package biren

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/task-driver/share/maker"
)

// divide has the card in as many parts as are wanted, and tells their nodes. others is how many shares it has already.
func (b *SVI) divide(ctx context.Context, tool string, want part, others int, event func(string)) (card, error) {
	rows, err := b.query(ctx, tool)
	if err != nil {
		return card{}, err
	}
	now, listed := rows[want.Index]
	cards, err := b.cards.All()
	if err != nil {
		return card{}, err
	}
	c, ours := cards[cardID(want.Index)]
	switch {
	case !listed:
		return card{}, fmt.Errorf("brsmi lists no card %d: it may have fallen off the bus", want.Index)
	case !ours && now.Divided:
		return card{}, fmt.Errorf("card %d was divided by hand: sudo brsmi gpu set -s 0 -i %d makes it whole when nobody uses it", want.Index, want.Index)
	case ours && others > 0 && (!now.Divided || c.Parts != want.Parts):
		return card{}, fmt.Errorf("card %d is divided in %d for other tasks: it can be divided in %d when those have ended", want.Index, c.Parts, want.Parts)
	case ours && now.Divided && c.Parts == want.Parts:
		return b.found(c)
	case !now.Divided && now.UsedMiB != nil && *now.UsedMiB > 0:
		return card{}, fmt.Errorf("card %d is in use (%d MiB): it is divided when it is idle", want.Index, *now.UsedMiB)
	}
	if now.Divided { // ours, for nobody, and in other parts
		if err := b.set(ctx, tool, want.Index, 1); err != nil {
			return card{}, err
		}
	}
	before, err := b.nodes()
	if err != nil {
		return card{}, err
	}
	c = card{Index: want.Index, Parts: want.Parts, Before: before}
	if err := b.cards.Put(cardID(want.Index), c); err != nil {
		return card{}, err
	}
	event(fmt.Sprintf("dividing card %d in %d", want.Index, want.Parts))
	if err := b.set(ctx, tool, want.Index, want.Parts); err != nil {
		return card{}, err
	}
	return b.found(c)
}

// found completes the note of a divided card with the nodes of its parts.
func (b *SVI) found(c card) (card, error) {
	if len(c.Nodes) > 0 {
		return c, nil
	}
	after, err := b.nodes()
	if err != nil {
		return card{}, err
	}
	if c.Nodes, err = appeared(c, after); err != nil {
		return card{}, err
	}
	return c, b.cards.Put(cardID(c.Index), c)
}

// appeared are the nodes of a card's parts: those that came when it was divided, and its own where one fewer came. It is an
// error when the nodes of other cards went, since then numbers have changed and may mean another card.
func appeared(c card, after []string) ([]string, error) {
	own := nodeStem + strconv.Itoa(c.Index)
	var fresh []string
	for _, node := range after {
		if !slices.Contains(c.Before, node) {
			fresh = append(fresh, node)
		}
	}
	for _, node := range c.Before {
		if node != own && !slices.Contains(after, node) {
			return nil, fmt.Errorf("node %s went when card %d was divided, so that the numbers of cards have changed: divide cards by hand on this node", node, c.Index)
		}
	}
	if len(fresh) == c.Parts-1 && slices.Contains(after, own) {
		fresh = append(fresh, own)
	}
	if len(fresh) != c.Parts {
		return nil, fmt.Errorf("card %d was divided in %d, and %d nodes appeared (%s): which is which part cannot be told", c.Index, c.Parts, len(fresh), strings.Join(fresh, ", "))
	}
	slices.SortFunc(fresh, func(x, y string) int { return cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(x, y)) })
	return fresh, nil
}

// makeWhole undoes the division of a card that we divided.
func (b *SVI) makeWhole(ctx context.Context, index int) error {
	cards, err := b.cards.All()
	if _, ours := cards[cardID(index)]; !ours {
		return err
	}
	tool, err := maker.Find(b.host.Tool, tools...)
	if err != nil {
		return err
	}
	divided, err := b.divided(ctx, tool, index)
	if err == nil && divided {
		if err = b.set(ctx, tool, index, 1); err == nil {
			divided, err = b.divided(ctx, tool, index)
		}
	}
	switch {
	case err != nil:
		return err
	case divided:
		return fmt.Errorf("brsmi says that card %d was made whole, and it is divided still", index)
	}
	return b.cards.Drop(cardID(index))
}

// divided asks whether a card is divided. One that is not listed may be: what we know of it is kept.
func (b *SVI) divided(ctx context.Context, tool string, index int) (bool, error) {
	rows, err := b.query(ctx, tool)
	if err != nil {
		return false, err
	}
	now, listed := rows[index]
	if !listed {
		return false, fmt.Errorf("brsmi lists no card %d: it may have fallen off the bus, and is made whole when it is there again", index)
	}
	return now.Divided, nil
}
