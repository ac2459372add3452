package submit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/admission"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

// Result is what became of a registration.
type Result struct {
	Answer  Tree // a JobRegisterResponse
	Job     store.Job
	Waiting bool // the service holds the job; the answer's evaluation is the service's own

	rest func() // what is still to be written, under the job's lock; nil when nothing is
}

// finish writes what is still to be written.
func (r Result) finish() {
	if r.rest != nil {
		r.rest()
	}
}

// submission is one job on its way.
type submission struct {
	caller  Caller
	key     watch.JobKey
	env     Tree // the JobRegisterRequest
	clean   Tree // the job, stripped
	reading admission.Reading
	hash    string
	prev    store.Job
}

// registerTries is how often a registration is repeated when the job's row was changed meanwhile.
const registerTries = 4

// Register admits a JobRegisterRequest. Errors are those of this package.
func (s *Submitter) Register(ctx context.Context, caller Caller, env Tree) (Result, error) {
	key, err := keyOf(env)
	if err != nil {
		return Result{}, err
	}
	unlock := s.lock(key)
	for range registerTries {
		result, err := s.register(ctx, caller, key, env)
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		s.count(result, err)
		s.afterwards.Go(func() {
			defer unlock()
			result.finish()
		})
		return result, err
	}
	unlock()
	return Result{}, &Unavailable{Part: "the job", Err: errors.New("others change it at the same time")}
}

func (s *Submitter) count(r Result, err error) {
	outcome := "submitted"
	switch {
	case err != nil:
		outcome = "refused"
	case r.Waiting:
		outcome = "waiting"
	}
	s.metrics.submitted.WithLabelValues(outcome).Inc()
}

func (s *Submitter) register(ctx context.Context, caller Caller, key watch.JobKey, env Tree) (Result, error) {
	sub, err := s.read(ctx, caller, key, env)
	if err != nil {
		return Result{}, err
	}
	if sub.reading.Asks() {
		if err := s.checkFlags(ctx, &sub); err != nil {
			return Result{}, err
		}
	}
	row, err := sub.row()
	if err != nil {
		return Result{}, err
	}
	older, reservation, err := s.decided(ctx, key, sub.prev)
	if err != nil {
		return Result{}, err
	}
	// From here on the work is finished even when the user leaves.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	found := placed{job: sub.clean}
	if sub.reading.Asks() && isPreempting(sub.prev) {
		return s.hold(ctx, sub, row, beingEvicted(sub.prev))
	}
	if sub.reading.Asks() {
		p := sub.placing(row, older)
		p.row = &row
		if found, err = s.place(ctx, p); err != nil {
			return Result{}, err
		}
		if found.repeated() {
			found.reservation = reservation
		}
		s.observe(sub, found)
	}
	if found.job == nil {
		return s.hold(ctx, sub, row, found)
	}
	return s.send(ctx, sub, row, found)
}

// read checks who and what.
func (s *Submitter) read(ctx context.Context, caller Caller, key watch.JobKey, env Tree) (submission, error) {
	job := env["Job"].(Tree)
	reading, problems := admission.Read(job)
	if len(problems) == 0 && reading.Asks() && s.World.Stale(s.Clock.Now()) == "" {
		problems = admission.Check(reading, s.World.Catalog())
	}
	if len(problems) > 0 {
		return submission{}, &Refused{Code: "invalid_ask", Text: problems.Error(), Fields: problems}
	}
	sub := submission{caller: caller, key: key, env: env, clean: admission.Strip(job), reading: reading}
	var asked errgroup.Group // of the store, beside the reckoning of the hash
	asked.Go(func() (err error) {
		sub.prev, err = s.find(ctx, key)
		return err
	})
	if reading.Asks() {
		asked.Go(func() error {
			_, _, _ = s.Ledger.Taken(ctx) // so that the decision finds it read; it is told what fails
			return nil
		})
	}
	var err error
	sub.hash, err = admission.SpecHash(sub.clean)
	if lost := asked.Wait(); err == nil && lost != nil {
		return sub, lost
	}
	if err != nil {
		return sub, &Refused{Code: "invalid_job", Text: err.Error()}
	}
	return sub, owned(caller, sub.prev)
}

func keyOf(env Tree) (watch.JobKey, error) {
	job, ok := env["Job"].(Tree)
	if !ok {
		return watch.JobKey{}, &Refused{Code: "invalid_job", Text: `Job: the body has no job: send {"Job": {…}}, as nomad job run does`}
	}
	id, ok := job["ID"].(string)
	if !ok || id == "" {
		return watch.JobKey{}, &Refused{Code: "invalid_job", Text: "Job.ID: the job has no ID: write a text"}
	}
	namespace, _ := job["Namespace"].(string)
	if namespace == "" {
		namespace = "default"
	}
	return watch.JobKey{Namespace: namespace, ID: id}, nil
}

func (sub submission) placing(row store.Job, older admission.Injection) placing {
	return placing{turn: turn{row.Priority, row.QueuedAt}, key: sub.key, tenant: row.Tenant, job: sub.clean, reading: sub.reading, prev: sub.prev, older: older}
}

// row is the job's row with the new spec; its state is not set yet.
func (sub submission) row() (store.Job, error) {
	row := sub.prev
	row.Namespace, row.ID, row.User = sub.key.Namespace, sub.key.ID, sub.caller.User
	if row.Version == 0 {
		row.Tenant = sub.caller.Tenant
	}
	if row.State == store.JobStopped {
		row.Injection = nil
	}
	envelope := Tree{}
	for _, name := range []string{"Submission", "PolicyOverride", "EvalPriority"} {
		if v, ok := sub.env[name]; ok {
			envelope[name] = v
		}
	}
	envelope["Job"] = sub.clean
	spec, err := json.Marshal(envelope)
	if err != nil {
		return row, fmt.Errorf("encode job %s: %w", sub.key.ID, err)
	}
	row.Spec = spec
	if row.SpecHash != sub.hash || row.State != store.JobWaiting {
		row.QueuedAt, row.EvalID = time.Time{}, ""
	}
	row.SpecHash = sub.hash
	row.Priority = priorityOf(sub.clean)
	return row, nil
}

func priorityOf(job Tree) int {
	if n, ok := job["Priority"].(json.Number); ok {
		if p, err := n.Int64(); err == nil && p > 0 {
			return int(p)
		}
	}
	return 50 // Nomad's default
}

// hold keeps a job that has no room now, or refuses one that never has.
func (s *Submitter) hold(ctx context.Context, sub submission, row store.Job, found placed) (Result, error) {
	refusal := refusalOf(found)
	if refusal.Never {
		return Result{}, &Refused{Code: string(refusal.Code), Text: refusal.Sentence}
	}
	if err := s.checkIndex(ctx, sub); err != nil {
		return Result{}, err
	}
	changed := sub.prev.State != store.JobWaiting || row.ReasonCode != string(refusal.Code)
	row.State, row.ReasonCode, row.Reason = store.JobWaiting, string(refusal.Code), refusal.Sentence
	row.Injection = nil // what was decided and lost its room does not count, what runs does
	if sub.prev.State != store.JobStopped && sub.prev.State != store.JobSubmitting {
		row.Injection = sub.prev.Injection
	}
	if row.EvalID == "" {
		row.EvalID = newEvalID()
	}
	row, err := s.put(ctx, row)
	if err != nil {
		return Result{}, err
	}
	if changed {
		s.note(ctx, sub.key, outcomeOf(found), found)
		s.log.Info("job waits", "namespace", row.Namespace, "job_id", row.ID, "tenant", row.Tenant, "reason", refusal.Code)
	}
	if err := s.want(ctx, sub.key, found.decision.Switches); err != nil {
		s.log.Warn("form switch not asked for", "job_id", row.ID, "error", err)
	}
	s.wake()
	return Result{Job: row, Waiting: true, Answer: waitingAnswer(row, "The job waits in HeteroFlow's queue: "+refusal.Sentence)}, nil
}

func refusalOf(found placed) engine.Refusal {
	if r := found.decision.Refusal; r != nil {
		return *r
	}
	return engine.Refusal{Code: engine.CodeFormSwitch, Sentence: "cards change their form first"}
}

func outcomeOf(found placed) string {
	if len(found.decision.Switches) > 0 {
		return "switching"
	}
	return "waiting"
}

func waitingAnswer(row store.Job, warning string) Tree {
	return Tree{
		"EvalID": row.EvalID, "EvalCreateIndex": 1, "JobModifyIndex": 1, "Index": 1,
		"LastContact": 0, "KnownLeader": true, "Warnings": Warnings("", warning),
	}
}

// Warnings adds lines to a Warnings text in the form that Nomad's clients print.
func Warnings(text string, more ...string) string {
	var lines []string
	if text != "" {
		_, list, ok := strings.Cut(text, "warning(s):\n")
		if !ok {
			list = "* " + text
		}
		for line := range strings.SplitSeq(strings.TrimSpace(list), "\n") {
			if line != "" {
				lines = append(lines, line)
			}
		}
	}
	for _, m := range more {
		lines = append(lines, "* "+m)
	}
	if len(lines) == 0 {
		return ""
	}
	entries := 0
	for _, l := range lines {
		if strings.HasPrefix(l, "* ") {
			entries++
		}
	}
	return fmt.Sprintf("%d warning(s):\n\n%s", entries, strings.Join(lines, "\n"))
}

// put stores the row; ErrConflict comes back bare.
func (s *Submitter) put(ctx context.Context, row store.Job) (store.Job, error) {
	out, err := s.Store.PutJob(ctx, row)
	if errors.Is(err, store.ErrConflict) {
		return row, err
	}
	return out, databaseError(err)
}
