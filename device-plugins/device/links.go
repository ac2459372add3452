package device

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/device-plugins/topology"
	"github.com/heteroflow/heteroflow/internal/accel"
)

// A Linker tells how the cards are connected with one another and with the RDMA devices of the machine. The vertices of
// cards are named by UUID. What it knows is returned beside an error, whose text is stable.
type Linker interface {
	Links(ctx context.Context, cards []accel.Card) (topology.Graph, error)
}

// neighbours is what is offered of a card's place in the topology. Empty is not known.
type neighbours struct {
	links        string // see accel.FormatLinks
	nic, nicLink string
}

// followLinks reads the topology once for every set of cards, and again where not all of it could be read, at longer and
// longer intervals. It runs beside everything else: a tool that hangs or fails leaves the cards without links and changes
// nothing besides.
func (p *Plugin) followLinks(ctx context.Context, s *source, l Linker) {
	last, pause := "", p.limit
	var again <-chan time.Time // nil once all was read
	for {
		p.mu.Lock()
		cards, changed := s.tracker.cards(), p.changed
		p.mu.Unlock()
		if set := cardSet(cards); set != last {
			last, pause, again = set, p.limit, nil
			if !p.readLinks(ctx, s, l, cards) {
				again = time.After(pause)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-again:
			again = nil
			if pause = min(2*pause, maxLinkPause); !p.readLinks(ctx, s, l, cards) {
				again = time.After(pause)
			}
		}
	}
}

const maxLinkPause = 10 * time.Minute

// cardSet names what the topology of cards depends on. Health is no part of it.
func cardSet(cards []accel.Card) string {
	var b strings.Builder
	for _, c := range cards {
		fmt.Fprintf(&b, "%s %d %s %s\n", c.UUID, c.Index, c.PCIAddress, c.Form)
	}
	return b.String()
}

// readLinks makes one reading of the topology, files it, and tells whether it was a whole one. What was known of a card
// before stays where the reading failed or says nothing of it.
func (p *Plugin) readLinks(ctx context.Context, s *source, l Linker, cards []accel.Card) bool {
	type answer struct {
		graph   topology.Graph
		trouble error
	}
	a, err := guarded(ctx, &s.linking, p.limit, func(ctx context.Context) (answer, error) {
		g, err := l.Links(ctx, cards)
		return answer{g, err}, nil
	})
	if ctx.Err() != nil {
		return false
	}
	if err = errors.Join(err, a.trouble); err != nil {
		p.log.Warn("not all links of the cards can be read", "source", s.Name(), "error", err)
	}
	p.log.Debug("topology", "source", s.Name(), "graph", a.graph.String())
	found := neighboursOf(&a.graph, cards)
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.near == nil {
		s.near = map[string]neighbours{}
	}
	for uuid, n := range found {
		if _, had := s.near[uuid]; had && err != nil {
			continue // half a reading does not outdo a whole one
		}
		s.near[uuid] = n
	}
	if len(found) > 0 {
		p.notify()
	}
	return err == nil
}

// neighboursOf makes what is offered of the graph. Cards of one address, such as partitions of one board, have the same
// network card; partitions have no links of their own.
func neighboursOf(g *topology.Graph, cards []accel.Card) map[string]neighbours {
	known, boards := map[string]accel.Card{}, map[string]string{}
	var asked []string
	for _, c := range cards {
		known[c.UUID] = c
		if _, twin := boards[c.PCIAddress]; twin && c.PCIAddress != "" {
			continue
		}
		boards[c.PCIAddress] = c.UUID
		asked = append(asked, c.UUID)
	}
	nics := g.NearestNICs(asked)
	found := map[string]neighbours{}
	for _, c := range cards {
		var n neighbours
		near, ok := nics[c.UUID]
		if !ok && c.PCIAddress != "" {
			near, ok = nics[boards[c.PCIAddress]]
		}
		if ok {
			n.nic, n.nicLink = near.Name, near.Link.String()
		}
		if c.Form != accel.Partition {
			peers := map[string]accel.Link{}
			for uuid, link := range g.Links(c.UUID, topology.Card) {
				if peer, ours := known[uuid]; ours && peer.Form != accel.Partition {
					peers[accel.PeerID(peer.Vendor, uuid)] = link
				}
			}
			n.links = accel.FormatLinks(peers)
		}
		if n != (neighbours{}) {
			found[c.UUID] = n
		}
	}
	return found
}
