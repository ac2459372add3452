package submit

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/flight"
)

const (
	// deafAfter is how long an intent waits for its claim before its node is taken to fetch none.
	deafAfter = 30 * time.Second
	// deafFor is how long the cards of such a node are left as they are, unless it fetches.
	deafFor = 5 * time.Minute
	// fetchKept is how long a node that fetched its intents counts as one that does. It asks twice a minute.
	fetchKept = 2 * time.Minute
	// fetchesKept is how many cards that were asked about are remembered before old ones are forgotten.
	fetchesKept = 1 << 14
	// deafNamed is how many such nodes a reason names.
	deafNamed = 3
)

// deafNode is a node whose device plugin left an intent unclaimed and did not even ask for it.
type deafNode struct {
	card  string // whose intent it was
	until time.Time
}

// IntentsFetched notes that a device plugin asked what is wanted of its cards.
func (s *Submitter) IntentsFetched(cards []string) {
	if s.switches.fetchedNow(cards, s.Clock.Now()) {
		s.wake() // its cards may be switched after all
	}
}

// fetchedNow reports whether a node was deaf until now.
func (b *switchBook) fetchedNow(cards []string, now time.Time) (heals bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.fetched) > fetchesKept {
		for c, at := range b.fetched {
			if now.Sub(at) > fetchKept {
				delete(b.fetched, c)
			}
		}
	}
	for _, c := range cards {
		b.fetched[c] = now
		delete(b.refused, c)
	}
	for id, d := range b.deaf {
		if slices.Contains(cards, d.card) {
			delete(b.deaf, id)
			heals = true
		}
	}
	return heals
}

// wanted is an intent and when this process first saw it.
type wanted struct {
	intent string
	since  time.Time
}

// seen is when this process first saw the intent: nodes may still be on their way to a service that was away.
func (b *switchBook) seen(in store.Intent, now time.Time) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if w := b.wanted[in.CardUUID]; w.intent == in.ID {
		return w.since
	}
	b.wanted[in.CardUUID] = wanted{intent: in.ID, since: now}
	return now
}

// hears reports whether somebody asked about the card lately.
func (b *switchBook) hears(card string, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	at, ok := b.fetched[card]
	return ok && now.Sub(at) <= fetchKept
}

// deafen notes that the node of the switch does not fetch intents.
func (b *switchBook) deafen(sw engine.Switch, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.deaf[sw.NodeID] = deafNode{card: sw.CardUUID, until: now.Add(deafFor)}
}

// deafNodes are the nodes that do not fetch intents.
func (b *switchBook) deafNodes(now time.Time) map[string]bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[string]bool{}
	for id, d := range b.deaf {
		if now.After(d.until) {
			delete(b.deaf, id)
			continue
		}
		out[id] = true
	}
	return out
}

// decideOnce asks the engine and keeps what it said.
func (s *Submitter) decideOnce(snapshot engine.Snapshot, r engine.Request) engine.Decision {
	e := s.Engine()
	d := e.Decide(snapshot, r)
	if s.Record != nil {
		learnt, level := e.Learnt()
		s.Record(flight.Entry{
			At: s.Clock.Now(), Plugins: e.Settings(), Learnt: learnt, Level: level, Snapshot: snapshot, Request: r, Decision: d,
		})
	}
	return d
}

// decideAround decides, and once more without the cards of nodes that do not fetch intents, and without those that could
// not be switched a moment ago, when it counted on one.
func (s *Submitter) decideAround(ctx context.Context, snapshot engine.Snapshot, r engine.Request) (engine.Decision, error) {
	var deaf []string
	var failed []FailedSwitch
	d := s.decideOnce(snapshot, r)
	for len(d.Switches) > 0 {
		pausing, err := s.pausing(ctx)
		if err != nil {
			return engine.Decision{}, err
		}
		if met := among(pausing, d.Switches); len(met) > 0 { // each is met once: it is fixed from here on
			failed = append(failed, met...)
			if len(failed) > failedNamed { // and of many all at once, so that there are few decisions
				failed, met = pausing, pausing
			}
			fixCards(snapshot, met)
			d = s.decideOnce(snapshot, r)
			continue
		}
		if err := s.findDeaf(ctx, d.Switches); err != nil {
			return engine.Decision{}, err
		}
		nodes := s.switches.deafNodes(s.Clock.Now())
		before := len(deaf)
		for _, sw := range d.Switches {
			if name := s.World.NodeName(sw.NodeID); nodes[sw.NodeID] && !slices.Contains(deaf, name) {
				deaf = append(deaf, name)
			}
		}
		if len(deaf) == before {
			break
		}
		fixForms(snapshot, func(n *engine.Node) bool {
			return nodes[n.ID] && (len(deaf) >= deafNamed || slices.Contains(deaf, s.World.NodeName(n.ID)))
		})
		d = s.decideOnce(snapshot, r)
	}
	if d.Refusal != nil && len(deaf) > 0 {
		d.Refusal.Sentence += "; " + deafSentence(deaf)
	}
	if d.Refusal != nil && len(failed) > 0 {
		d.Refusal.Sentence += "; " + s.failedSentence(failed)
	}
	return d, nil
}

// findDeaf looks for intents of the cards that nobody claimed or asked for.
func (s *Submitter) findDeaf(ctx context.Context, switches []engine.Switch) error {
	now := s.Clock.Now()
	cards := make([]string, len(switches))
	for i, sw := range switches {
		cards[i] = sw.CardUUID
	}
	open, err := s.Store.OpenIntents(ctx, cards)
	if err != nil {
		return databaseError(err)
	}
	for _, sw := range switches {
		left := func(in store.Intent) bool {
			return in.CardUUID == sw.CardUUID && in.State == store.IntentWanted && now.Sub(s.switches.seen(in, now)) >= deafAfter
		}
		if slices.ContainsFunc(open, left) && !s.switches.hears(sw.CardUUID, now) {
			s.log.Warn("a node's device plugin does not fetch intents: set server and token in its config", "node_id", sw.NodeID, "card", sw.CardUUID)
			s.switches.deafen(sw, now)
		}
	}
	return nil
}

// fixForms takes the cards of the nodes for ones whose form stays.
func fixForms(s engine.Snapshot, which func(*engine.Node) bool) {
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if !which(n) {
			continue
		}
		n.Pools = slices.Clone(n.Pools) // snapshots share what nobody uses
		for j := range n.Pools {
			n.Pools[j].Auto = false
		}
	}
}

func deafSentence(names []string) string {
	if len(names) == 1 {
		return fmt.Sprintf("the device plugin on node %s does not fetch intents, so that its cards are neither opened nor closed for shares: "+
			"set server and token in its config", names[0])
	}
	return fmt.Sprintf("the device plugins on nodes %s do not fetch intents, so that their cards are neither opened nor closed for shares: "+
		"set server and token in their config", strings.Join(names, ", "))
}
