package queue

import (
	"context"
	"errors"

	"github.com/heteroflow/heteroflow/placement-service/watch"
)

// Work goes through everything once. An error means that a part that is needed is away.
func (q *Queue) Work(ctx context.Context) error {
	began := q.clock.Now()
	err := errors.Join(q.workRemoved(ctx), q.workAdopted(ctx), q.workUnsent(ctx))
	err = errors.Join(err, q.submit.Evict(ctx), q.workWaiting(ctx), q.submit.Evict(ctx), q.workBlocked(ctx), q.submit.Resize(ctx)) // twice: who got room lets go of who made it
	q.round.Observe(q.clock.Now().Sub(began).Seconds())
	return err
}

// workUnsent sends the jobs that have room and did not reach Nomad.
func (q *Queue) workUnsent(ctx context.Context) error {
	jobs, err := q.jobs.UnsentJobs(ctx, batch)
	if err != nil {
		return err
	}
	for _, job := range jobs {
		if _, err := q.retry(ctx, watch.JobKey{Namespace: job.Namespace, ID: job.ID}); err != nil {
			return err
		}
	}
	return nil
}

// retry tries one job. One that cannot be tried at all does not keep the others waiting.
func (q *Queue) retry(ctx context.Context, key watch.JobKey) (done bool, err error) {
	done, err = q.submit.Retry(ctx, key)
	if err != nil && done {
		q.log.Error("job cannot be tried: stop it and submit it again", "namespace", key.Namespace, "job_id", key.ID, "error", err)
		return true, nil
	}
	return done, err
}

// workWaiting tries each waiting job. Of jobs that ask for the same, those behind one that did not fit are not
// tried: they cannot fit either.
func (q *Queue) workWaiting(ctx context.Context) error {
	jobs, err := q.jobs.WaitingJobs(ctx, batch)
	if err != nil {
		return err
	}
	q.waiting.Set(float64(len(jobs)))
	signatures := make(map[watch.JobKey]signed, len(jobs))
	refused := map[string]bool{}
	for _, job := range jobs {
		key := watch.JobKey{Namespace: job.Namespace, ID: job.ID}
		sign, ok := q.signature[key]
		if !ok || sign.version != job.Version {
			text, err := q.submit.Signature(job)
			if err != nil {
				q.log.Error("waiting job cannot be read", "namespace", job.Namespace, "job_id", job.ID, "error", err)
				continue
			}
			sign = signed{version: job.Version, text: text}
		}
		signatures[key] = sign
		if refused[sign.text] && job.ReasonCode != "" {
			continue
		}
		done, err := q.retry(ctx, key)
		if err != nil {
			return err
		}
		if !done {
			refused[sign.text] = true
		}
	}
	q.signature = signatures
	return nil
}

func (q *Queue) workBlocked(ctx context.Context) error {
	q.mu.Lock()
	var due []watch.JobKey
	for job, at := range q.blocked {
		if !q.clock.Now().Before(at) {
			due = append(due, job)
		}
	}
	q.mu.Unlock()
	for _, job := range due {
		done, err := q.submit.Replace(ctx, job)
		q.mu.Lock()
		if done {
			delete(q.blocked, job)
		} else if _, still := q.blocked[job]; still {
			q.blocked[job] = q.clock.Now().Add(blockedPause)
		}
		q.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

func (q *Queue) workAdopted(ctx context.Context) error {
	return q.each(ctx, q.toAdopt, q.submit.Adopt)
}

func (q *Queue) workRemoved(ctx context.Context) error {
	return q.each(ctx, q.removed, q.submit.Removed)
}

// each calls do for every job of the set and takes those out that went well.
func (q *Queue) each(ctx context.Context, set map[watch.JobKey]bool, do func(context.Context, watch.JobKey) error) error {
	q.mu.Lock()
	jobs := make([]watch.JobKey, 0, len(set))
	for job := range set {
		jobs = append(jobs, job)
		delete(set, job)
	}
	q.mu.Unlock()
	var failed []error
	for _, job := range jobs {
		if err := do(ctx, job); err != nil {
			failed = append(failed, err)
			q.mu.Lock()
			set[job] = true
			q.mu.Unlock()
		}
	}
	return errors.Join(failed...)
}
