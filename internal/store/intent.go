package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/heteroflow/heteroflow/internal/store/sqlgen"
)

// States of an intent. The first two are open.
const (
	IntentWanted  = "wanted"
	IntentClaimed = "claimed"
	IntentDone    = "done"
	IntentFailed  = "failed"
	IntentExpired = "expired"
)

// Intent is a form that a card is wanted in. A card has at most one open intent.
type Intent struct {
	ID        string // made by PutIntent when empty
	NodeID    string
	CardUUID  string
	Form      string
	State     string
	Reason    string
	ClaimedBy string
	Version   int64
	CreatedAt time.Time
	UpdatedAt time.Time
}

// PutIntent states an intent and returns it as stored. When the card has an open intent for the same form, that one
// is returned; for another form, it is returned together with ErrConflict.
func (s *Store) PutIntent(ctx context.Context, in Intent) (Intent, error) {
	if in.ID == "" {
		in.ID = NewID()
	}
	if err := checkNames(in.ID, in.NodeID, in.CardUUID, in.Form); err != nil {
		return Intent{}, fmt.Errorf("put intent: %w", err)
	}
	in.Reason = clean(in.Reason)
	// The open intent that stands in the way may be closed before it is read: then there is room for ours.
	for range txTries {
		now := s.now()
		n, err := s.writer().InsertIntent(ctx, sqlgen.InsertIntentParams{
			ID: in.ID, NodeID: in.NodeID, CardUuid: in.CardUUID, Form: in.Form, Reason: in.Reason,
			CreatedAt: micros(now), UpdatedAt: micros(now),
		})
		if err != nil {
			return Intent{}, fmt.Errorf("put intent for card %s: %w", in.CardUUID, err)
		}
		if n == 1 {
			in.State, in.ClaimedBy, in.Version, in.CreatedAt, in.UpdatedAt = IntentWanted, "", 1, now, now
			return in, nil
		}
		row, err := s.writer().GetOpenIntent(ctx, in.CardUUID)
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if err != nil {
			return Intent{}, fmt.Errorf("read open intent of card %s: %w", in.CardUUID, err)
		}
		have := intentOf(row)
		if have.Form != in.Form {
			return have, fmt.Errorf("card %s is being switched to %s: %w", in.CardUUID, have.Form, ErrConflict)
		}
		return have, nil
	}
	return Intent{}, fmt.Errorf("put intent for card %s: %w", in.CardUUID, ErrConflict)
}

// Intent finds one intent, or ErrNotFound.
func (s *Store) Intent(ctx context.Context, id string) (Intent, error) {
	if !storable(id) {
		return Intent{}, fmt.Errorf("intent: %w", ErrNotFound)
	}
	row, err := s.reader().GetIntent(ctx, id)
	if errors.Is(err, sql.ErrNoRows) {
		return Intent{}, fmt.Errorf("intent %s: %w", id, ErrNotFound)
	}
	if err != nil {
		return Intent{}, fmt.Errorf("read intent %s: %w", id, err)
	}
	return intentOf(row), nil
}

// OpenIntents lists the open intents of the cards, or of all cards when none is named, oldest first.
func (s *Store) OpenIntents(ctx context.Context, cards []string) ([]Intent, error) {
	// The open intents of a whole cluster are few; a list of cards in SQL is what the engines say differently.
	rows, err := s.reader().ListOpenIntents(ctx)
	if err != nil {
		return nil, fmt.Errorf("list open intents: %w", err)
	}
	wanted := make(map[string]bool, len(cards))
	for _, c := range cards {
		wanted[c] = true
	}
	out := []Intent{}
	for _, row := range rows {
		if len(cards) == 0 || wanted[row.CardUuid] {
			out = append(out, intentOf(row))
		}
	}
	return out, nil
}

// reportedLimit bounds the list of intents that were reported: of more only the latest are told.
const reportedLimit = 10000

// ReportedIntents lists the intents that were reported since the moment, as done or as failed, the latest first.
func (s *Store) ReportedIntents(ctx context.Context, since time.Time) ([]Intent, error) {
	rows, err := s.reader().ListReportedIntents(ctx, sqlgen.ListReportedIntentsParams{Since: micros(since), MaxRows: reportedLimit})
	if err != nil {
		return nil, fmt.Errorf("list reported intents: %w", err)
	}
	out := make([]Intent, 0, len(rows))
	for _, row := range rows {
		out = append(out, intentOf(row))
	}
	return out, nil
}

// ClaimIntent takes a wanted intent for the one who will carry it out. won is false when it is not wanted any more
// or has another version.
func (s *Store) ClaimIntent(ctx context.Context, id string, version int64, by string) (won bool, err error) {
	if !storable(id, by) {
		return false, nil
	}
	n, err := s.writer().ClaimIntent(ctx, sqlgen.ClaimIntentParams{
		ID: id, Version: version, ClaimedBy: by, UpdatedAt: micros(s.now()),
	})
	if err != nil {
		return false, fmt.Errorf("claim intent %s: %w", id, err)
	}
	return n == 1, nil
}

// ReportIntent ends a claimed intent as done or failed. won is false when it is not claimed any more.
func (s *Store) ReportIntent(ctx context.Context, id, state, reason string) (won bool, err error) {
	if state != IntentDone && state != IntentFailed {
		return false, fmt.Errorf("report intent %s as %q: %w: write %q or %q", id, state, ErrInvalid, IntentDone, IntentFailed)
	}
	if !storable(id) {
		return false, nil
	}
	n, err := s.writer().ReportIntent(ctx, sqlgen.ReportIntentParams{
		ID: id, State: state, Reason: clean(reason), UpdatedAt: micros(s.now()),
	})
	if err != nil {
		return false, fmt.Errorf("report intent %s: %w", id, err)
	}
	return n == 1, nil
}

// ExpireIntents ends the open intents that nothing has happened to since the moment, and says how many.
func (s *Store) ExpireIntents(ctx context.Context, before time.Time) (int, error) {
	n, err := s.writer().ExpireIntents(ctx, sqlgen.ExpireIntentsParams{
		UpdatedAt: micros(s.now()), Before: micros(before),
	})
	if err != nil {
		return 0, fmt.Errorf("expire intents: %w", err)
	}
	return int(n), nil
}

func intentOf(row sqlgen.Intent) Intent {
	return Intent{
		ID: row.ID, NodeID: row.NodeID, CardUUID: row.CardUuid, Form: row.Form, State: row.State,
		Reason: row.Reason, ClaimedBy: row.ClaimedBy, Version: row.Version,
		CreatedAt: moment(row.CreatedAt), UpdatedAt: moment(row.UpdatedAt),
	}
}
