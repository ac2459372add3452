package submit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/internal/nomadapi"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

// partialPatience is how long Nomad may take for the rest of a gang once it could not place it: what ends gives its cards back
// some seconds later. With the queue's own pauses a part of a gang is held for less than ten seconds.
const partialPatience = 4 * time.Second

// codeGangPartial is the reason of a gang that Nomad could not place as a whole and that gave back what it had.
const codeGangPartial engine.Code = "gang_partial"

// takeBack ends the part of a gang that Nomad placed, since it cannot place the rest: the members would hold their cards and
// wait at the start for those that do not come. The job waits as a whole, at the place it had in the queue. done tells that
// this was done, or that there is nothing to do: a gang that runs and goes on without the members it lost is left alone.
func (s *Submitter) takeBack(ctx context.Context, sub submission, row store.Job, stored Tree, refusal engine.Refusal) (done bool, err error) {
	if sub.reading.Gang == nil {
		return false, nil
	}
	if sub.reading.Gang.OnLost == grant.RestartMember && sub.reading.Gang.Min == 0 { // an elastic one runs with its fewest, or not at all
		members, err := s.Store.GangMembers(ctx, row.Namespace, row.ID)
		if err != nil {
			return false, databaseError(err)
		}
		for _, m := range members {
			if m.Attempt > 0 && s.World.Fate(m.AllocID) == watch.FateRuns {
				return false, nil
			}
		}
	}
	now := s.Clock.Now()
	since, again := s.partial.LoadOrStore(sub.key, now)
	if age := now.Sub(since.(time.Time)); !again || age < partialPatience {
		return false, nil
	}
	s.partial.Delete(sub.key)
	row.State, row.ReasonCode = store.JobWaiting, string(codeGangPartial)
	row.Reason = "Nomad could not place all members of the gang, so that none holds a card: " + refusal.Sentence
	row.Injection, row.EvalID = nil, newEvalID()
	if row, err = s.put(ctx, row); err != nil { // first, so that nobody places it anew meanwhile
		if errors.Is(err, store.ErrConflict) {
			return false, nil
		}
		return false, err
	}
	down, changed := scaledDown(stored)
	if changed {
		if err := s.registerDown(ctx, row, down, stored); err != nil {
			return false, err
		}
	}
	if err := errors.Join(s.Store.Release(ctx, row.Namespace, row.ID), s.Store.ForgetGang(ctx, row.Namespace, row.ID)); err != nil {
		return false, databaseError(err)
	}
	s.Ledger.Invalidate() // what still runs is claimed again by the watcher, until it has ended
	if s.Expect != nil {
		s.Expect(sub.key, "")
	}
	s.log.Info("gang taken back", "namespace", row.Namespace, "job_id", row.ID, "reason", refusal.Code)
	s.wake()
	return true, nil
}

// registerDown has Nomad end all allocations of a job, unless somebody changed it since.
func (s *Submitter) registerDown(ctx context.Context, row store.Job, down, stored Tree) error {
	request, err := json.Marshal(Tree{"Job": down, "EnforceIndex": true, "JobModifyIndex": stored["JobModifyIndex"]})
	if err != nil {
		return fmt.Errorf("encode job %s: %w", row.ID, err)
	}
	if _, err = s.Nomad.Register(ctx, row.Namespace, request); nomadapi.IsAnswer(err) {
		s.log.Warn("gang not ended", "namespace", row.Namespace, "job_id", row.ID, "error", err)
		return nil // another version came in between, which places it anew
	}
	if err != nil {
		return answerOf(err)
	}
	return nil
}
