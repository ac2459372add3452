package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/internal/store/sqlgen"
)

// Reservations lists a tenant's reservations, or everyone's when tenant is empty, open and closed, oldest first.
func (s *Store) Reservations(ctx context.Context, tenant string, page Page) (out []Reservation, next string, err error) {
	at, id, limit, err := page.after()
	if err != nil {
		return nil, "", fmt.Errorf("list reservations: %w", err)
	}
	var rows []sqlgen.Reservation
	if tenant == "" {
		rows, err = s.reader().ListReservations(ctx, sqlgen.ListReservationsParams{
			AfterCreated: at, AfterID: id, MaxRows: limit + 1,
		})
	} else {
		rows, err = s.reader().ListReservationsOfTenant(ctx, sqlgen.ListReservationsOfTenantParams{
			Tenant: tenant, AfterCreated: at, AfterID: id, MaxRows: limit + 1,
		})
	}
	if err != nil {
		return nil, "", fmt.Errorf("list reservations: %w", err)
	}
	rows, next = cut(rows, limit, reservationCursor)
	out, err = s.withClaims(ctx, rows)
	return out, next, err
}

// OpenReservations lists everyone's reservations whose claims count, oldest first.
func (s *Store) OpenReservations(ctx context.Context, page Page) (out []Reservation, next string, err error) {
	at, id, limit, err := page.after()
	if err != nil {
		return nil, "", fmt.Errorf("list open reservations: %w", err)
	}
	rows, err := s.reader().ListOpenReservations(ctx, sqlgen.ListOpenReservationsParams{
		AfterCreated: at, AfterID: id, MaxRows: limit + 1,
	})
	if err != nil {
		return nil, "", fmt.Errorf("list open reservations: %w", err)
	}
	rows, next = cut(rows, limit, reservationCursor)
	out, err = s.withClaims(ctx, rows)
	return out, next, err
}

func reservationCursor(r sqlgen.Reservation) string { return cursor(r.CreatedAt, r.ID) }

// withClaims reads the claims of many reservations in one statement, which is written by hand because sqlc has no
// list parameter that both engines take.
func (s *Store) withClaims(ctx context.Context, rows []sqlgen.Reservation) ([]Reservation, error) {
	out := make([]Reservation, 0, len(rows))
	if len(rows) == 0 {
		return out, nil
	}
	at := make(map[string]int, len(rows))
	marks, args := make([]string, 0, len(rows)), make([]any, 0, len(rows))
	for i, row := range rows {
		out = append(out, reservationOf(row))
		at[row.ID] = i
		args = append(args, row.ID)
		marks = append(marks, fmt.Sprintf("$%d", i+1))
	}
	found, err := s.read.QueryContext(ctx,
		"SELECT reservation_id, node_id, group_name, units, task_group, task, alloc_id FROM claims "+
			"WHERE reservation_id IN ("+strings.Join(marks, ",")+") ORDER BY reservation_id, seq", args...)
	if err != nil {
		return nil, fmt.Errorf("list claims: %w", err)
	}
	for found.Next() {
		var c Claim
		err := found.Scan(&c.ReservationID, &c.NodeID, &c.Group, &c.Units, &c.TaskGroup, &c.Task, &c.AllocID)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("read claim: %w", err), found.Close())
		}
		r := &out[at[c.ReservationID]]
		r.Claims = append(r.Claims, c)
	}
	if err := found.Err(); err != nil {
		return nil, fmt.Errorf("list claims: %w", err)
	}
	return out, nil
}

// ForgetClosed deletes the released and expired reservations that were made before the moment, and says how many.
func (s *Store) ForgetClosed(ctx context.Context, before time.Time) (int, error) {
	n, err := s.writer().DeleteClosedReservations(ctx, micros(before))
	if err != nil {
		return 0, fmt.Errorf("forget closed reservations: %w", err)
	}
	return int(n), nil
}
