package watch

import (
	"context"
	"sync"
	"time"
)

// A purge takes a job's allocations out of Nomad without an event that says so. Departures are the jobs that were
// deregistered and whose allocations are looked for until none is left.
type departures struct {
	mu   sync.Mutex
	jobs map[JobKey]departure
	kick chan struct{}
}

type departure struct {
	next, until time.Time
	pause       time.Duration
}

const (
	departFirst = 100 * time.Millisecond
	departMost  = 5 * time.Second
	departFor   = 5 * time.Minute // what is still there then is the reconciliation's
)

func newDepartures() *departures {
	return &departures{jobs: map[JobKey]departure{}, kick: make(chan struct{}, 1)}
}

// add has a job's allocations looked for.
func (d *departures) add(job JobKey, now time.Time) {
	d.mu.Lock()
	d.jobs[job] = departure{next: now.Add(departFirst), until: now.Add(departFor), pause: departFirst}
	d.mu.Unlock()
	select {
	case d.kick <- struct{}{}:
	default:
	}
}

// due are the jobs to look at now, and the time until the next one.
func (d *departures) due(now time.Time) (jobs []JobKey, wait time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	wait = Reconcile
	for job, at := range d.jobs {
		if now.Before(at.next) {
			wait = min(wait, at.next.Sub(now))
			continue
		}
		jobs = append(jobs, job)
	}
	return jobs, wait
}

// looked notes the result of a look: the job is forgotten when nothing of it is left.
func (d *departures) looked(job JobKey, left bool, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	at, ok := d.jobs[job]
	if !ok {
		return
	}
	if !left || now.After(at.until) {
		delete(d.jobs, job)
		return
	}
	at.pause = min(2*at.pause, departMost)
	at.next = now.Add(at.pause)
	d.jobs[job] = at
}

func (w *Watcher) departLoop(ctx context.Context) error {
	for {
		jobs, wait := w.departed.due(w.Clock.Now())
		for _, job := range jobs {
			left, err := w.lookFor(ctx, job)
			if err != nil && ctx.Err() == nil {
				w.log.Debug("allocations of a job that was taken out are not known", "namespace", job.Namespace, "job_id", job.ID, "error", err)
			}
			w.departed.looked(job, left || err != nil, w.Clock.Now())
		}
		if len(jobs) > 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-w.departed.kick:
		case <-w.Clock.After(wait):
		}
	}
}

// lookFor asks Nomad for each allocation of the job that is live here, forgets those it does not have any more, and
// reports whether any is left.
func (w *Watcher) lookFor(ctx context.Context, job JobKey) (left bool, err error) {
	for _, known := range w.World.LiveAllocs(job) {
		now, err := w.askFor(ctx, job, known.ID)
		if err != nil {
			return true, err
		}
		switch {
		case now == nil:
			w.World.forget(known.ID, w.Clock.Now())
			w.Settle(job)
		case now.Live():
			left = true
		default:
			w.Settle(job)
		}
	}
	return left, nil
}

// forget drops an allocation that Nomad does not have any more.
func (w *World) forget(id string, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := w.allocs[id]
	if a == nil {
		return
	}
	delete(w.allocs, id)
	delete(w.failed[a.Job], id)
	drop(w.jobs, a.Job, a)
	drop(w.byNode, a.NodeID, a)
	w.recount(a.NodeID)
	w.touch(now)
}
