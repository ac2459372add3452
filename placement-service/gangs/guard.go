package gangs

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/heteroflow/heteroflow/placement-service/watch"
)

const (
	// calm is how long after a member has ended a gang is looked at: of a job that is stopped or changed all members end, one
	// after the other, and none of them is lost.
	calm = 500 * time.Millisecond
	// sweeps is how often all gangs are looked at, whatever was heard of them.
	sweeps = time.Minute
	// lookAgain is the pause after a look that failed.
	lookAgain = 5 * time.Second
)

// Ended has a gang looked at soon, since an allocation of the job has ended. Jobs that are none may be named too.
func (r *Room) Ended(job watch.JobKey) {
	r.lookAt(job, r.Clock.Now().Add(calm))
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

func (r *Room) lookAt(job watch.JobKey, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if before, there := r.due[job]; !there || at.Before(before) {
		r.due[job] = at
	}
}

// Run watches the gangs that have begun until the context ends: what is to become of one that has lost a member is done also
// when none of its members comes to ask. It goes on where an earlier process of the service left off.
func (r *Room) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-r.Cluster.Ready():
	}
	swept := r.Clock.Now()
	r.sweep(ctx, true)
	for {
		if now := r.Clock.Now(); now.Sub(swept) >= sweeps {
			swept = now
			r.sweep(ctx, false)
		}
		r.lookAtDue(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-r.kick:
		case <-r.Clock.After(min(r.untilDue(), swept.Add(sweeps).Sub(r.Clock.Now()))):
		}
	}
}

// sweep has all gangs looked at. At first members are called back of whom an earlier process did not get to it: to be
// called twice does them no harm at the start.
func (r *Room) sweep(ctx context.Context, first bool) {
	gangs, err := r.Store.StartedGangs(ctx)
	if err != nil {
		if ctx.Err() == nil {
			r.log.Warn("gangs not listed", "error", err)
		}
		return
	}
	for _, g := range gangs {
		job := watch.JobKey{Namespace: g.Namespace, ID: g.JobID}
		r.lookAt(job, r.Clock.Now())
		if !first {
			continue
		}
		rows, err := r.Store.GangMembers(ctx, job.Namespace, job.ID)
		if err != nil {
			r.log.Warn("members of a gang not listed", "job_id", job.ID, "error", err)
		}
		for _, row := range rows {
			if row.Attempt < 0 {
				r.restart(ctx, job, row.AllocID)
			}
		}
	}
}

func (r *Room) lookAtDue(ctx context.Context) {
	now := r.Clock.Now()
	r.mu.Lock()
	var jobs []watch.JobKey
	for job, at := range r.due {
		if !now.Before(at) {
			jobs = append(jobs, job)
			delete(r.due, job)
		}
	}
	r.mu.Unlock()
	for _, job := range jobs {
		short, err := r.guard(ctx, job)
		switch {
		case err != nil && ctx.Err() == nil:
			r.log.Warn("gang not looked at", "namespace", job.Namespace, "job_id", job.ID, "error", err)
			r.lookAt(job, now.Add(lookAgain))
		case short:
			r.lookAt(job, now.Add(settles))
		}
	}
}

func (r *Room) untilDue() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	wait, now := sweeps, r.Clock.Now()
	for _, at := range r.due {
		wait = min(wait, max(0, at.Sub(now)))
	}
	return wait
}

// guard does what is due of a gang, as its members would. It reports whether it is short of members that may or may not
// come.
func (r *Room) guard(ctx context.Context, job watch.JobKey) (short bool, err error) {
	m := r.enter(job)
	defer r.leave(job, m)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := r.read(ctx, m, job, r.Clock.Now()); err != nil || len(m.rows) == 0 {
		return false, err
	}
	var last Said // of whoever was heard of last: what the gang is may have changed since it began
	var seen time.Time
	for _, row := range m.rows {
		if row.SeenAt.Before(seen) {
			continue
		}
		seen, last = row.SeenAt, Said{}
		if err := json.Unmarshal(row.Body, &last); err != nil {
			return false, fmt.Errorf("read member %s of gang %s: %w", row.AllocID, job.ID, err)
		}
	}
	if last.Gang.Check() != nil {
		return false, nil // noted by a version of the service that did not keep it: its members see to it
	}
	s, err := r.scene(ctx, m, job, last.Gang)
	if err != nil {
		return false, err
	}
	if s.over() && r.Cluster.Stale(s.now) == "" {
		return false, r.Store.ForgetGang(ctx, job.Namespace, job.ID)
	}
	if _, err := r.do(ctx, m, visitor{job: job, gang: last.Gang}, s, next(s)); err != nil {
		return false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	_, short = r.missing[job]
	return short, nil
}
