package core

import (
	"context"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/embedded/state"
)

// How long what is over is kept, and how often that is looked at. Source: Nomad's defaults.
const (
	collectEvery = 5 * time.Minute
	evalKept     = time.Hour
	jobKept      = 4 * time.Hour
)

// collect forgets what is over, from time to time.
func (c *Core) collect(ctx context.Context) error {
	for clock.Sleep(ctx, c.clock, collectEvery) {
		if err := c.Collect(false); err != nil {
			return err
		}
	}
	return nil
}

// Collect forgets evaluations, allocations, deployments and dead jobs that have been over for long, or all that are
// over when force is set.
func (c *Core) Collect(force bool) error {
	return c.store.Update(func(tx *state.Tx) error {
		now := c.now()
		old := func(nano int64, kept time.Duration) bool { return force || now.Sub(time.Unix(0, nano)) > kept }
		for _, j := range tx.Jobs("*") {
			if *j.Status == "dead" && (*j.Stop || *j.Type == api.JobTypeBatch || *j.Type == api.JobTypeSysbatch) && c.idle(tx, j) && old(lastChange(tx, j), jobKept) {
				c.forgetJob(tx, j)
			}
		}
		for _, a := range tx.Allocs() {
			if !state.Ended(a) || !old(a.ModifyTime, evalKept) {
				continue
			}
			j := tx.Job(a.Namespace, a.JobID)
			// What a batch job has done counts for it as long as it is there.
			if j == nil || a.DesiredStatus != api.AllocDesiredStatusRun {
				tx.DeleteAlloc(a)
			}
		}
		for _, e := range tx.Evals() {
			over := e.Status != api.EvalStatusPending && e.Status != api.EvalStatusBlocked
			if over && old(e.ModifyTime, evalKept) && len(tx.AllocsByEval(e.ID)) == 0 {
				tx.DeleteEval(e.ID)
			}
		}
		c.collectPurged(tx)
		return nil
	})
}

// collectPurged forgets what is left of jobs that are no longer there: deployments, and versions that no allocation
// refers to.
func (c *Core) collectPurged(tx *state.Tx) {
	for _, d := range tx.Deployments() {
		if tx.Job(d.Namespace, d.JobID) == nil && !ActiveDeployment(d) {
			tx.DeleteDeployment(d.ID)
		}
	}
	running := map[uint64]bool{} // indexes at which versions were registered: each is the version of one job
	for _, a := range tx.Allocs() {
		running[*a.Job.JobModifyIndex] = true
	}
	for _, v := range tx.AllVersions() {
		current := tx.Job(*v.Namespace, *v.ID)
		gone := current == nil || *current.CreateIndex != *v.CreateIndex
		if gone && !running[*v.JobModifyIndex] {
			tx.DropVersion(v)
		}
	}
}

// idle reports whether nothing of a job holds anything any more.
func (c *Core) idle(tx *state.Tx, j *api.Job) bool {
	for _, a := range tx.AllocsByJob(*j.Namespace, *j.ID) {
		if !state.Ended(a) {
			return false
		}
	}
	return len(tx.Children(*j.Namespace, *j.ID)) == 0
}

func lastChange(tx *state.Tx, j *api.Job) int64 {
	last := *j.SubmitTime
	for _, e := range tx.EvalsByJob(*j.Namespace, *j.ID) {
		last = max(last, e.ModifyTime)
	}
	for _, a := range tx.AllocsByJob(*j.Namespace, *j.ID) {
		last = max(last, a.ModifyTime)
	}
	return last
}

func (c *Core) forgetJob(tx *state.Tx, j *api.Job) {
	for _, a := range tx.AllocsByJob(*j.Namespace, *j.ID) {
		tx.DeleteAlloc(a)
	}
	for _, e := range tx.EvalsByJob(*j.Namespace, *j.ID) {
		tx.DeleteEval(e.ID)
	}
	for _, d := range tx.DeploymentsByJob(*j.Namespace, *j.ID) {
		tx.DeleteDeployment(d.ID)
	}
	for _, v := range tx.Versions(*j.Namespace, *j.ID) {
		tx.DropVersion(v)
	}
	tx.PurgeJob(j)
}
