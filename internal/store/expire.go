package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/heteroflow/heteroflow/internal/store/sqlgen"
)

// expireBatch is how many reservations one Expire ends; the rest waits for the next.
const expireBatch = 1000

// Expire gives back the unconfirmed claims of every reservation whose time is up, and returns those reservations:
// Claims are the ones given back, State is what it became, expired, or confirmed when allocations hold the rest.
func (s *Store) Expire(ctx context.Context, now time.Time) ([]Reservation, error) {
	ids, err := s.reader().ListExpiredReservations(ctx, sqlgen.ListExpiredReservationsParams{
		Moment: micros(now), MaxRows: expireBatch,
	})
	if err != nil {
		return nil, fmt.Errorf("list expired reservations: %w", err)
	}
	out := []Reservation{}
	for _, id := range ids {
		var r *Reservation
		err := s.inRelaxedTx(ctx, func(q *sqlgen.Queries) error {
			var err error
			r, err = expireOne(ctx, q, id, now)
			return err
		})
		if err != nil {
			return out, fmt.Errorf("expire reservation %s: %w", id, err)
		}
		if r != nil {
			out = append(out, *r)
		}
	}
	return out, nil
}

// expireOne returns nil when the reservation was confirmed, closed or extended since it was listed.
func expireOne(ctx context.Context, q *sqlgen.Queries, id string, now time.Time) (*Reservation, error) {
	row, err := q.LockReservation(ctx, id)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if (row.State != Reserved && row.State != Submitted) || row.ExpiresAt > micros(now) {
		return nil, nil
	}
	have, err := listClaims(ctx, q, id)
	if err != nil {
		return nil, err
	}
	r := reservationOf(row)
	r.State = Expired
	var kept []Claim
	for _, c := range have {
		if c.AllocID == "" {
			r.Claims = append(r.Claims, c)
		} else {
			kept = append(kept, c)
			r.State = Confirmed
		}
	}
	r.Version++
	return &r, rewrite(ctx, q, id, row.State, have, kept, r.State)
}
