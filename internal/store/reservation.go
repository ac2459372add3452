package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/internal/store/sqlgen"
)

// Reserve takes all of the reservation's claims in one transaction, or none: *NoRoomError names the first pool
// without room. ErrConflict when the job has an open reservation already, or one other than Replaces, and when another
// tenant holds something of a pool in Alone. With Replaces
// the old claims are given back in the same transaction, so only what the new one takes beyond them must fit.
// State, CreatedAt when zero, and Version are set by the store.
func (s *Store) Reserve(ctx context.Context, r Reservation) error {
	r, err := s.preparedReservation(r)
	if err == nil {
		err = s.inTx(ctx, func(q *sqlgen.Queries) error { return reserve(ctx, q, r) })
	}
	if err != nil {
		return fmt.Errorf("reserve for job %s/%s: %w", r.Namespace, r.JobID, err)
	}
	return nil
}

// preparedReservation checks a reservation and stamps it.
func (s *Store) preparedReservation(r Reservation) (Reservation, error) {
	if r.CreatedAt.IsZero() {
		r.CreatedAt = s.now()
	}
	return r, r.check()
}

// reserve is Reserve inside a transaction.
func reserve(ctx context.Context, q *sqlgen.Queries, r Reservation) error {
	change := deltas{}
	if err := insertRoom(ctx, q, r, change); err != nil {
		return err
	}
	if err := change.take(ctx, q); err != nil {
		return err
	}
	return alone(ctx, q, r)
}

// insertRoom writes a reservation in the place of the one that it replaces, and notes what that changes of pools.
func insertRoom(ctx context.Context, q *sqlgen.Queries, r Reservation, change deltas) error {
	if r.Replaces != "" {
		old, err := replace(ctx, q, r)
		if err != nil {
			return err
		}
		change.add(old, -1)
	}
	if err := insertReservation(ctx, q, r, Reserved); err != nil {
		return err
	}
	if err := insertClaims(ctx, q, r.ID, r.Claims); err != nil {
		return err
	}
	change.add(r.Claims, 1)
	return nil
}

// alone refuses a reservation that would be beside a stranger. The pools are locked by then: who comes at the same time
// looks after this transaction has ended.
func alone(ctx context.Context, q *sqlgen.Queries, r Reservation) error {
	for _, a := range r.Alone {
		n, err := q.KeepAlone(ctx, sqlgen.KeepAloneParams{
			NodeID: a.NodeID, GroupName: a.Group, Tenant: r.Tenant, Mark: besideMark, Beside: besideText(a.Beside),
		})
		if err != nil {
			return fmt.Errorf("look who holds %s on node %s: %w", a.Group, a.NodeID, err)
		}
		if n == 0 {
			return fmt.Errorf("another tenant holds something of %s on node %s: %w", a.Group, a.NodeID, ErrConflict)
		}
	}
	return nil
}

// besideMark stands before and after each tenant in a text for the query. No tenant has a line break in its name.
const besideMark = "\n"

func besideText(tenants []string) string {
	var text strings.Builder
	for _, t := range tenants {
		text.WriteString(besideMark + t + besideMark)
	}
	return text.String()
}

func (r Reservation) check() error {
	if r.ID == "" || r.JobID == "" || len(r.Claims) == 0 {
		return fmt.Errorf("a reservation without id, job or claims is %w", ErrInvalid)
	}
	if err := checkNames(r.ID, r.Tenant, r.Namespace, r.JobID); err != nil {
		return err
	}
	for _, a := range r.Alone {
		if err := checkNames(append([]string{a.NodeID, a.Group}, a.Beside...)...); err != nil {
			return err
		}
	}
	for _, c := range r.Claims {
		if err := checkNames(c.NodeID, c.Group, c.TaskGroup, c.Task, c.AllocID); err != nil {
			return err
		}
		if c.Units <= 0 || c.NodeID == "" || c.Group == "" {
			return fmt.Errorf("a claim of %d units of %q on node %q is %w", c.Units, c.Group, c.NodeID, ErrInvalid)
		}
	}
	return nil
}

// replace closes the job's open reservation, which must be the one that r replaces, and returns its claims.
func replace(ctx context.Context, q *sqlgen.Queries, r Reservation) ([]Claim, error) {
	row, err := q.LockOpenReservation(ctx, sqlgen.LockOpenReservationParams{Namespace: r.Namespace, JobID: r.JobID})
	if errors.Is(err, sql.ErrNoRows) || (err == nil && row.ID != r.Replaces) {
		return nil, fmt.Errorf("reservation %s is not the open one any more: %w", r.Replaces, ErrConflict)
	}
	if err != nil {
		return nil, fmt.Errorf("lock reservation %s: %w", r.Replaces, err)
	}
	return closeReservation(ctx, q, row.ID, Released)
}

// closeReservation ends a locked reservation and returns the claims it held; what is taken is not changed yet.
func closeReservation(ctx context.Context, q *sqlgen.Queries, id, state string) ([]Claim, error) {
	claims, err := listClaims(ctx, q, id)
	if err != nil {
		return nil, err
	}
	if err := q.DeleteClaims(ctx, id); err != nil {
		return nil, fmt.Errorf("delete claims of reservation %s: %w", id, err)
	}
	if err := setState(ctx, q, id, state); err != nil {
		return nil, err
	}
	return claims, nil
}

func setState(ctx context.Context, q *sqlgen.Queries, id, state string) error {
	if err := q.SetReservationState(ctx, sqlgen.SetReservationStateParams{ID: id, State: state}); err != nil {
		return fmt.Errorf("set reservation %s to %s: %w", id, state, err)
	}
	return nil
}

func insertReservation(ctx context.Context, q *sqlgen.Queries, r Reservation, state string) error {
	n, err := q.InsertReservation(ctx, sqlgen.InsertReservationParams{
		ID: r.ID, Tenant: r.Tenant, Namespace: r.Namespace, JobID: r.JobID, State: state,
		CreatedAt: micros(r.CreatedAt), ExpiresAt: micros(r.ExpiresAt),
	})
	if err != nil {
		return fmt.Errorf("insert reservation %s: %w", r.ID, err)
	}
	if n == 0 {
		return fmt.Errorf("the job has an open reservation, or the id is taken: %w", ErrConflict)
	}
	return nil
}

func insertClaims(ctx context.Context, q *sqlgen.Queries, id string, claims []Claim) error {
	for i, c := range claims {
		err := q.InsertClaim(ctx, sqlgen.InsertClaimParams{
			ReservationID: id, Seq: int64(i), NodeID: c.NodeID, GroupName: c.Group, Units: int64(c.Units),
			TaskGroup: c.TaskGroup, Task: c.Task, AllocID: c.AllocID,
		})
		if err != nil {
			return fmt.Errorf("insert claim %d of reservation %s: %w", i, id, err)
		}
	}
	return nil
}

func listClaims(ctx context.Context, q *sqlgen.Queries, id string) ([]Claim, error) {
	rows, err := q.ListClaims(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("list claims of reservation %s: %w", id, err)
	}
	return mapRows(rows, claimOf)
}

// MarkSubmitted notes that Nomad is being given the job. won is false when the reservation is not in state reserved.
func (s *Store) MarkSubmitted(ctx context.Context, id string) (won bool, err error) {
	n, err := s.writer().SubmitReservation(ctx, id)
	if err != nil {
		return false, fmt.Errorf("mark reservation %s submitted: %w", id, err)
	}
	return n == 1, nil
}

// Extend moves the moment at which the reservation's unconfirmed claims lapse. won is false when it has none open.
func (s *Store) Extend(ctx context.Context, id string, until time.Time) (won bool, err error) {
	n, err := s.writer().ExtendReservation(ctx, sqlgen.ExtendReservationParams{ID: id, ExpiresAt: micros(until)})
	if err != nil {
		return false, fmt.Errorf("extend reservation %s: %w", id, err)
	}
	return n == 1, nil
}

// Release gives back all that the job holds. A job that holds nothing is no error.
func (s *Store) Release(ctx context.Context, namespace, jobID string) error {
	if !storable(namespace, jobID) {
		return nil
	}
	err := s.inRelaxedTx(ctx, func(q *sqlgen.Queries) error {
		row, err := q.LockOpenReservation(ctx, sqlgen.LockOpenReservationParams{Namespace: namespace, JobID: jobID})
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("lock reservation: %w", err)
		}
		claims, err := closeReservation(ctx, q, row.ID, Released)
		if err != nil {
			return err
		}
		change := deltas{}
		change.add(claims, -1)
		if err := change.force(ctx, q); err != nil {
			return err
		}
		return turnSpans(ctx, q, s.now(), row.Tenant, namespace, jobID, nil)
	})
	if err != nil {
		return fmt.Errorf("release job %s/%s: %w", namespace, jobID, err)
	}
	return nil
}

// ReservationOf finds the job's open reservation, or ErrNotFound.
func (s *Store) ReservationOf(ctx context.Context, namespace, jobID string) (Reservation, error) {
	if !storable(namespace, jobID) {
		return Reservation{}, fmt.Errorf("reservation: %w", ErrNotFound)
	}
	row, err := s.reader().GetOpenReservation(ctx, sqlgen.GetOpenReservationParams{Namespace: namespace, JobID: jobID})
	if errors.Is(err, sql.ErrNoRows) {
		return Reservation{}, fmt.Errorf("reservation of job %s/%s: %w", namespace, jobID, ErrNotFound)
	}
	if err != nil {
		return Reservation{}, fmt.Errorf("read reservation of job %s/%s: %w", namespace, jobID, err)
	}
	r := reservationOf(row)
	r.Claims, err = listClaims(ctx, s.reader(), r.ID)
	return r, err
}

func reservationOf(row sqlgen.Reservation) Reservation {
	return Reservation{
		ID: row.ID, Tenant: row.Tenant, Namespace: row.Namespace, JobID: row.JobID, State: row.State,
		CreatedAt: moment(row.CreatedAt), ExpiresAt: moment(row.ExpiresAt), Version: row.Version,
	}
}

func claimOf(row sqlgen.Claim) (Claim, error) {
	return Claim{
		ReservationID: row.ReservationID, NodeID: row.NodeID, Group: row.GroupName, Units: int(row.Units),
		TaskGroup: row.TaskGroup, Task: row.Task, AllocID: row.AllocID,
	}, nil
}
