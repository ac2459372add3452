// Package queue tries the jobs that wait, in the order of priority and then of arrival, whenever room may have
// appeared, and sees to jobs that Nomad could not be given or could not place. A job that does not fit is passed by
// those behind it that do: nothing stands idle for it, and it is tried first each time. Deciding and talking to
// Nomad do not belong here.
package queue

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

const (
	// Tick is the safety net under the events.
	Tick = 60 * time.Second
	// grace is how long Nomad may try by itself before a blocked job is placed anew.
	grace = 2 * time.Second
	// blockedPause is the least time between two tries to place a blocked job anew.
	blockedPause = 5 * time.Second
	// batch is how many waiting jobs one round looks at.
	batch = 1000
)

// Submitter tries one job. An error means that a part that is needed is away; one of Retry with done is of that job
// alone.
type Submitter interface {
	Retry(context.Context, watch.JobKey) (done bool, err error)
	Replace(context.Context, watch.JobKey) (done bool, err error)
	Adopt(context.Context, watch.JobKey) error
	Removed(context.Context, watch.JobKey) error
	Signature(store.Job) (string, error)
	// Evict goes on with making room.
	Evict(context.Context) error
	// Resize takes members from elastic gangs for jobs that wait, and gives them those that there is room for.
	Resize(context.Context) error
}

// Jobs is where jobs are kept.
type Jobs interface {
	WaitingJobs(ctx context.Context, limit int) ([]store.Job, error)
	UnsentJobs(ctx context.Context, limit int) ([]store.Job, error)
}

// Queue is safe for concurrent use.
type Queue struct {
	jobs   Jobs
	submit Submitter
	clock  clock.Clock
	log    hclog.Logger

	wake  chan struct{}
	adopt chan struct{} // adopting is to be done, which is not worth going through everything

	mu      sync.Mutex
	blocked map[watch.JobKey]time.Time // when to try next
	toAdopt map[watch.JobKey]bool
	adopted map[watch.JobKey]bool // seen already
	removed map[watch.JobKey]bool
	due     []time.Time // when to look although nothing happens

	waiting   prometheus.Gauge
	round     prometheus.Histogram
	signature map[watch.JobKey]signed // of the jobs of the last round
}

type signed struct {
	version int64
	text    string
}

// New makes a queue; Run works it.
func New(jobs Jobs, submit Submitter, c clock.Clock, log hclog.Logger) *Queue {
	if c == nil {
		c = clock.System()
	}
	return &Queue{
		jobs: jobs, submit: submit, clock: c, log: log.Named("queue"), wake: make(chan struct{}, 1),
		adopt: make(chan struct{}, 1), blocked: map[watch.JobKey]time.Time{}, toAdopt: map[watch.JobKey]bool{}, adopted: map[watch.JobKey]bool{},
		removed: map[watch.JobKey]bool{}, signature: map[watch.JobKey]signed{},
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{Name: "heteroflow_queue_waiting_jobs", Help: "Jobs that waited for room when the queue was last worked."}),
		round: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "heteroflow_queue_round_seconds", Help: "Time to try all waiting jobs once.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}),
	}
}

// Collectors are the metrics of the queue.
func (q *Queue) Collectors() []prometheus.Collector {
	return []prometheus.Collector{q.waiting, q.round}
}

// Wake has the queue worked soon.
func (q *Queue) Wake() { signal(q.wake) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// WakeAt has the queue worked at a moment.
func (q *Queue) WakeAt(at time.Time) {
	q.mu.Lock()
	q.due = append(q.due, at)
	q.mu.Unlock()
}

// Blocked notes that Nomad could not place all of a job.
func (q *Queue) Blocked(job watch.JobKey) {
	q.mu.Lock()
	_, known := q.blocked[job]
	if !known {
		q.blocked[job] = q.clock.Now().Add(grace)
	}
	q.mu.Unlock()
	if !known {
		q.Wake() // it may sleep past the moment when this is due
	}
}

// Adopt notes that a job holds devices.
func (q *Queue) Adopt(job watch.JobKey) {
	q.mu.Lock()
	known := q.adopted[job]
	if !known {
		q.adopted[job], q.toAdopt[job] = true, true
	}
	q.mu.Unlock()
	if !known {
		signal(q.adopt)
	}
}

// Removed notes that a job was stopped in Nomad.
func (q *Queue) Removed(job watch.JobKey) {
	q.mu.Lock()
	q.removed[job] = true
	delete(q.adopted, job)
	delete(q.blocked, job)
	q.mu.Unlock()
	q.Wake()
}

// Run works the queue until the context ends.
func (q *Queue) Run(ctx context.Context) error {
	last, next := time.Duration(0), q.clock.Now().Add(Tick) // the last pause after trouble, and when to look anyway
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-q.wake:
		case <-q.adopt:
			if last == 0 && q.workAdopted(ctx) == nil {
				continue
			} // else it is tried again with the rest
		case <-q.clock.After(min(next.Sub(q.clock.Now()), q.untilDue())):
		}
		q.forgetDue()
		pause := Tick
		if err := q.Work(ctx); err == nil || ctx.Err() != nil {
			last = 0
		} else {
			last = min(max(2*last, 250*time.Millisecond), 15*time.Second)
			pause = last
			q.log.Warn("queue interrupted", "error", err, "retry_in", pause)
		}
		next = q.clock.Now().Add(pause)
	}
}

// forgetDue drops the moments that have come.
func (q *Queue) forgetDue() {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.clock.Now()
	q.due = slices.DeleteFunc(q.due, func(at time.Time) bool { return !at.After(now) })
}

// untilDue is the time until a moment that was named comes or the next blocked job is due.
func (q *Queue) untilDue() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	wait := Tick
	for _, at := range q.blocked {
		wait = min(wait, max(at.Sub(q.clock.Now()), 10*time.Millisecond))
	}
	for _, at := range q.due {
		wait = min(wait, max(at.Sub(q.clock.Now()), 0))
	}
	return wait
}
