package submit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/heteroflow/heteroflow/internal/nomadapi"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/admission"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

// Retry tries a job that waits, or one that Nomad could not be given. done tells that the job left the queue. An
// error means that a part that is needed is away and the job is as it was, or, with done, that this job alone cannot be
// tried.
func (s *Submitter) Retry(ctx context.Context, key watch.JobKey) (done bool, err error) {
	defer s.lock(key)()
	row, err := s.find(ctx, key)
	if err != nil {
		return false, err
	}
	if row.State != store.JobWaiting {
		s.leaveHead(key)
	}
	if row.State != store.JobWaiting && row.State != store.JobSubmitting {
		return true, nil
	}
	if isStopping(row) {
		return s.stopNow(ctx, row)
	}
	if isPreempting(row) {
		return false, nil // whoever evicts it puts it back
	}
	sub, err := s.stored(row)
	if err != nil {
		return true, err
	}
	if row.State == store.JobSubmitting {
		done, err = s.resend(ctx, sub, row)
	} else {
		done, err = s.retry(ctx, sub, row)
	}
	if errors.Is(err, store.ErrConflict) {
		return false, nil // somebody else was quicker
	}
	return done, err
}

// stored reads a submission back from the job's row.
func (s *Submitter) stored(row store.Job) (submission, error) {
	sub := submission{
		caller: Caller{Tenant: row.Tenant, User: row.User}, key: watch.JobKey{Namespace: row.Namespace, ID: row.ID},
		hash: row.SpecHash, prev: row,
	}
	if err := nomadapi.DecodeTree(row.Spec, &sub.env); err != nil {
		return sub, fmt.Errorf("read the stored job %s: %w", row.ID, err)
	}
	var ok bool
	if sub.clean, ok = sub.env["Job"].(Tree); !ok {
		return sub, fmt.Errorf("read the stored job %s: it has no Job", row.ID)
	}
	var problems admission.Problems
	if sub.reading, problems = admission.Read(sub.clean); len(problems) > 0 {
		return sub, fmt.Errorf("read the stored job %s: %w", row.ID, problems)
	}
	return sub, nil
}

func (s *Submitter) retry(ctx context.Context, sub submission, row store.Job) (bool, error) {
	older, err := runningInjection(row)
	if err != nil {
		return true, err
	}
	p := sub.placing(row, older)
	p.row = &row
	found, err := s.place(ctx, p)
	if err != nil {
		return false, err
	}
	if found.job != nil {
		s.leaveHead(sub.key)
		result, err := s.send(ctx, sub, row, found)
		result.finish()
		var answer *Answer
		if errors.As(err, &answer) {
			return s.refuse(ctx, sub.key, answer.Text)
		}
		return err == nil && !result.Waiting, err
	}
	refusal, shrinks, err := s.shrinkFor(ctx, sub, row, found)
	if err == nil && !shrinks {
		row, refusal, err = s.makeRoom(ctx, sub, row, refusal)
	}
	if err == nil {
		refusal, err = s.keepRoom(ctx, sub, row, found, refusal)
	}
	if err != nil {
		return false, err
	}
	refusal = preemptedReason(row, refusal)
	if row.Reason != refusal.Sentence {
		row.ReasonCode, row.Reason = string(refusal.Code), refusal.Sentence
		if _, err := s.put(ctx, row); err != nil {
			return false, err
		}
		if sub.prev.ReasonCode != string(refusal.Code) {
			s.note(ctx, sub.key, outcomeOf(found), found)
		}
	}
	return false, s.want(ctx, sub.key, found.decision.Switches)
}

// inFlight is how long a job that is on its way to Nomad is left to the instance that sends it.
const inFlight = registerTimeout + 5*time.Second

// resend gives Nomad a job that may or may not have reached it.
func (s *Submitter) resend(ctx context.Context, sub submission, row store.Job) (bool, error) {
	if row.ReasonCode != string(codeUnreachable) && s.Clock.Now().Sub(row.UpdatedAt) < inFlight {
		return false, nil
	}
	stored, err := s.Nomad.Job(ctx, sub.key.Namespace, sub.key.ID)
	switch {
	case nomadapi.IsNotFound(err):
	case err != nil:
		return false, answerOf(err)
	case s.isSame(stored, sub.hash) && carries(stored, sub, row):
		s.sent(ctx, sub, row, placed{job: sub.clean}, Tree{"EvalID": ""}).finish()
		return true, nil
	}
	found := placed{job: sub.clean}
	if sub.reading.Asks() {
		older, reservation, err := s.decided(ctx, sub.key, row)
		if err != nil {
			return false, err
		}
		p := sub.placing(row, older)
		p.row = &row
		if found, err = s.place(ctx, p); err != nil {
			return false, err
		}
		if found.repeated() {
			found.reservation = reservation
		}
	}
	if found.job == nil { // its room expired and is gone
		_, err := s.hold(ctx, sub, row, found)
		var refused *Refused
		if errors.As(err, &refused) {
			return s.refuse(ctx, sub.key, refused.Text)
		}
		return false, err
	}
	sub.prev.State = store.JobWaiting // where it goes back to if Nomad refuses
	result, err := s.send(ctx, sub, row, found)
	result.finish()
	var answer *Answer
	if errors.As(err, &answer) {
		return s.refuse(ctx, sub.key, answer.Text)
	}
	return err == nil && !result.Waiting, err
}

// decided is the decision that a job runs under. For one that was not sent yet it counts only as long as its room is
// reserved, and the reservation's id is returned too.
func (s *Submitter) decided(ctx context.Context, key watch.JobKey, row store.Job) (admission.Injection, string, error) {
	reservation := ""
	if row.State == store.JobSubmitting {
		open, err := s.Store.ReservationOf(ctx, key.Namespace, key.ID)
		if errors.Is(err, store.ErrNotFound) {
			return admission.Injection{}, "", nil
		}
		if err != nil {
			return admission.Injection{}, "", databaseError(err)
		}
		reservation = open.ID
	}
	in, err := runningInjection(row)
	return in, reservation, err
}

// isSame reports whether Nomad runs this very spec.
func (s *Submitter) isSame(stored Tree, hash string) bool {
	if stop, _ := stored["Stop"].(bool); stop {
		return false
	}
	have, err := admission.SpecHash(admission.Strip(stored))
	return err == nil && have == hash
}

// carries reports whether the job that Nomad has is under the row's own decision. One that is placed anew, or decided
// anew for more allocations, has the same spec under another: taken for sent, it would stay where it was for good.
func carries(stored Tree, sub submission, row store.Job) bool {
	in, err := runningInjection(row)
	if err != nil {
		return false
	}
	want, stale := admission.Apply(sub.clean, sub.reading, in)
	if len(stale) > 0 {
		return false
	}
	return admission.Injected(want) == admission.Injected(stored)
}

// refuse notes that Nomad would not take a job that had waited.
func (s *Submitter) refuse(ctx context.Context, key watch.JobKey, text string) (done bool, err error) {
	s.log.Warn("nomad refused a job that had waited", "job_id", key.ID, "reason", text)
	row, err := s.find(ctx, key)
	if err != nil || row.Version == 0 {
		return err == nil, err
	}
	row.State, row.ReasonCode, row.Reason = store.JobRefused, "nomad_refused", text
	_, err = s.put(ctx, row)
	return err == nil, err
}

// Signature names what a waiting job asks for: of two jobs with one signature, on the same cluster, both fit or
// neither does.
func (s *Submitter) Signature(row store.Job) (string, error) {
	sub, err := s.stored(row)
	if err != nil {
		return "", err
	}
	request := sub.reading.Request
	request.JobID, request.Namespace, request.Tenant, request.Priority = "", "", row.Tenant, 0
	switch {
	case len(row.Injection) > 0, row.ReasonCode == string(codeMakingRoom), row.ReasonCode == string(codePreempted):
		request.JobID = row.Namespace + "/" + row.ID // what it holds already tells it from others, and room that is held for it
	}
	body, err := json.Marshal([]any{request, sub.reading.Runtime})
	if err != nil {
		return "", fmt.Errorf("encode the asks of job %s: %w", row.ID, err)
	}
	return string(body), nil
}
