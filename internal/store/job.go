package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/heteroflow/heteroflow/internal/store/sqlgen"
)

// States of a job.
const (
	JobWaiting    = "waiting"    // no room now, in the queue
	JobSubmitting = "submitting" // room reserved, being sent to Nomad
	JobSubmitted  = "submitted"  // Nomad has it
	JobStopped    = "stopped"
	JobRefused    = "refused" // can never be placed as written
)

// Job is one job as its user wrote it, and what the service did with it. Its key is (Namespace, ID).
type Job struct {
	Tenant     string
	Namespace  string
	ID         string
	User       string
	Spec       json.RawMessage // the user's job, our injections stripped
	SpecHash   string
	Injection  json.RawMessage // what the running decision added; nil when none
	State      string
	ReasonCode string
	Reason     string
	Priority   int
	EvalID     string // the synthetic evaluation of a job that Nomad does not have yet
	CreatedAt  time.Time
	UpdatedAt  time.Time // set by PutJob
	QueuedAt   time.Time
	Version    int64 // 0 is a new job
}

// JobFilter narrows ListJobs; an empty field matches all. Prefix is of the id.
type JobFilter struct {
	Tenant, Namespace, State, Prefix string
}

// PutJob stores the job if its Version is still the stored one, or, with Version 0, if there is no such job, and
// returns it with its new version. ErrConflict otherwise. CreatedAt and QueuedAt are now when zero.
func (s *Store) PutJob(ctx context.Context, j Job) (Job, error) {
	j, err := s.preparedJob(j)
	if err == nil {
		err = putJob(ctx, s.writer(), &j)
	}
	return j.orNone(err)
}

// PutJobReserving is PutJob and Reserve in one transaction: both or neither. ErrJobChanged tells a conflict about the
// job from one about its reservation. Everybody sees it at once, but it is on disk only after the next Flush.
func (s *Store) PutJobReserving(ctx context.Context, j Job, r Reservation) (Job, error) {
	j, err := s.preparedJob(j)
	if err == nil {
		r, err = s.preparedReservation(r)
	}
	if err != nil {
		return Job{}, err
	}
	version := j.Version
	err = s.inPipelinedTx(ctx, func(q *sqlgen.Queries) error {
		j.Version = version
		if err := putJob(ctx, q, &j); err != nil {
			return err
		}
		return reserve(ctx, q, r)
	})
	return j.orNone(err)
}

// PutJobSubmitted is PutJob and MarkSubmitted in one transaction. A reservation that is not in state reserved is no
// error; its id is empty when there is none.
func (s *Store) PutJobSubmitted(ctx context.Context, j Job, reservation string) (Job, error) {
	if reservation == "" {
		return s.PutJob(ctx, j)
	}
	j, err := s.preparedJob(j)
	if err != nil {
		return Job{}, err
	}
	version := j.Version
	err = s.inPipelinedTx(ctx, func(q *sqlgen.Queries) error {
		j.Version = version
		if err := putJob(ctx, q, &j); err != nil {
			return err
		}
		_, err := q.SubmitReservation(ctx, reservation)
		return err
	})
	return j.orNone(err)
}

func (j Job) orNone(err error) (Job, error) {
	if err != nil {
		return Job{}, fmt.Errorf("put job %s/%s: %w", j.Namespace, j.ID, err)
	}
	return j, nil
}

// preparedJob checks a job and stamps it.
func (s *Store) preparedJob(j Job) (Job, error) {
	if err := checkNames(j.Tenant, j.Namespace, j.ID, j.User, j.EvalID); err != nil {
		return j, err
	}
	j.Reason = clean(j.Reason)
	if !storable(text(j.Spec), text(j.Injection)) {
		return j, fmt.Errorf("a spec with broken UTF-8 is %w", ErrInvalid)
	}
	j.UpdatedAt = s.now()
	if j.CreatedAt.IsZero() {
		j.CreatedAt = j.UpdatedAt
	}
	if j.QueuedAt.IsZero() {
		j.QueuedAt = j.UpdatedAt
	}
	j.CreatedAt, j.QueuedAt = stamp(j.CreatedAt), stamp(j.QueuedAt)
	return j, nil
}

// putJob writes a prepared job and counts its version up.
func putJob(ctx context.Context, q *sqlgen.Queries, j *Job) error {
	n, err := writeJob(ctx, q, *j)
	if err != nil {
		return err
	}
	if n == 0 {
		return ErrJobChanged
	}
	j.Version++
	return nil
}

func writeJob(ctx context.Context, q *sqlgen.Queries, j Job) (int64, error) {
	if j.Version == 0 {
		return q.InsertJob(ctx, sqlgen.InsertJobParams{
			Namespace: j.Namespace, ID: j.ID, Tenant: j.Tenant, UserName: j.User, Spec: text(j.Spec),
			SpecHash: j.SpecHash, Injection: text(j.Injection), State: j.State, ReasonCode: j.ReasonCode,
			Reason: j.Reason, Priority: int64(j.Priority), EvalID: j.EvalID, CreatedAt: micros(j.CreatedAt),
			UpdatedAt: micros(j.UpdatedAt), QueuedAt: micros(j.QueuedAt),
		})
	}
	return q.UpdateJob(ctx, sqlgen.UpdateJobParams{
		Namespace: j.Namespace, ID: j.ID, Tenant: j.Tenant, UserName: j.User, Spec: text(j.Spec),
		SpecHash: j.SpecHash, Injection: text(j.Injection), State: j.State, ReasonCode: j.ReasonCode,
		Reason: j.Reason, Priority: int64(j.Priority), EvalID: j.EvalID, CreatedAt: micros(j.CreatedAt),
		UpdatedAt: micros(j.UpdatedAt), QueuedAt: micros(j.QueuedAt), Version: j.Version,
	})
}

// Job finds one job, or ErrNotFound.
func (s *Store) Job(ctx context.Context, namespace, id string) (Job, error) {
	if !storable(namespace, id) {
		return Job{}, fmt.Errorf("job: %w", ErrNotFound)
	}
	row, err := s.reader().GetJob(ctx, sqlgen.GetJobParams{Namespace: namespace, ID: id})
	return foundJob(row, err, "job "+namespace+"/"+id)
}

// JobByEval finds the job that waits under the synthetic evaluation, or ErrNotFound.
func (s *Store) JobByEval(ctx context.Context, evalID string) (Job, error) {
	if !storable(evalID) {
		return Job{}, fmt.Errorf("job of evaluation: %w", ErrNotFound)
	}
	row, err := s.reader().GetJobByEval(ctx, evalID)
	return foundJob(row, err, "job of evaluation "+evalID)
}

// ListJobs lists jobs, oldest first.
func (s *Store) ListJobs(ctx context.Context, f JobFilter, page Page) (jobs []Job, next string, err error) {
	at, key, err := page.position(2)
	if err != nil {
		return nil, "", fmt.Errorf("list jobs: %w", err)
	}
	if !storable(f.Tenant, f.Namespace, f.State, f.Prefix) {
		return []Job{}, "", nil
	}
	limit := page.limit()
	rows, err := s.reader().ListJobs(ctx, sqlgen.ListJobsParams{
		AfterCreated: at, AfterNamespace: key[0], AfterID: key[1],
		AnyTenant: f.Tenant == "", Tenant: f.Tenant,
		AnyNamespace: f.Namespace == "", Namespace: f.Namespace,
		AnyState: f.State == "", State: f.State,
		PrefixLength: int32(utf8.RuneCountInString(f.Prefix)), Prefix: f.Prefix,
		MaxRows: limit + 1,
	})
	if err != nil {
		return nil, "", fmt.Errorf("list jobs: %w", err)
	}
	rows, next = cut(rows, limit, func(j sqlgen.Job) string { return cursor(j.CreatedAt, j.Namespace, j.ID) })
	jobs, err = mapRows(rows, jobOf)
	return jobs, next, err
}

// WaitingJobs lists at most limit waiting jobs in the order they are to be tried: priority, then time queued.
func (s *Store) WaitingJobs(ctx context.Context, limit int) ([]Job, error) {
	rows, err := s.reader().ListWaitingJobs(ctx, int32(limit))
	if err != nil {
		return nil, fmt.Errorf("list waiting jobs: %w", err)
	}
	return mapRows(rows, jobOf)
}

// UnsentJobs lists at most limit jobs that have room and are not known to have reached Nomad, oldest first.
func (s *Store) UnsentJobs(ctx context.Context, limit int) ([]Job, error) {
	rows, err := s.reader().ListUnsentJobs(ctx, int32(limit))
	if err != nil {
		return nil, fmt.Errorf("list unsent jobs: %w", err)
	}
	return mapRows(rows, jobOf)
}

// DeleteJob forgets a job. ErrNotFound when there is none.
func (s *Store) DeleteJob(ctx context.Context, namespace, id string) error {
	if !storable(namespace, id) {
		return fmt.Errorf("job: %w", ErrNotFound)
	}
	n, err := s.writer().DeleteJob(ctx, sqlgen.DeleteJobParams{Namespace: namespace, ID: id})
	return oneRow(n, err, "delete job "+namespace+"/"+id)
}

func foundJob(row sqlgen.Job, err error, what string) (Job, error) {
	if errors.Is(err, sql.ErrNoRows) {
		return Job{}, fmt.Errorf("%s: %w", what, ErrNotFound)
	}
	if err != nil {
		return Job{}, fmt.Errorf("read %s: %w", what, err)
	}
	return jobOf(row)
}

func jobOf(row sqlgen.Job) (Job, error) {
	return Job{
		Tenant: row.Tenant, Namespace: row.Namespace, ID: row.ID, User: row.UserName, Spec: raw(row.Spec),
		SpecHash: row.SpecHash, Injection: raw(row.Injection), State: row.State, ReasonCode: row.ReasonCode,
		Reason: row.Reason, Priority: int(row.Priority), EvalID: row.EvalID, CreatedAt: moment(row.CreatedAt),
		UpdatedAt: moment(row.UpdatedAt), QueuedAt: moment(row.QueuedAt), Version: row.Version,
	}, nil
}
