package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/heteroflow/heteroflow/internal/store/sqlgen"
)

// DecisionsKept is how many decisions of one job are kept, the newest.
const DecisionsKept = 20

// Decision is what the engine once answered for a job, with all it took to answer it again.
type Decision struct {
	ID         string // made by AddDecision when empty
	Namespace  string
	JobID      string
	Outcome    string
	ReasonCode string
	Reason     string
	At         time.Time // now when zero
	Input      json.RawMessage
	Output     json.RawMessage
}

// AddDecision keeps the decision and forgets the job's oldest beyond DecisionsKept. A repeated id changes nothing.
func (s *Store) AddDecision(ctx context.Context, d Decision) error {
	if d.ID == "" {
		d.ID = NewID()
	}
	if err := checkNames(d.ID, d.Namespace, d.JobID); err != nil {
		return fmt.Errorf("add decision: %w", err)
	}
	if d.At.IsZero() {
		d.At = s.now()
	}
	err := s.inRelaxedTx(ctx, func(q *sqlgen.Queries) error {
		_, err := q.InsertDecision(ctx, sqlgen.InsertDecisionParams{
			ID: d.ID, Namespace: d.Namespace, JobID: d.JobID, Outcome: d.Outcome, ReasonCode: d.ReasonCode,
			Reason: clean(d.Reason), DecidedAt: micros(d.At), Input: clean(text(d.Input)), Output: clean(text(d.Output)),
		})
		if err != nil {
			return err
		}
		return q.TrimDecisions(ctx, sqlgen.TrimDecisionsParams{
			Namespace: d.Namespace, JobID: d.JobID, Keep: DecisionsKept,
		})
	})
	if err != nil {
		return fmt.Errorf("add decision of job %s/%s: %w", d.Namespace, d.JobID, err)
	}
	return nil
}

// Decisions lists at most limit decisions of a job, newest first.
func (s *Store) Decisions(ctx context.Context, namespace, jobID string, limit int) ([]Decision, error) {
	if !storable(namespace, jobID) {
		return []Decision{}, nil
	}
	rows, err := s.reader().ListDecisions(ctx, sqlgen.ListDecisionsParams{
		Namespace: namespace, JobID: jobID, MaxRows: Page{Limit: limit}.limit(),
	})
	if err != nil {
		return nil, fmt.Errorf("list decisions of job %s/%s: %w", namespace, jobID, err)
	}
	return mapRows(rows, func(row sqlgen.Decision) (Decision, error) {
		return Decision{
			ID: row.ID, Namespace: row.Namespace, JobID: row.JobID, Outcome: row.Outcome,
			ReasonCode: row.ReasonCode, Reason: row.Reason, At: moment(row.DecidedAt),
			Input: raw(row.Input), Output: raw(row.Output),
		}, nil
	})
}
