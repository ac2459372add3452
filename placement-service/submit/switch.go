package submit

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

// switchBook remembers which cards are being switched, and for which job, so that no other job is put on a card
// before its form has changed. From then on the card belongs to whoever is first in the queue. The book is of this
// process only: a service that was restarted, or another instance, at worst places a job that makes the card not
// empty, and the switch is asked for again later.
type switchBook struct {
	mu      sync.Mutex
	changed chan struct{}        // closed when an intent was stated
	held    map[string]hold      // card UUID
	wanted  map[string]wanted    // by card UUID, the intents that wait to be claimed
	fetched map[string]time.Time // by card UUID, when a device plugin last asked for its intents
	refused map[string]refusal   // by card UUID, since somebody last asked who may
	deaf    map[string]deafNode  // by node id
	began   time.Time
	look    time.Time // when a refusal is looked into next at the earliest
}

type hold struct {
	job   watch.JobKey
	to    accel.Form
	until time.Time
}

func newSwitchBook(now time.Time) *switchBook {
	return &switchBook{
		began: now, refused: map[string]refusal{}, changed: make(chan struct{}), held: map[string]hold{}, wanted: map[string]wanted{}, fetched: map[string]time.Time{}, deaf: map[string]deafNode{},
	}
}

// holds reports whether any card is being switched.
func (b *switchBook) holds() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.held) > 0
}

// hold makes cards that are being switched for other jobs look taken, and forgets those that have their new form.
func (b *switchBook) hold(s *engine.Snapshot, key watch.JobKey) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.held) == 0 {
		return
	}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		for j := range n.Pools {
			for _, c := range n.Pools[j].Cards {
				h, ok := b.held[c.UUID]
				switch {
				case !ok:
				case n.Pools[j].Form == h.to:
					delete(b.held, c.UUID)
				case h.job != key:
					n.Pools = slices.Clone(n.Pools) // snapshots share what nobody uses
					n.Pools[j].Used += c.Units - c.UsedUnits
				}
			}
		}
	}
}

// take notes that the card is wanted for the job and reports whether an intent is due: not again within the pause
// after the last one, so that a node that cannot switch is not asked in a spin.
func (b *switchBook) take(card string, to accel.Form, key watch.JobKey, now time.Time, pause time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c, h := range b.held {
		if now.After(h.until) {
			delete(b.held, c)
		}
	}
	if _, ok := b.held[card]; ok {
		return false
	}
	b.held[card] = hold{job: key, to: to, until: now.Add(pause)}
	return true
}

// forget lets go of a card whose form was not switched.
func (b *switchBook) forget(card string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.held, card)
}

// release forgets the cards of a job that found room.
func (b *switchBook) release(key watch.JobKey) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c, h := range b.held {
		if h.job == key {
			delete(b.held, c)
		}
	}
}

// switchPause is how long a card stays held for a switch that does not come.
const switchPause = 30 * time.Second

// want states the intents that a decision needs.
func (s *Submitter) want(ctx context.Context, key watch.JobKey, switches []engine.Switch) error {
	if len(switches) == 0 {
		return nil
	}
	pausing, err := s.pausing(ctx)
	if err != nil {
		return err
	}
	for _, sw := range switches {
		if len(among(pausing, []engine.Switch{sw})) > 0 {
			continue
		}
		if !s.switches.take(sw.CardUUID, sw.To, key, s.Clock.Now(), switchPause) {
			continue
		}
		stated, err := s.Store.PutIntent(ctx, store.Intent{NodeID: sw.NodeID, CardUUID: sw.CardUUID, Form: string(sw.To)})
		if errors.Is(err, store.ErrConflict) {
			continue // wanted in another form by another job; that one goes first
		}
		if err != nil {
			return databaseError(err)
		}
		s.switches.notify()
		if s.WakeAt != nil {
			s.WakeAt(s.switches.seen(stated, s.Clock.Now()).Add(deafAfter))
		}
		s.log.Info("form switch wanted", "node_id", sw.NodeID, "card", sw.CardUUID, "form", sw.To, "job_id", key.ID)
	}
	return nil
}

func (b *switchBook) notify() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.changed)
	b.changed = make(chan struct{})
}

// IntentStated is closed when this instance states the next intent.
func (s *Submitter) IntentStated() <-chan struct{} {
	s.switches.mu.Lock()
	defer s.switches.mu.Unlock()
	return s.switches.changed
}
