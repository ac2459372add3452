package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/heteroflow/heteroflow/internal/store/sqlgen"
)

// GangMember is one member of a gang that came to the start: an allocation, by its job.
type GangMember struct {
	Namespace string
	JobID     string
	AllocID   string
	Visit     string // tells one start of its task from the next
	// Attempt is the start that it began with, counted from 1; 0 while it waits, and the same below 0 when it is to begin
	// anew with the others and has not come back yet.
	Attempt int
	Rank    int             // among the members of that start
	Body    json.RawMessage // what it said of itself
	CameAt  time.Time
	SeenAt  time.Time
}

// ArriveGangMember notes that a member is at the start, and returns it as stored. The same visit again is a sign of life;
// another visit of the allocation waits anew.
func (s *Store) ArriveGangMember(ctx context.Context, m GangMember) (GangMember, error) {
	if err := checkNames(m.Namespace, m.JobID, m.AllocID, m.Visit); err != nil {
		return GangMember{}, fmt.Errorf("arrive at the start of a gang: %w", err)
	}
	if !storable(text(m.Body)) || m.AllocID == "" || m.Visit == "" {
		return GangMember{}, fmt.Errorf("a member without allocation and visit, or with broken UTF-8, is %w", ErrInvalid)
	}
	var row sqlgen.GangMember
	err := s.inRelaxedTx(ctx, func(q *sqlgen.Queries) (err error) {
		row, err = q.UpsertGangMember(ctx, sqlgen.UpsertGangMemberParams{
			Namespace: m.Namespace, JobID: m.JobID, AllocID: m.AllocID, Visit: m.Visit, Body: text(m.Body), SeenAt: micros(s.now()),
		})
		return err
	})
	if err != nil {
		return GangMember{}, fmt.Errorf("arrive at the start of gang %s/%s: %w", m.Namespace, m.JobID, err)
	}
	return gangMemberOf(row)
}

// GangMembers lists the members of a job's gang that came to a start, by allocation.
func (s *Store) GangMembers(ctx context.Context, namespace, jobID string) ([]GangMember, error) {
	if !storable(namespace, jobID) {
		return nil, nil
	}
	rows, err := s.reader().ListGangMembers(ctx, sqlgen.ListGangMembersParams{Namespace: namespace, JobID: jobID})
	if err != nil {
		return nil, fmt.Errorf("list members of gang %s/%s: %w", namespace, jobID, err)
	}
	return mapRows(rows, gangMemberOf)
}

// StartedGang names a job of whose gang members have begun.
type StartedGang struct{ Namespace, JobID string }

// StartedGangs lists the gangs of which a member has begun and that were not forgotten since.
func (s *Store) StartedGangs(ctx context.Context) ([]StartedGang, error) {
	rows, err := s.reader().ListStartedGangs(ctx)
	if err != nil {
		return nil, fmt.Errorf("list started gangs: %w", err)
	}
	return mapRows(rows, func(row sqlgen.ListStartedGangsRow) (StartedGang, error) { return StartedGang(row), nil })
}

// StartGang lets members begin, each with its Attempt and Rank: all of them or none. won is false when one of them does not
// wait any more, or waits in another visit.
func (s *Store) StartGang(ctx context.Context, members []GangMember) (won bool, err error) {
	members = slices.Clone(members)
	slices.SortFunc(members, func(a, b GangMember) int { return cmp.Compare(a.AllocID, b.AllocID) }) // the order in which everyone locks
	err = s.inTx(ctx, func(q *sqlgen.Queries) error {
		for _, m := range members {
			n, err := q.StartGangMember(ctx, sqlgen.StartGangMemberParams{
				Namespace: m.Namespace, JobID: m.JobID, AllocID: m.AllocID, Visit: m.Visit, Attempt: int64(m.Attempt), Rank: int64(m.Rank),
			})
			if err != nil {
				return err
			}
			if n == 0 {
				return errNotWaiting
			}
		}
		return nil
	})
	if errors.Is(err, errNotWaiting) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("start a gang of %d: %w", len(members), err)
	}
	return true, nil
}

var errNotWaiting = errors.New("a member does not wait")

// RecallGang has the members that began begin anew: it returns those that it was the first to call back.
func (s *Store) RecallGang(ctx context.Context, namespace, jobID string) ([]GangMember, error) {
	if !storable(namespace, jobID) {
		return nil, nil
	}
	var rows []sqlgen.GangMember
	err := s.inRelaxedTx(ctx, func(q *sqlgen.Queries) (err error) {
		rows, err = q.RecallGangMembers(ctx, sqlgen.RecallGangMembersParams{Namespace: namespace, JobID: jobID})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("call back gang %s/%s: %w", namespace, jobID, err)
	}
	return mapRows(rows, gangMemberOf)
}

// ForgetGang drops what is known of a job's gang, or of the members named only.
func (s *Store) ForgetGang(ctx context.Context, namespace, jobID string, allocIDs ...string) error {
	if !storable(namespace, jobID) {
		return nil
	}
	err := s.inRelaxedTx(ctx, func(q *sqlgen.Queries) error {
		if len(allocIDs) == 0 {
			return q.DeleteGang(ctx, sqlgen.DeleteGangParams{Namespace: namespace, JobID: jobID})
		}
		for _, id := range allocIDs {
			if err := q.DeleteGangMember(ctx, sqlgen.DeleteGangMemberParams{Namespace: namespace, JobID: jobID, AllocID: id}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("forget gang %s/%s: %w", namespace, jobID, err)
	}
	return nil
}

// ForgetGangsBefore drops members that were not seen since the moment, and says how many.
func (s *Store) ForgetGangsBefore(ctx context.Context, before time.Time) (int, error) {
	n, err := s.writer().DeleteOldGangMembers(ctx, micros(before))
	if err != nil {
		return 0, fmt.Errorf("forget old members of gangs: %w", err)
	}
	return int(n), nil
}

func gangMemberOf(row sqlgen.GangMember) (GangMember, error) {
	return GangMember{
		Namespace: row.Namespace, JobID: row.JobID, AllocID: row.AllocID, Visit: row.Visit, Attempt: int(row.Attempt), Rank: int(row.Rank),
		Body: raw(row.Body), CameAt: moment(row.CameAt), SeenAt: moment(row.SeenAt),
	}, nil
}
