package core

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/embedded/scheduler"
	"github.com/heteroflow/heteroflow/internal/embedded/state"
)

// watchDeployments follows the health of what deployments placed.
func (c *Core) watchDeployments(ctx context.Context) error {
	for {
		var next time.Time
		var active []string
		c.store.View(func(r state.Reader) {
			for _, d := range r.DeploymentsByStatus("running") {
				active = append(active, d.ID)
			}
		})
		for _, id := range active {
			at, err := c.checkDeployment(id)
			if err != nil {
				return err
			}
			if !at.IsZero() && (next.IsZero() || at.Before(next)) {
				next = at
			}
		}
		if !c.await(ctx, next, c.deploy) {
			return nil
		}
	}
}

// checkDeployment brings one deployment up to date and returns when it is to show progress.
func (c *Core) checkDeployment(id string) (progressBy time.Time, err error) {
	err = c.store.Update(func(tx *state.Tx) error {
		old := tx.Deployment(id)
		if old == nil || old.Status != "running" {
			return nil
		}
		d, progressed, healthy, unhealthy := c.count(tx, old)
		j := tx.Job(d.Namespace, d.JobID)
		late := false
		for _, g := range d.TaskGroups {
			waiting := g.HealthyAllocs < g.DesiredTotal && g.ProgressDeadline > 0
			late = late || waiting && !g.RequireProgressBy.After(c.now())
			late = late || g.ProgressDeadline == 0 && unhealthy
			if waiting && (progressBy.IsZero() || g.RequireProgressBy.Before(progressBy)) {
				progressBy = g.RequireProgressBy
			}
		}
		switch {
		case healthy:
			d.Status, d.StatusDescription = "successful", "Deployment completed successfully"
			c.markStable(tx, j, d)
		case late:
			d.Status, d.StatusDescription = "failed", "Failed due to progress deadline"
			if progressBy.IsZero() {
				d.StatusDescription = "Failed due to unhealthy allocations"
			}
			progressBy = time.Time{}
			c.revertFailed(tx, j, d)
		case !progressed:
			return nil
		}
		d.ModifyTime = c.now().UnixNano()
		tx.PutDeployment(d)
		if j != nil && !*j.Stop && d.JobVersion == *j.Version {
			e := c.evaluation(j, byDeployment)
			e.DeploymentID = d.ID
			tx.PutEval(e)
		}
		return nil
	})
	return progressBy, err
}

// count reads the health of a deployment's allocations.
func (c *Core) count(tx *state.Tx, old *api.Deployment) (d *api.Deployment, progressed, healthy, unhealthy bool) {
	next := *old
	next.TaskGroups = map[string]*api.DeploymentState{}
	for name, g := range old.TaskGroups {
		fresh := *g
		fresh.HealthyAllocs, fresh.UnhealthyAllocs = 0, 0
		next.TaskGroups[name] = &fresh
	}
	for _, a := range tx.AllocsByDeployment(old.ID) {
		g := next.TaskGroups[a.TaskGroup]
		if g == nil || a.DeploymentStatus == nil || a.DeploymentStatus.Healthy == nil {
			continue
		}
		if *a.DeploymentStatus.Healthy {
			g.HealthyAllocs++
		} else {
			g.UnhealthyAllocs++
			unhealthy = true
		}
	}
	healthy = true
	for name, g := range next.TaskGroups {
		before := old.TaskGroups[name]
		if g.HealthyAllocs > before.HealthyAllocs {
			g.RequireProgressBy = c.now().Add(g.ProgressDeadline)
		}
		progressed = progressed || g.HealthyAllocs != before.HealthyAllocs || g.UnhealthyAllocs != before.UnhealthyAllocs
		healthy = healthy && g.HealthyAllocs >= g.DesiredTotal
	}
	return &next, progressed, healthy, unhealthy
}

func (c *Core) markStable(tx *state.Tx, j *api.Job, d *api.Deployment) {
	if j == nil || *j.Version != d.JobVersion || *j.CreateIndex != d.JobCreateIndex {
		return
	}
	next := *j
	next.Stable = new(true)
	tx.UpdateJob(&next, "")
	tx.PutVersion(&next)
}

// revertFailed goes back to the last stable version where a group of a failed deployment asks for that.
func (c *Core) revertFailed(tx *state.Tx, j *api.Job, d *api.Deployment) {
	wanted := false
	for _, g := range d.TaskGroups {
		wanted = wanted || g.AutoRevert
	}
	if !wanted || j == nil || *j.Version != d.JobVersion {
		return
	}
	for _, v := range tx.Versions(d.Namespace, d.JobID) {
		if *v.Version >= d.JobVersion || !*v.Stable {
			continue
		}
		if !scheduler.SpecChanged(v, j) {
			d.StatusDescription += fmt.Sprintf(" - not rolling back to stable job version %d as current job has same specification", *v.Version)
			return
		}
		d.StatusDescription += fmt.Sprintf(" - rolling back to job version %d", *v.Version)
		next := *v
		next.Version, next.Stable, next.SubmitTime = new(*j.Version+1), new(false), new(c.now().UnixNano())
		tx.RegisterJob(&next)
		tx.PutEval(c.evaluation(&next, byDeployment))
		return
	}
	d.StatusDescription += " - no stable job version to auto revert to"
}

// SetDeployment changes a deployment's status by hand: fail, pause or resume.
func (c *Core) SetDeployment(id, status, description string) (eval string, index uint64, err error) {
	err = c.store.Update(func(tx *state.Tx) error {
		old := tx.Deployment(id)
		if old == nil {
			return NotFound("deployment not found")
		}
		if !scheduler.ActiveDeployment(old) {
			return Invalid("can't change terminal deployment")
		}
		d := *old
		d.TaskGroups = maps.Clone(old.TaskGroups)
		d.Status, d.StatusDescription, d.ModifyTime = status, description, c.now().UnixNano()
		tx.PutDeployment(&d)
		if j := tx.Job(d.Namespace, d.JobID); j != nil && !*j.Stop {
			e := c.evaluation(j, byDeployment)
			e.DeploymentID = d.ID
			tx.PutEval(e)
			eval = e.ID
		}
		index = tx.Index
		return nil
	})
	return eval, index, err
}
