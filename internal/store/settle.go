package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/heteroflow/heteroflow/internal/store/sqlgen"
)

// Settle writes Nomad's truth: the job's claims become exactly live, each with its AllocID and also beyond capacity,
// plus at most pending of its claims that no allocation has confirmed yet. A reservation that has not been submitted
// keeps all of its unconfirmed claims whatever pending says, because Nomad cannot know of them. With no claim left
// the reservation is released. A job without a reservation is adopted: it gets one, confirmed, of the tenant that
// the store knows the job by, else of none. Repeating it changes nothing.
func (s *Store) Settle(ctx context.Context, namespace, jobID string, live []Claim, pending int) error {
	live, err := mergeLive(live)
	if err == nil {
		err = checkNames(namespace, jobID)
	}
	if err != nil {
		return fmt.Errorf("settle job %s/%s: %w", namespace, jobID, err)
	}
	done, err := s.settled(ctx, namespace, jobID, live, pending)
	if err == nil && !done {
		err = s.inRelaxedTx(ctx, func(q *sqlgen.Queries) error {
			return settleLocked(ctx, q, s.now(), namespace, jobID, live, pending)
		})
	}
	if err != nil {
		return fmt.Errorf("settle job %s/%s: %w", namespace, jobID, err)
	}
	return nil
}

// settled reports whether the store says what Nomad says already. The watcher repeats itself a lot, and looking
// first keeps it from the writer.
func (s *Store) settled(ctx context.Context, namespace, jobID string, live []Claim, pending int) (bool, error) {
	r, err := s.ReservationOf(ctx, namespace, jobID)
	if errors.Is(err, ErrNotFound) {
		return len(live) == 0, nil
	}
	if err != nil {
		return false, err
	}
	want, state := settlement(r.State, r.Claims, live, pending)
	return state == r.State && sameClaims(want, r.Claims), nil
}

func settleLocked(ctx context.Context, q *sqlgen.Queries, now time.Time, namespace, jobID string, live []Claim, pending int) error {
	row, err := q.LockOpenReservation(ctx, sqlgen.LockOpenReservationParams{Namespace: namespace, JobID: jobID})
	if errors.Is(err, sql.ErrNoRows) {
		if len(live) == 0 {
			return nil
		}
		return adopt(ctx, q, now, namespace, jobID, live)
	}
	if err != nil {
		return fmt.Errorf("lock reservation: %w", err)
	}
	have, err := listClaims(ctx, q, row.ID)
	if err != nil {
		return err
	}
	want, state := settlement(row.State, have, live, pending)
	if err := rewrite(ctx, q, row.ID, row.State, have, want, state); err != nil {
		return err
	}
	return turnSpans(ctx, q, now, row.Tenant, namespace, jobID, live)
}

// adopt makes a reservation for a job that runs without one.
func adopt(ctx context.Context, q *sqlgen.Queries, now time.Time, namespace, jobID string, live []Claim) error {
	tenant, err := q.GetJobTenant(ctx, sqlgen.GetJobTenantParams{Namespace: namespace, ID: jobID})
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("read tenant: %w", err)
	}
	r := Reservation{ID: NewID(), Tenant: tenant, Namespace: namespace, JobID: jobID, CreatedAt: now, ExpiresAt: now}
	if err := insertReservation(ctx, q, r, Confirmed); errors.Is(err, ErrConflict) {
		return errRaced // someone reserved or adopted it since: settle that one
	} else if err != nil {
		return err
	}
	if err := insertClaims(ctx, q, r.ID, live); err != nil {
		return err
	}
	change := deltas{}
	change.add(live, 1)
	if err := change.force(ctx, q); err != nil {
		return err
	}
	return turnSpans(ctx, q, now, tenant, namespace, jobID, live)
}

// rewrite makes the claims and the state of a locked reservation what they are to be.
func rewrite(ctx context.Context, q *sqlgen.Queries, id, stateNow string, have, want []Claim, state string) error {
	if !sameClaims(have, want) {
		if err := q.DeleteClaims(ctx, id); err != nil {
			return fmt.Errorf("delete claims of reservation %s: %w", id, err)
		}
		if err := insertClaims(ctx, q, id, want); err != nil {
			return err
		}
	}
	if stateNow != state {
		if err := setState(ctx, q, id, state); err != nil {
			return err
		}
	}
	change := deltas{}
	change.add(have, -1)
	change.add(want, 1)
	return change.force(ctx, q)
}

// settlement is what an open reservation's claims and state become: live, then the unconfirmed claims that are kept.
func settlement(state string, have, live []Claim, pending int) (want []Claim, next string) {
	if state == Reserved {
		pending = len(have)
	}
	want = append(slices.Clone(live), keep(have, live, max(0, pending))...)
	switch {
	case len(want) == 0:
		next = Released
	case slices.ContainsFunc(want, func(c Claim) bool { return c.AllocID == "" }):
		next = state
	default:
		next = Confirmed
	}
	return want, next
}

// keep picks at most n of the unconfirmed claims. Those that a newly seen allocation took are used up. When
// more are left than n, those go first whose task a newly seen allocation runs elsewhere, then the last ones.
func keep(have, live []Claim, n int) []Claim {
	known := map[Claim]bool{}
	var open []Claim
	for _, c := range have {
		if c.AllocID == "" {
			open = append(open, c)
		} else {
			known[identity(c)] = true
		}
	}
	var elsewhere []Claim
	for _, c := range live {
		if known[identity(c)] {
			continue
		}
		var used bool
		if open, used = use(open, c); !used {
			elsewhere = append(elsewhere, c)
		}
	}
	for _, c := range elsewhere {
		if len(open) <= n {
			break
		}
		i := slices.IndexFunc(open, func(o Claim) bool { return o.TaskGroup == c.TaskGroup && o.Task == c.Task })
		if i >= 0 {
			open = slices.Delete(open, i, i+1)
		}
	}
	return open[:min(n, len(open))]
}

// use takes away the unconfirmed claims that the live one is the fulfilment of: the one that is exactly it, else those
// of the same task on the same pool that it has room for, because live claims of several device blocks come added up.
func use(open []Claim, live Claim) (left []Claim, used bool) {
	if i := slices.IndexFunc(open, func(o Claim) bool { return sameSpot(o, live) && o.Units == live.Units }); i >= 0 {
		return slices.Delete(open, i, i+1), true
	}
	units := live.Units
	left = slices.DeleteFunc(open, func(o Claim) bool {
		fits := sameSpot(o, live) && o.Units <= units
		if fits {
			units -= o.Units
		}
		return fits
	})
	return left, units < live.Units
}

// identity is what makes two live claims the same claim: all but the units and the reservation.
func identity(c Claim) Claim {
	c.ReservationID, c.Units = "", 0
	return c
}

func sameSpot(a, b Claim) bool {
	return a.NodeID == b.NodeID && a.Group == b.Group && a.TaskGroup == b.TaskGroup && a.Task == b.Task
}

// sameClaims compares without order, because the order of allocations says nothing.
func sameClaims(a, b []Claim) bool {
	if len(a) != len(b) {
		return false
	}
	a, b = slices.Clone(a), slices.Clone(b)
	slices.SortFunc(a, compareClaims)
	slices.SortFunc(b, compareClaims)
	return slices.EqualFunc(a, b, func(x, y Claim) bool { return compareClaims(x, y) == 0 })
}

func compareClaims(a, b Claim) int {
	return cmp.Or(
		cmp.Compare(a.AllocID, b.AllocID), cmp.Compare(a.NodeID, b.NodeID), cmp.Compare(a.Group, b.Group),
		cmp.Compare(a.TaskGroup, b.TaskGroup), cmp.Compare(a.Task, b.Task), cmp.Compare(a.Units, b.Units),
	)
}

// mergeLive checks live claims and adds up those of several device blocks of one task on one pool.
func mergeLive(live []Claim) ([]Claim, error) {
	out := make([]Claim, 0, len(live))
	at := map[Claim]int{}
	for _, c := range live {
		if err := checkNames(c.NodeID, c.Group, c.TaskGroup, c.Task, c.AllocID); err != nil {
			return nil, err
		}
		if c.AllocID == "" || c.Units <= 0 || c.NodeID == "" || c.Group == "" {
			return nil, fmt.Errorf("a live claim of %d units of %q on node %q by allocation %q is %w",
				c.Units, c.Group, c.NodeID, c.AllocID, ErrInvalid)
		}
		c.ReservationID = ""
		if i, twice := at[identity(c)]; twice {
			out[i].Units += c.Units
			continue
		}
		at[identity(c)] = len(out)
		out = append(out, c)
	}
	return out, nil
}
