package engine

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// switches are the empty cards that would serve the request in another form; none when that does not help either.
// It decides on the cluster as it would be with every such card switched and sees which of them are used.
func (e *Engine) switches(s Snapshot, r Request) []Switch {
	share, whole := kinds(&r)
	for _, try := range []struct{ toShared, toWhole bool }{{share, false}, {false, whole}, {share && whole, share && whole}} {
		if !try.toShared && !try.toWhole {
			continue
		}
		switched, cards := imagine(s, &r, try.toShared, try.toWhole)
		if len(cards) == 0 {
			continue
		}
		if d := e.decide(&switched, &r, false); d.Placed {
			if out := usedSwitches(d, cards); len(out) > 0 {
				return out
			}
		}
	}
	return nil
}

func kinds(r *Request) (share, whole bool) {
	for _, g := range r.Groups {
		for _, t := range g.Tasks {
			if t.Ask != nil {
				share = share || !t.Ask.Whole()
				whole = whole || t.Ask.Whole()
			}
		}
	}
	return share, whole
}

// imagined is the cards of a pool that would exist after switching. Of instances taken beyond the real ones, each is
// one of these cards, in order.
type imagined struct {
	real  int
	cards []string
	to    accel.Form
}

type place struct{ node, group string }

// imagine copies the nodes that have empty switchable cards, with those cards in the other form.
func imagine(s Snapshot, r *Request, toShared, toWhole bool) (Snapshot, map[place]imagined) {
	cards := map[place]imagined{}
	unit, most := sliceSize(s), shares(r)
	out := s
	copied := false
	for i := range s.Nodes {
		node := &s.Nodes[i]
		if !node.Ready {
			continue
		}
		pools := node.Pools
		if toShared {
			pools = imagineShared(node.ID, pools, unit, most, cards)
		}
		if toWhole {
			pools = imagineWhole(node, pools, cards)
		}
		if len(pools) == 0 || len(node.Pools) > 0 && &pools[0] == &node.Pools[0] {
			continue
		}
		if !copied {
			out.Nodes = slices.Clone(s.Nodes)
			copied = true
		}
		out.Nodes[i].Pools = pools
	}
	return out, cards
}

// shares is how many shares of cards the request asks for: no more cards of one model and node need to be imagined.
func shares(r *Request) int {
	n := 0
	for _, g := range r.Groups {
		for _, t := range g.Tasks {
			if t.Ask != nil && !t.Ask.Whole() {
				n += max(0, g.Count) * t.Ask.Count
			}
		}
	}
	return n
}

// sliceSize is the smallest slice that the cluster has, which is what a newly shared card will most likely have.
func sliceSize(s Snapshot) uint64 {
	var smallest uint64
	for i := range s.Nodes {
		for j := range s.Nodes[i].Pools {
			p := &s.Nodes[i].Pools[j]
			if p.Form == accel.Shared && p.UnitMiB > 0 && (smallest == 0 || p.UnitMiB < smallest) {
				smallest = p.UnitMiB
			}
		}
	}
	return cmp.Or(smallest, uint64(accel.DefaultSliceMiB))
}

// imagineShared turns empty switchable whole cards into shared ones, at most most of each model. The pools are the
// ones given when there is none.
func imagineShared(node string, pools []Pool, unit uint64, most int, cards map[place]imagined) []Pool {
	out := pools
	for i := range pools {
		p := &pools[i]
		if p.Form != accel.Whole || !p.Auto || p.UnitMiB < unit {
			continue
		}
		empty := emptyCards(p, most)
		if len(empty) == 0 {
			continue
		}
		if &out[0] == &pools[0] {
			out = append(make([]Pool, 0, len(pools)+len(empty)), pools...)
		}
		out[i].Total -= len(empty)
		for j := range empty {
			c := &empty[j]
			c.Units, c.MemoryMiB = int(p.UnitMiB/unit), p.UnitMiB
			shared := Pool{
				// The UUID suffices as a name here: nobody but usedSwitches sees it.
				Group: c.UUID, Vendor: p.Vendor, Type: accel.Shared.DeviceType(), Name: c.UUID, Model: p.Model, Form: accel.Shared,
				UnitMiB: unit, Total: c.Units, Modes: p.Modes, Rounding: p.Rounding, Cards: empty[j : j+1],
			}
			out = append(out, shared)
			cards[place{node, shared.Group}] = imagined{cards: []string{c.UUID}, to: accel.Shared}
		}
	}
	return out
}

// emptyCards are the first healthy cards of a whole-card pool that nobody holds, as far as that is known by card, at
// most most and no more than are free.
func emptyCards(p *Pool, most int) []Card {
	most = min(most, p.Free())
	out := make([]Card, 0, min(most, len(p.Cards))) // of its own: the caller may change it
	for i := range p.Cards {
		c := &p.Cards[i]
		if !c.Healthy || c.Fixed || c.UsedUnits != 0 {
			continue
		}
		at, _ := slices.BinarySearchFunc(out, c.UUID, func(have Card, uuid string) int { return cmp.Compare(have.UUID, uuid) })
		switch {
		case len(out) < most:
			out = slices.Insert(out, at, *c)
		case at < most:
			copy(out[at+1:], out[at:])
			out[at] = *c
		}
	}
	return out
}

// imagineWhole turns each empty switchable shared card into a whole one of its model's pool.
func imagineWhole(node *Node, pools []Pool, cards map[place]imagined) []Pool {
	out := pools
	for i := range pools {
		p := &pools[i]
		if p.Form != accel.Shared || !p.Auto || !wholeCard(p) || p.Free() < p.Total || len(p.Cards) != 1 || p.Cards[0].Fixed {
			continue
		}
		if &out[0] == &pools[0] {
			out = slices.Clone(pools)
		}
		out[i].Total = 0
		group := string(p.Vendor) + "/" + accel.Whole.DeviceType() + "/" + p.Model
		at := slices.IndexFunc(out, func(x Pool) bool { return x.Group == group })
		if at < 0 {
			out = append(out, Pool{
				Group: group, Vendor: p.Vendor, Type: accel.Whole.DeviceType(), Name: p.Model, Model: p.Model, Form: accel.Whole,
				Auto: true, UnitMiB: p.CardMiB(), Modes: p.Modes, Rounding: p.Rounding,
			})
			at = len(out) - 1
		}
		key := place{node.ID, group}
		was, known := cards[key]
		if !known {
			was = imagined{real: out[at].Free(), to: accel.Whole}
		}
		was.cards = append(was.cards, p.Cards[0].UUID)
		cards[key] = was
		out[at].Total++
	}
	return out
}

// usedSwitches are the imagined cards that a decision takes.
func usedSwitches(d Decision, cards map[place]imagined) []Switch {
	taken := map[place]int{}
	for _, g := range d.Groups {
		for _, p := range g.Placements {
			for _, t := range p.Tasks {
				for _, c := range t.Claims {
					taken[place{p.NodeID, c.Group}] += c.Units
				}
			}
		}
	}
	var out []Switch
	for at, card := range cards {
		n := taken[at] - card.real
		if card.to == accel.Shared {
			n = min(n, 1) // its units are slices of one card
		}
		slices.Sort(card.cards)
		for _, uuid := range card.cards[:max(0, min(n, len(card.cards)))] {
			out = append(out, Switch{NodeID: at.node, CardUUID: uuid, To: card.to})
		}
	}
	slices.SortFunc(out, func(a, b Switch) int {
		return cmp.Or(cmp.Compare(a.NodeID, b.NodeID), cmp.Compare(a.CardUUID, b.CardUUID))
	})
	return out
}

// switchSentence tells which cards change their form and that the job waits for it, in words that need no knowledge of
// forms.
func switchSentence(s Snapshot, switches []Switch, need string) string {
	var toShared, toWhole []string
	for _, sw := range switches {
		if sw.To == accel.Shared {
			toShared = append(toShared, cardName(s, sw))
		} else {
			toWhole = append(toWhole, cardName(s, sw))
		}
	}
	var why, what []string
	if len(toShared) > 0 {
		why, what = append(why, "no card that is open for shares has room"), append(what, "opening "+few(toShared)+" for shares")
	}
	if len(toWhole) > 0 {
		why, what = append(why, "too few cards are free as a whole"), append(what, "closing "+few(toWhole)+" for shares, to be given as a whole")
	}
	return fmt.Sprintf("needs %s: %s; %s, which takes some seconds", need, strings.Join(why, " and "), strings.Join(what, ", and "))
}

// cardName is the model, the node and the form's id of a card, for people.
func cardName(s Snapshot, sw Switch) string {
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if n.ID != sw.NodeID {
			continue
		}
		for j := range n.Pools {
			p := &n.Pools[j]
			if slices.ContainsFunc(p.Cards, func(c Card) bool { return c.UUID == sw.CardUUID }) {
				return fmt.Sprintf("%s-%s on node %s", p.Model, accel.ShortID(p.Vendor, sw.CardUUID), n.Name)
			}
		}
	}
	return sw.CardUUID
}
