package submit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/google/uuid"

	"github.com/heteroflow/heteroflow/internal/nomadapi"
	"github.com/heteroflow/heteroflow/internal/store"
)

// registerTimeout is how long Nomad may take for one registration before it counts as away.
const registerTimeout = 15 * time.Second

// send registers a job whose room is reserved. The row is taken already when something was decided.
func (s *Submitter) send(ctx context.Context, sub submission, row store.Job, found placed) (Result, error) {
	if found.decision == nil {
		var err error
		if row, err = onItsWay(row, found); err == nil {
			row, err = s.put(ctx, row)
		}
		if err != nil {
			return Result{}, err
		}
	}
	kept := make(chan error, 1)
	if found.decision == nil {
		kept <- nil
	} else {
		go func() { kept <- s.Store.Flush(ctx) }() // while Nomad works; nobody is answered before both are done
	}
	answer, err := s.nomadRegister(ctx, sub, found)
	lost := <-kept
	switch {
	case err == nil && lost != nil:
		s.sent(ctx, sub, row, found, answer).finish()
		return Result{}, errors.Join(err, &Unavailable{Part: "the database's disk", Err: lost, Changed: "Nomad has the job already"})
	case err == nil:
		return s.sent(ctx, sub, row, found, answer), nil
	case nomadapi.IsAnswer(err), isEnforced(sub.env):
		return Result{}, errors.Join(answerOf(err), s.giveBack(ctx, sub, found), s.restore(ctx, sub.prev, row))
	}
	return s.later(ctx, row, err)
}

func (s *Submitter) nomadRegister(ctx context.Context, sub submission, found placed) (Tree, error) {
	env := maps.Clone(sub.env)
	env["Job"] = found.job
	delete(env, "SecretID")
	body, err := json.Marshal(env)
	if err != nil {
		return nil, fmt.Errorf("encode job %s: %w", sub.key.ID, err)
	}
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	return s.Nomad.Register(ctx, sub.key.Namespace, body)
}

// sent is the answer for a job that Nomad has. That it has it is noted afterwards, so that nobody waits for it, under the job's
// lock. What fails there is only logged: the job runs, the watcher sees it, and it is found again by its spec.
func (s *Submitter) sent(ctx context.Context, sub submission, row store.Job, found placed, answer Tree) Result {
	row.State = store.JobSubmitted
	row.EvalID, _ = answer["EvalID"].(string)
	s.switches.release(sub.key)
	s.elastic.note(sub)
	if s.Expect != nil && sub.reading.Asks() {
		s.Expect(sub.key, row.EvalID)
	}
	s.log.Info("job submitted", "namespace", row.Namespace, "job_id", row.ID, "tenant", row.Tenant, "eval_id", row.EvalID, "repeated", found.repeated())
	return Result{Answer: answer, Job: row, rest: func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if _, err := s.Store.PutJobSubmitted(ctx, row, found.reservation); err != nil {
			s.log.Warn("submitted job not noted, it is found again by its spec", "job_id", row.ID, "error", err)
		}
		if found.decision != nil {
			s.note(ctx, sub.key, "placed", found)
		}
	}}
}

// later keeps a job that Nomad could not be given now. Its room stays reserved for a while.
func (s *Submitter) later(ctx context.Context, row store.Job, cause error) (Result, error) {
	s.log.Warn("nomad cannot be reached, the job is kept", "job_id", row.ID, "error", cause)
	row.ReasonCode, row.Reason = string(codeUnreachable), "Nomad cannot be reached: the job is kept and will be submitted as soon as it answers"
	if row.EvalID == "" {
		row.EvalID = newEvalID()
	}
	row, err := s.put(ctx, row)
	if err != nil {
		return Result{}, err
	}
	s.wake()
	return Result{Job: row, Waiting: true, Answer: waitingAnswer(row, row.Reason)}, nil
}

func setInjection(row *store.Job, found placed) error {
	if len(found.injection.Groups) == 0 {
		row.Injection = nil
		return nil
	}
	body, err := json.Marshal(found.injection)
	if err != nil {
		return fmt.Errorf("encode injection of job %s: %w", row.ID, err)
	}
	row.Injection = body
	return nil
}

// giveBack undoes the reservation of a job that was not registered. What runs of it is claimed again by the
// watcher, which is told to look.
func (s *Submitter) giveBack(ctx context.Context, sub submission, found placed) error {
	if found.reservation == "" {
		return nil
	}
	open, err := s.Store.ReservationOf(ctx, sub.key.Namespace, sub.key.ID)
	if errors.Is(err, store.ErrNotFound) || err == nil && open.ID != found.reservation {
		return nil
	}
	if err != nil {
		return databaseError(err)
	}
	if err := s.Store.Release(ctx, sub.key.Namespace, sub.key.ID); err != nil {
		return databaseError(err)
	}
	s.Ledger.Invalidate()
	if s.Expect != nil {
		s.Expect(sub.key, "")
	}
	s.wake()
	return nil
}

// restore puts back the row as it was before.
func (s *Submitter) restore(ctx context.Context, prev, row store.Job) error {
	if prev.Version == 0 {
		err := s.Store.DeleteJob(ctx, row.Namespace, row.ID)
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		return databaseError(err)
	}
	prev.Version = row.Version
	_, err := s.Store.PutJob(ctx, prev)
	return databaseError(err)
}

// newEvalID makes the id of an evaluation that stands for a waiting job.
func newEvalID() string {
	id := uuid.New()
	id[15] &^= 1 // BlockedEvalID sets the last bit
	return id.String()
}

// BlockedEvalID is the id of the blocked evaluation that goes with the one of a waiting job.
func BlockedEvalID(evalID string) string { return setLastBit(evalID, 1) }

// EvalIDOf is the id under which the job is stored, for either of its two evaluations.
func EvalIDOf(id string) string { return setLastBit(id, 0) }

func setLastBit(text string, bit byte) string {
	id, err := uuid.Parse(text)
	if err != nil {
		return text
	}
	id[15] = id[15]&^1 | bit
	return id.String()
}
