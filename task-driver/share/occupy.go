package share

import (
	"context"
	"errors"
	"fmt"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// ledgerLock is held while it is checked that a card has room and the share is issued.
const ledgerLock = "ledger"

// OccupiedError says that a card's memory is held by somebody else still. It passes when that is given back.
type OccupiedError struct {
	Card   string
	TaskID string // one of those who hold it
	State  State
	What   string
	// By and Other are set when the card has room, but is divided by one backend and the share would be made by another.
	By, Other string
}

func (e *OccupiedError) Error() string {
	if e.By != "" {
		return fmt.Sprintf("card %s: %s divides it for task %s, and %s cannot at the same time: it is tried again when that has ended", e.Card, e.By, e.TaskID, e.Other)
	}
	if e.State.leaving() {
		return fmt.Sprintf("card %s: %s of task %s is being given back still (%s): it is tried again", e.Card, e.What, e.TaskID, e.State)
	}
	return fmt.Sprintf("card %s: %s is held by task %s, which runs still: it is tried again when that has ended", e.Card, e.What, e.TaskID)
}

// Temporary tells callers that the same call may succeed later.
func (e *OccupiedError) Temporary() bool { return true }

// issue writes a share into the ledger when its card has room. Holders whose task has ended are put off first, since Nomad
// gives a card anew before it has cleared up what was there.
func (m *Manager) issue(ctx context.Context, h Held, event func(string)) error {
	for {
		dead, err := m.tryIssue(ctx, h)
		if err != nil || len(dead) == 0 {
			return err
		}
		for _, e := range dead {
			event(fmt.Sprintf("clearing card %s of what task %s left on it", e.Ask.Card.UUID, e.Ask.TaskID))
			if err := m.release(ctx, e.Ask.ID); err != nil {
				return errors.Join(&OccupiedError{Card: h.Ask.Card.UUID, TaskID: e.Ask.TaskID, State: Releasing, What: describe(e)}, err)
			}
		}
	}
}

// tryIssue issues the share, or tells who must be put off first.
func (m *Manager) tryIssue(ctx context.Context, h Held) ([]Entry, error) {
	unlock, err := m.locks.lock(ctx, ledgerLock)
	if err != nil {
		return nil, err
	}
	defer unlock()
	entries, err := m.ledger.all()
	if err != nil {
		return nil, temporary{fmt.Errorf("cards may be held that the ledger does not tell of: %w", err)}
	}
	if old, again := entries[h.Ask.ID]; again && (old.Backend != h.Backend || old.State.leaving()) {
		return []Entry{old}, nil // made by another backend, or half given back: it is made anew
	}
	if dead, err := m.inTheWay(entries, h); err != nil || len(dead) > 0 {
		return dead, err
	}
	state := Issued
	if h.Backend == "" {
		state = Confirmed // there is nothing to make
	}
	return nil, m.ledger.put(m.newEntry(h, state))
}

// inTheWay finds what leaves no room for the ask on its card: the dead who may be put off, or an error when one lives.
func (m *Manager) inTheWay(entries map[ID]Entry, h Held) ([]Entry, error) {
	a := h.Ask
	var others, mixed []Entry
	held, exclusive := a.MemoryMiB, a.exclusive()
	for _, e := range sorted(entries) {
		if e.Ask.ID == a.ID || !e.sameCard(a) {
			continue
		}
		others = append(others, e)
		if e.Backend != "" && e.Backend != h.Backend && m.divides(e) && m.divides(Entry{Ask: a, Backend: h.Backend}) {
			mixed = append(mixed, e)
		}
		held += e.Ask.MemoryMiB
		exclusive = exclusive || e.Ask.exclusive()
	}
	full := exclusive || a.Card.MemoryMiB > 0 && held > a.Card.MemoryMiB
	if len(others) == 0 || !full && len(mixed) == 0 {
		return nil, nil
	}
	if !full {
		others = mixed
	}
	var dead []Entry
	var living *Entry
	for _, e := range others {
		if m.lives(e, m.alive) {
			living = &e
			continue
		}
		dead = append(dead, e)
	}
	if len(dead) == 0 {
		occupied := &OccupiedError{Card: a.Card.UUID, TaskID: living.Ask.TaskID, State: living.State, What: describe(*living)}
		if !full {
			occupied.By, occupied.Other = living.Backend, h.Backend
		}
		return nil, occupied
	}
	return dead, nil
}

// describe is what an entry holds, for a sentence.
func describe(e Entry) string {
	if e.Ask.exclusive() {
		return "the whole card"
	}
	return accel.FormatMiB(e.Ask.MemoryMiB)
}

// temporary marks an error that may pass by itself.
type temporary struct{ error }

func (t temporary) Temporary() bool { return true }
func (t temporary) Unwrap() error   { return t.error }
