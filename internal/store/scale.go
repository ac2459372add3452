package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/heteroflow/heteroflow/internal/store/sqlgen"
)

// ScaleState is what is remembered of a group that is scaled.
type ScaleState struct {
	Namespace, JobID, Group string
	State                   json.RawMessage // the scaler's own; nil when nothing is remembered
	Version                 int64           // 0 when nothing is remembered
}

// scaleStateTime is how long the state of a group is kept that nobody decides on any more.
const scaleStateTime = 7 * 24 * time.Hour

// ScaleState finds what is remembered of a group.
func (s *Store) ScaleState(ctx context.Context, namespace, jobID, group string) (ScaleState, error) {
	out := ScaleState{Namespace: namespace, JobID: jobID, Group: group}
	row, err := s.reader().GetScaleState(ctx, sqlgen.GetScaleStateParams{Namespace: namespace, JobID: jobID, TaskGroup: group})
	if errors.Is(err, sql.ErrNoRows) {
		return out, nil
	}
	if err != nil {
		return out, fmt.Errorf("read the scaling of group %s of job %s/%s: %w", group, namespace, jobID, err)
	}
	out.State, out.Version = raw(row.State), row.Version
	return out, nil
}

// PutScaleState remembers a group's state if its version is still the stored one. won is false when another has put one
// since: whoever loses does nothing. States of groups that are gone are dropped after a week.
func (s *Store) PutScaleState(ctx context.Context, state ScaleState) (won bool, err error) {
	if err := checkNames(state.Namespace, state.JobID, state.Group); err != nil {
		return false, fmt.Errorf("remember scaling: %w", err)
	}
	now := s.now()
	err = s.inTx(ctx, func(q *sqlgen.Queries) error {
		var n int64
		var err error
		if state.Version == 0 {
			n, err = q.InsertScaleState(ctx, sqlgen.InsertScaleStateParams{
				Namespace: state.Namespace, JobID: state.JobID, TaskGroup: state.Group, State: text(state.State), UpdatedAt: micros(now),
			})
		} else {
			n, err = q.UpdateScaleState(ctx, sqlgen.UpdateScaleStateParams{
				Namespace: state.Namespace, JobID: state.JobID, TaskGroup: state.Group, State: text(state.State), UpdatedAt: micros(now), Version: state.Version,
			})
		}
		if won = err == nil && n == 1; !won {
			return err
		}
		return q.DeleteOldScaleStates(ctx, micros(now.Add(-scaleStateTime)))
	})
	if err != nil {
		return false, fmt.Errorf("remember the scaling of group %s of job %s/%s: %w", state.Group, state.Namespace, state.JobID, err)
	}
	return won, nil
}
