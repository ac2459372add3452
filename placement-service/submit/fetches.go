package submit

import (
	"fmt"
	"slices"
	"time"
)

// refusal is a call for intents that was turned away.
type refusal struct {
	at  time.Time
	why string
}

// IntentsRefused notes that somebody asked what is wanted of the cards and was turned away, and why. Who it was is not
// known, so that it counts only for cards that the cluster has, and only until somebody asks who may.
func (s *Submitter) IntentsRefused(cards []string, why string) {
	now := s.Clock.Now()
	if !s.switches.mayLook(now) {
		return
	}
	known := map[string]bool{}
	for _, c := range s.World.Cards() {
		known[c.UUID] = true
	}
	s.switches.mu.Lock()
	defer s.switches.mu.Unlock()
	for _, c := range cards {
		if known[c] {
			s.switches.refused[c] = refusal{at: now, why: why}
		}
	}
}

// mayLook keeps strangers from having the whole cluster looked through at every call. A plugin that is turned away
// asks again.
func (b *switchBook) mayLook(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.Before(b.look) {
		return false
	}
	b.look = now.Add(100 * time.Millisecond)
	return true
}

// Fetches says whether the device plugin with these cards asks what is wanted of them, nil when that is not known, and
// why it is taken not to. The cards are those of one node whose form may be switched.
func (s *Submitter) Fetches(cards []string) (fetches *bool, why string) {
	now := s.Clock.Now()
	b := s.switches
	b.mu.Lock()
	defer b.mu.Unlock()
	var last time.Time
	var refused refusal
	for _, c := range cards {
		if at := b.fetched[c]; at.After(last) {
			last = at
		}
		if r := b.refused[c]; r.at.After(refused.at) {
			refused = r
		}
	}
	yes, no := true, false
	switch {
	case !last.IsZero() && now.Sub(last) <= fetchKept && !refused.at.After(last):
		return &yes, ""
	case refused.at.After(last) && now.Sub(refused.at) <= refusedKept:
		return &no, "it is turned away: " + refused.why
	case !last.IsZero():
		return &no, fmt.Sprintf("it has not asked this service since %s", last.UTC().Format(time.DateTime+" MST"))
	case now.Sub(b.began) > fetchKept, slices.ContainsFunc(cards, b.isDeaf):
		return &no, "it does not ask this service: server is missing in its config, or is another address"
	}
	return nil, ""
}

// refusedKept is how long a refusal counts. A plugin that is turned away asks again every minute.
const refusedKept = 5 * time.Minute

// isDeaf reports whether an intent of the card was left unclaimed. The lock is held.
func (b *switchBook) isDeaf(card string) bool {
	for _, d := range b.deaf {
		if d.card == card {
			return true
		}
	}
	return false
}
