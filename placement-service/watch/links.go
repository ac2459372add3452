package watch

import (
	"time"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// connect notes how the cards of a pool are linked to each other. rows are what each says of its neighbours, by the names
// that the device plugin gives them; what this version does not know is left out.
func connect(p *engine.Pool, rows []string) {
	if len(rows) != len(p.Cards) {
		return
	}
	for i := range p.Cards {
		peers, _ := accel.ParseLinks(rows[i])
		row := make([]*accel.Link, len(p.Cards))
		for k := range p.Cards {
			if l, known := peers[accel.PeerID(p.Vendor, p.Cards[k].UUID)]; known && k != i {
				row[k] = &l
			}
		}
		p.Cards[i].Links = engine.LinkRow(row)
	}
}

// pinLife is how long cards are kept for a job of which no allocation is seen: as long as a reservation lives.
const pinLife = 5 * time.Minute

// pin is a card of a node that a plan names and no allocation is known to hold yet.
type pin struct{ node, card string }

// pinned are the cards that plans of jobs name, until the allocations that take them are seen. Two jobs that are decided
// after each other so do not choose the same cards. They are a wish, not a claim: what is reserved of a pool is in the
// ledger, and when another instance of the service chooses a card too, Nomad gives it to one job and the other is placed
// anew.
type pinned struct {
	jobs  map[JobKey]pinsOf
	cards map[pin]int // how many jobs have it
}

type pinsOf struct {
	pins  []pin
	until time.Time
}

// Pin keeps the cards that a decision names for a job, in the place of those it had.
func (w *World) Pin(job JobKey, groups []engine.GroupPlan, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unpin(job, "")
	for other, p := range w.pins.jobs {
		if now.After(p.until) {
			w.unpin(other, "")
		}
	}
	var out []pin
	for _, g := range groups {
		for _, place := range g.Placements {
			for _, task := range place.Tasks {
				for _, claim := range task.Claims {
					for _, card := range claim.Cards {
						out = append(out, pin{place.NodeID, card})
					}
				}
			}
		}
	}
	if len(out) == 0 {
		return
	}
	for _, p := range out {
		w.pins.cards[p]++
		w.follow.stale[p.node] = true
	}
	w.pins.jobs[job] = pinsOf{out, now.Add(pinLife)}
}

// unpin gives back what is kept for a job, on one node or on all of them. It is called with the lock held.
func (w *World) unpin(job JobKey, node string) {
	have, ok := w.pins.jobs[job]
	if !ok {
		return
	}
	var rest []pin
	for _, p := range have.pins {
		if node != "" && p.node != node {
			rest = append(rest, p)
			continue
		}
		if w.pins.cards[p]--; w.pins.cards[p] <= 0 {
			delete(w.pins.cards, p)
		}
		w.follow.stale[p.node] = true
	}
	if len(rest) == 0 {
		delete(w.pins.jobs, job)
		return
	}
	have.pins = rest
	w.pins.jobs[job] = have
}

// pinnedOn marks the cards of a node that are kept for somebody as taken, in copies where there are any.
func (w *World) pinnedOn(n *engine.Node) {
	if len(w.pins.cards) == 0 {
		return
	}
	copied := false
	for i := range n.Pools {
		var cards []engine.Card
		for k := range n.Pools[i].Cards {
			c := &n.Pools[i].Cards[k]
			if c.UsedUnits > 0 || w.pins.cards[pin{n.ID, c.UUID}] == 0 {
				continue
			}
			if cards == nil {
				cards = append(cards, n.Pools[i].Cards...)
			}
			cards[k].UsedUnits = c.Units
		}
		if cards == nil {
			continue
		}
		if !copied {
			n.Pools, copied = append([]engine.Pool(nil), n.Pools...), true
		}
		n.Pools[i].Cards = cards
	}
}

// NodeAddress is where a node is reached, empty when it does not say.
func (w *World) NodeAddress(id string) string {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if v := w.nodes[id]; v != nil {
		return v.engine.Attrs["attr.unique.network.ip-address"]
	}
	return ""
}

// NearestNIC is the network card that a card is nearest to, empty when that is not known.
func (w *World) NearestNIC(nodeID, cardUUID string) string {
	w.mu.RLock()
	defer w.mu.RUnlock()
	v := w.nodes[nodeID]
	if v == nil {
		return ""
	}
	for i := range v.engine.Pools {
		for k := range v.engine.Pools[i].Cards {
			if c := &v.engine.Pools[i].Cards[k]; c.UUID == cardUUID {
				return c.NIC
			}
		}
	}
	return ""
}
