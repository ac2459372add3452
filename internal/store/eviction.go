package store

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/heteroflow/heteroflow/internal/store/sqlgen"
)

// States of an eviction. The first three are open.
const (
	EvictionWanted     = "wanted"    // stated; nobody was told yet
	EvictionSignalled  = "signalled" // victims that asked for it were told to save their work
	EvictionStopping   = "stopping"  // victims are being stopped
	EvictionDone       = "done"      // the job that asked has its room
	EvictionRolledBack = "rolled_back"
)

// Eviction is that some jobs give their room to another. A job has at most one open eviction made for it.
type Eviction struct {
	ID        string // made by PutEviction when empty
	Namespace string // of the job that asks
	JobID     string // that asks
	Tenant    string // of the job that asks
	State     string
	Reason    string
	Victims   []Victim
	Deadline  time.Time // when the state is to be over
	CreatedAt time.Time
	UpdatedAt time.Time
	Version   int64
}

// Open reports whether the eviction is not over.
func (e Eviction) Open() bool {
	return slices.Contains([]string{EvictionWanted, EvictionSignalled, EvictionStopping}, e.State)
}

// Victim is one job that gives its room. One with Room moves: it starts again in the room that this reservation holds for
// it, beside what it has.
type Victim struct {
	Namespace  string `json:"namespace"`
	JobID      string `json:"job_id"`
	Tenant     string `json:"tenant,omitempty"`
	Priority   int    `json:"priority"`
	MilliCards int64  `json:"milli_cards"` // thousandths of cards that it holds
	Signal     string `json:"signal,omitempty"`
	Room       string `json:"room,omitempty"` // id of a reservation; empty for one that is evicted
}

// PutEviction states an eviction, with the rows of the jobs that it is about, each as PutJob does, and with the rooms: what
// the asking job gets, also where its victims still hold it, and what victims have and get that move. Nobody else can take
// it then. All or nothing. ErrConflict when the job has an open eviction, when a row was changed, or when a reservation
// does not replace the one that is open. The state is EvictionWanted.
func (s *Store) PutEviction(ctx context.Context, e Eviction, jobs []Job, rooms ...Reservation) (Eviction, error) {
	if e.ID == "" {
		e.ID = NewID()
	}
	victims, err := e.check()
	if err == nil {
		jobs, err = s.preparedJobs(jobs)
	}
	rooms = slices.Clone(rooms)
	for i := range rooms {
		if err == nil {
			rooms[i], err = s.preparedReservation(rooms[i])
		}
	}
	if err != nil {
		return Eviction{}, fmt.Errorf("put eviction: %w", err)
	}
	now := s.now()
	e.State, e.Version, e.CreatedAt, e.UpdatedAt, e.Deadline = EvictionWanted, 1, now, now, stamp(e.Deadline)
	err = s.inTx(ctx, func(q *sqlgen.Queries) error {
		n, err := q.InsertEviction(ctx, sqlgen.InsertEvictionParams{
			ID: e.ID, Namespace: e.Namespace, JobID: e.JobID, Tenant: e.Tenant, Reason: e.Reason, Victims: victims,
			Deadline: micros(e.Deadline), CreatedAt: micros(now), UpdatedAt: micros(now),
		})
		if err != nil {
			return fmt.Errorf("insert: %w", err)
		}
		if n == 0 {
			return fmt.Errorf("the job has an open eviction: %w", ErrConflict)
		}
		if err := putJobs(ctx, q, jobs); err != nil {
			return err
		}
		return reserveAnyway(ctx, q, rooms)
	})
	if err != nil {
		return Eviction{}, fmt.Errorf("put eviction for job %s/%s: %w", e.Namespace, e.JobID, err)
	}
	return e, nil
}

// MoveEviction stores the state, reason, victims and deadline of an open eviction if its Version is still the stored
// one, with the rows of jobs, each as PutJob does, and gives the reservation with the id release back if that is still
// what the asking job holds; an empty one is none. All or nothing; ErrConflict when something was changed.
func (s *Store) MoveEviction(ctx context.Context, e Eviction, jobs []Job, release string) (Eviction, error) {
	victims, err := e.check()
	if err == nil {
		jobs, err = s.preparedJobs(jobs)
	}
	if err != nil {
		return Eviction{}, fmt.Errorf("move eviction %s: %w", e.ID, err)
	}
	e.UpdatedAt, e.Deadline = s.now(), stamp(e.Deadline)
	err = s.inTx(ctx, func(q *sqlgen.Queries) error {
		n, err := q.UpdateEviction(ctx, sqlgen.UpdateEvictionParams{
			ID: e.ID, Version: e.Version, State: e.State, Reason: e.Reason, Victims: victims, Deadline: micros(e.Deadline), UpdatedAt: micros(e.UpdatedAt),
		})
		if err != nil {
			return fmt.Errorf("update: %w", err)
		}
		if n == 0 {
			return ErrConflict
		}
		if err := putJobs(ctx, q, jobs); err != nil || release == "" {
			return err
		}
		return releaseOne(ctx, q, e.Namespace, e.JobID, release)
	})
	if err != nil {
		return Eviction{}, fmt.Errorf("move eviction %s for job %s/%s: %w", e.ID, e.Namespace, e.JobID, err)
	}
	e.Version++
	return e, nil
}

// check is what may be stored of an eviction: its victims as text.
func (e *Eviction) check() (victims string, err error) {
	e.Reason = clean(e.Reason)
	if err := checkNames(e.ID, e.Namespace, e.JobID, e.Tenant, e.State); err != nil {
		return "", err
	}
	for _, v := range e.Victims {
		if err := checkNames(v.Namespace, v.JobID, v.Tenant, v.Signal, v.Room); err != nil {
			return "", err
		}
	}
	body, err := json.Marshal(e.Victims)
	if err != nil {
		return "", fmt.Errorf("encode victims: %w", err)
	}
	return string(body), nil
}

func (s *Store) preparedJobs(jobs []Job) ([]Job, error) {
	out := make([]Job, len(jobs))
	for i, j := range jobs {
		var err error
		if out[i], err = s.preparedJob(j); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// putJobs writes rows in the order of their keys, so that no two transactions wait for each other.
func putJobs(ctx context.Context, q *sqlgen.Queries, jobs []Job) error {
	slices.SortFunc(jobs, func(a, b Job) int { return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.ID, b.ID)) })
	for i := range jobs {
		row := jobs[i] // the caller's stays as it is: the transaction may run again
		if err := putJob(ctx, q, &row); err != nil {
			return fmt.Errorf("job %s/%s: %w", row.Namespace, row.ID, err)
		}
	}
	return nil
}

// reserveAnyway is reserve without a look at what is free, for several reservations in the order of their jobs.
func reserveAnyway(ctx context.Context, q *sqlgen.Queries, rooms []Reservation) error {
	slices.SortFunc(rooms, func(a, b Reservation) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.JobID, b.JobID))
	})
	change := deltas{}
	for _, r := range rooms {
		if err := insertRoom(ctx, q, r, change); err != nil {
			return err
		}
	}
	return change.force(ctx, q)
}

// OpenEvictions lists the evictions that are not over, oldest first. They are few.
func (s *Store) OpenEvictions(ctx context.Context) ([]Eviction, error) {
	rows, err := s.reader().ListOpenEvictions(ctx)
	if err != nil {
		return nil, fmt.Errorf("list open evictions: %w", err)
	}
	return mapRows(rows, evictionOf)
}

// evictionLimit bounds the list of evictions: of more only the latest count.
const evictionLimit = 10000

// EvictionsSince lists the evictions to which something happened since the moment, the latest first.
func (s *Store) EvictionsSince(ctx context.Context, since time.Time) ([]Eviction, error) {
	rows, err := s.reader().ListEvictionsSince(ctx, sqlgen.ListEvictionsSinceParams{Since: micros(since), MaxRows: evictionLimit})
	if err != nil {
		return nil, fmt.Errorf("list evictions: %w", err)
	}
	return mapRows(rows, evictionOf)
}

// ForgetEvictions drops the evictions that were over before the moment, and says how many.
func (s *Store) ForgetEvictions(ctx context.Context, before time.Time) (int, error) {
	n, err := s.writer().DeleteClosedEvictions(ctx, micros(before))
	if err != nil {
		return 0, fmt.Errorf("forget evictions: %w", err)
	}
	return int(n), nil
}

func evictionOf(row sqlgen.Eviction) (Eviction, error) {
	e := Eviction{
		ID: row.ID, Namespace: row.Namespace, JobID: row.JobID, Tenant: row.Tenant, State: row.State, Reason: row.Reason,
		Deadline: moment(row.Deadline), CreatedAt: moment(row.CreatedAt), UpdatedAt: moment(row.UpdatedAt), Version: row.Version,
	}
	if err := json.Unmarshal([]byte(row.Victims), &e.Victims); err != nil {
		return e, fmt.Errorf("read victims of eviction %s: %w", row.ID, err)
	}
	return e, nil
}

// releaseOne gives back a reservation if it is still the job's.
func releaseOne(ctx context.Context, q *sqlgen.Queries, namespace, jobID, id string) error {
	row, err := q.LockOpenReservation(ctx, sqlgen.LockOpenReservationParams{Namespace: namespace, JobID: jobID})
	if errors.Is(err, sql.ErrNoRows) || err == nil && row.ID != id {
		return nil
	}
	if err != nil {
		return fmt.Errorf("lock reservation %s: %w", id, err)
	}
	claims, err := closeReservation(ctx, q, row.ID, Released)
	if err != nil {
		return err
	}
	change := deltas{}
	change.add(claims, -1)
	return change.force(ctx, q)
}
