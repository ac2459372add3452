package submit

import (
	"context"
	"errors"
	"fmt"

	"github.com/heteroflow/heteroflow/internal/nomadapi"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

// Stop stops a job, whether Nomad has it, the queue has it, or both, and returns Nomad's evaluation, empty when
// there is none. store.ErrNotFound says that nobody has it. With purge it is forgotten too.
func (s *Submitter) Stop(ctx context.Context, caller Caller, key watch.JobKey, purge bool) (store.Job, string, error) {
	defer s.lock(key)()
	row, err := s.find(ctx, key)
	if err != nil {
		return row, "", err
	}
	if err := owned(caller, row); err != nil {
		return row, "", err
	}
	evalID, err := s.deregister(ctx, key, row, purge)
	atNomad := err == nil
	switch {
	case err == nil:
	case nomadapi.IsNotFound(err):
		if row.Version == 0 {
			return row, "", fmt.Errorf("job %q: %w", key.ID, store.ErrNotFound)
		}
	case nomadapi.IsAnswer(err):
		return row, "", answerOf(err)
	case row.State == store.JobSubmitting:
		row, err = s.stopLater(ctx, row, purge)
		return row, "", err
	case row.State != store.JobWaiting || len(row.Injection) > 0:
		return row, "", answerOf(err) // it may run, and cannot be stopped now
	}
	row, err = s.end(ctx, row, evalID, atNomad, purge)
	s.log.Info("job stopped", "namespace", key.Namespace, "job_id", key.ID, "user", caller.User)
	return row, evalID, err
}

// deregister stops the job in Nomad. Nomad answers the stop of a job that it never had like any other, and its room
// would stay reserved: one that may not have arrived is looked for first.
func (s *Submitter) deregister(ctx context.Context, key watch.JobKey, row store.Job, purge bool) (evalID string, err error) {
	if row.State == store.JobSubmitting {
		if _, err := s.Nomad.Job(ctx, key.Namespace, key.ID); err != nil {
			return "", err
		}
	}
	return s.Nomad.Deregister(ctx, key.Namespace, key.ID, purge)
}

// end notes that a job was stopped. Room that Nomad knows of comes back when its allocations end.
func (s *Submitter) end(ctx context.Context, row store.Job, evalID string, atNomad, purge bool) (store.Job, error) {
	key := watch.JobKey{Namespace: row.Namespace, ID: row.ID}
	row, err := s.stopped(ctx, row, purge)
	if err != nil {
		return row, err
	}
	if !atNomad {
		if err := s.Store.Release(ctx, key.Namespace, key.ID); err != nil {
			return row, databaseError(err)
		}
		s.Ledger.Invalidate()
	}
	if s.Expect != nil {
		s.Expect(key, evalID)
	}
	s.switches.release(key)
	s.heads.drop(key)
	s.wake()
	return row, nil
}

// stopLater keeps the wish to stop a job that may have reached Nomad, which does not answer. It is not sent again.
func (s *Submitter) stopLater(ctx context.Context, row store.Job, purge bool) (store.Job, error) {
	row.ReasonCode = string(codeStopping)
	if purge {
		row.ReasonCode = string(codePurging)
	}
	row.Reason = "the job is stopped: Nomad, which may have it, is told as soon as it answers"
	row, err := s.put(ctx, row)
	if err == nil {
		s.log.Info("job is stopped as soon as nomad answers", "namespace", row.Namespace, "job_id", row.ID)
		s.wake()
	}
	return row, err
}

func isStopping(row store.Job) bool {
	return row.State == store.JobSubmitting && (row.ReasonCode == string(codeStopping) || row.ReasonCode == string(codePurging))
}

// stopNow does what stopLater kept.
func (s *Submitter) stopNow(ctx context.Context, row store.Job) (done bool, err error) {
	purge := row.ReasonCode == string(codePurging)
	evalID, err := s.deregister(ctx, watch.JobKey{Namespace: row.Namespace, ID: row.ID}, row, purge)
	if err != nil && !nomadapi.IsNotFound(err) {
		return false, answerOf(err)
	}
	_, err = s.end(ctx, row, evalID, err == nil, purge)
	return err == nil, err
}

func (s *Submitter) stopped(ctx context.Context, row store.Job, purge bool) (store.Job, error) {
	if row.Version == 0 {
		return row, nil // it went round the service
	}
	if err := s.Store.ForgetGang(ctx, row.Namespace, row.ID); err != nil { // who comes to a start later is of another run
		s.log.Warn("members of a stopped gang not forgotten", "job_id", row.ID, "error", err)
	}
	row.State, row.ReasonCode, row.Reason, row.EvalID, row.Injection = store.JobStopped, "", "", "", nil
	if purge {
		err := s.Store.DeleteJob(ctx, row.Namespace, row.ID)
		if errors.Is(err, store.ErrNotFound) {
			err = nil
		}
		return row, databaseError(err)
	}
	for range registerTries {
		out, err := s.put(ctx, row)
		if !errors.Is(err, store.ErrConflict) {
			return out, err
		}
		now, err := s.find(ctx, watch.JobKey{Namespace: row.Namespace, ID: row.ID})
		if err != nil {
			return row, err
		}
		if now.Version == 0 {
			return row, nil
		}
		row.Version = now.Version
	}
	return row, &Unavailable{Part: "the job", Err: errors.New("others change it at the same time")}
}

// Removed is for the watcher: somebody stopped the job in Nomad.
func (s *Submitter) Removed(ctx context.Context, key watch.JobKey) error {
	defer s.lock(key)()
	row, err := s.find(ctx, key)
	if err != nil || row.Version == 0 || row.State != store.JobSubmitted {
		return err
	}
	stored, err := s.Nomad.Job(ctx, key.Namespace, key.ID)
	switch {
	case nomadapi.IsNotFound(err):
	case err != nil:
		return err
	default:
		if stop, _ := stored["Stop"].(bool); !stop {
			return nil // registered again meanwhile
		}
	}
	_, err = s.stopped(ctx, row, false)
	if s.Expect != nil {
		s.Expect(key, "")
	}
	return err
}
