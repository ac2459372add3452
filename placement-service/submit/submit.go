// Package submit brings a job to Nomad: it reads what the job asks, decides on the current snapshot, reserves,
// writes the decision into the job and registers it, or has it wait with the reason. The proxy, the queue and the
// watcher all come through here. Speaking HTTP with users and deciding itself do not belong here.
package submit

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/httpx"
	"github.com/heteroflow/heteroflow/internal/nomadapi"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/admission"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/flight"
	"github.com/heteroflow/heteroflow/placement-service/ledger"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

// Tree is JSON as Nomad's API sends it, numbers as json.Number.
type Tree = admission.Tree

// Caller is who submits, from the credentials, never from the job.
type Caller struct {
	Tenant string
	User   string
	All    bool // may act on the jobs of every tenant
}

// Registrar is where jobs are registered and planned.
type Registrar interface {
	Register(ctx context.Context, namespace string, request json.RawMessage) (nomadapi.Tree, error)
	Plan(ctx context.Context, namespace, id string, request json.RawMessage) (nomadapi.Tree, error)
	Deregister(ctx context.Context, namespace, id string, purge bool) (string, error)
	Job(ctx context.Context, namespace, id string) (nomadapi.Tree, error)
	JobVersion(ctx context.Context, namespace, id string, version uint64) (nomadapi.Tree, error)
}

// Config is what a submitter needs.
type Config struct {
	Nomad  Registrar
	Store  *store.Store
	World  *watch.World
	Ledger *ledger.View
	Engine func() *engine.Engine // the one to use now
	Key    ed25519.PrivateKey    // signs grants
	Clock  clock.Clock
	Log    hclog.Logger
	// Observe is given what every job asks for that is admitted, once; nil when nobody learns from it.
	Observe func(engine.Request)
	// Record is given every decision of the engine, its nodes not to be changed; nil when nobody keeps them.
	Record func(flight.Entry)
	// Expect is told which evaluation will bring a job's allocations.
	Expect func(job watch.JobKey, evalID string)
	// Patience is how long a job waits before room is kept for it whose end nobody knows; DefaultPatience when zero. Room of
	// which the end is known is kept at once.
	Patience time.Duration
	// Preemption is when others are evicted for a job that waits.
	Preemption Preemption
	// Signals tells tasks that are going to be evicted to save their work; nil tells nobody.
	Signals Signaller
	// Newest reads the load of nodes once more before places on them are taken; nil where nobody looks at load.
	Newest func(ctx context.Context, nodes []string)
	// Wake is told that the queue has something to do.
	Wake func()
	// WakeAt is told when the queue will have something to do although nothing happens until then.
	WakeAt func(time.Time)
}

// Submitter is safe for concurrent use.
type Submitter struct {
	Config
	log      hclog.Logger
	deciding sync.Mutex // one decision at a time here; other instances are told apart by the ledger
	switches *switchBook
	heads    headBook
	metrics  *metrics
	locks    jobLocks
	plans    planBook
	elastic  elasticBook
	partial  sync.Map // of gangs that Nomad could not place as a whole: watch.JobKey → time.Time when that was seen first
	// afterwards is what is still to be written for jobs that were answered.
	afterwards sync.WaitGroup
}

// New makes a submitter.
func New(c Config) *Submitter {
	if c.Clock == nil {
		c.Clock = clock.System()
	}
	return &Submitter{Config: c, log: c.Log.Named("submit"), switches: newSwitchBook(c.Clock.Now()), metrics: newMetrics()}
}

// Wait returns when everything is written of the jobs that were answered. Call it before the store is closed.
func (s *Submitter) Wait() { s.afterwards.Wait() }

// reservationLife is how long what was reserved waits for its allocations.
const reservationLife = 5 * time.Minute

// Refused says that a job can never run as it is written. The text is for the user.
type Refused struct {
	Code string
	Text string
	// Fields is what the text says, with the places of the job for programs. Empty when it is about none.
	Fields admission.Problems
}

// Problem is the refusal as an answer, with a pointer to each field.
func (e *Refused) Problem() *httpx.Problem {
	problem := httpx.NewProblem(http.StatusBadRequest, e.Code, e.Text)
	for _, f := range e.Fields {
		problem = problem.At(f.Pointer(), f.Text)
	}
	return problem
}

func (e *Refused) Error() string { return e.Text }

// Forbidden says that the caller may not do this.
type Forbidden struct{ Text string }

func (e *Forbidden) Error() string { return e.Text }

// Unavailable says that a part that is needed does not answer.
type Unavailable struct {
	Part    string
	Err     error
	Changed string // what was done all the same, so that trying again changes nothing; empty when nothing was
}

func (e *Unavailable) Error() string {
	changed := e.Changed
	if changed == "" {
		changed = "nothing was changed"
	}
	return fmt.Sprintf("%s cannot be reached, %s: try again (%v)", e.Part, changed, e.Err)
}

func (e *Unavailable) Unwrap() error { return e.Err }

// Answer is Nomad's own refusal of a request, to be passed on.
type Answer struct {
	Status int
	Text   string
}

func (e *Answer) Error() string { return e.Text }

// answerOf turns an error of the Nomad client into an Answer when Nomad answered, and Unavailable otherwise.
func answerOf(err error) error {
	if nomadapi.IsAnswer(err) {
		return &Answer{Status: nomadapi.StatusOf(err), Text: nomadapi.AnswerText(err)}
	}
	return &Unavailable{Part: "nomad", Err: err}
}

func databaseError(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	return &Unavailable{Part: "the database", Err: err}
}

// owned refuses a caller who is not of the job's tenant.
func owned(caller Caller, job store.Job) error {
	if job.Version == 0 || caller.All || job.Tenant == caller.Tenant {
		return nil
	}
	return &Forbidden{Text: fmt.Sprintf("job %q belongs to another tenant: choose another job name", job.ID)}
}

// find reads a job of the store; the zero Job, Version 0, when there is none.
func (s *Submitter) find(ctx context.Context, key watch.JobKey) (store.Job, error) {
	job, err := s.Store.Job(ctx, key.Namespace, key.ID)
	if errors.Is(err, store.ErrNotFound) {
		return store.Job{Namespace: key.Namespace, ID: key.ID}, nil
	}
	return job, databaseError(err)
}

func (s *Submitter) wake() {
	if s.Wake != nil {
		s.Wake()
	}
}

// StatusOf is for those who answer HTTP: the status of an error of this package.
func StatusOf(err error) int {
	var (
		refused     *Refused
		forbidden   *Forbidden
		unavailable *Unavailable
		answer      *Answer
	)
	switch {
	case errors.As(err, &refused):
		return http.StatusBadRequest
	case errors.As(err, &forbidden):
		return http.StatusForbidden
	case errors.As(err, &unavailable):
		return http.StatusServiceUnavailable
	case errors.As(err, &answer):
		return answer.Status
	case errors.Is(err, store.ErrNotFound):
		return http.StatusNotFound
	}
	return http.StatusInternalServerError
}
