package scheduler

import (
	"maps"

	"github.com/hashicorp/nomad/api"
)

// current reports whether a deployment is that of the job's version.
func (r *run) current(d *api.Deployment) bool {
	return d != nil && d.JobVersion == *r.Job.Version && d.JobCreateIndex == *r.Job.CreateIndex
}

// ActiveDeployment reports whether a deployment is not over.
func ActiveDeployment(d *api.Deployment) bool {
	return d != nil && (d.Status == "running" || d.Status == "paused" || d.Status == "pending")
}

// rolling is a group's update strategy, nil when its allocations change all at once and nobody waits for health.
func (r *run) rolling(g *api.TaskGroup) *api.UpdateStrategy {
	if *r.Job.Type != api.JobTypeService || g.Update == nil || value(g.Update.MaxParallel) == 0 {
		return nil
	}
	return g.Update
}

// parallel is how many allocations of a group may be replaced now.
func (r *run) parallel(g *api.TaskGroup) int {
	u := r.rolling(g)
	if u == nil {
		return *g.Count + len(r.Allocs)
	}
	if !r.current(r.Deployment) {
		return value(u.MaxParallel)
	}
	if r.Deployment.Status != "running" && r.Deployment.Status != "successful" {
		return 0
	}
	open := 0
	for _, a := range r.Allocs {
		if a.TaskGroup != *g.Name || a.DeploymentID != r.Deployment.ID || a.DesiredStatus != api.AllocDesiredStatusRun || ended(a) {
			continue
		}
		if a.DeploymentStatus == nil || !isTrue(a.DeploymentStatus.Healthy) {
			open++
		}
	}
	return max(0, value(u.MaxParallel)-open)
}

// track starts the deployment of a version when the group changes with it.
func (r *run) track(g *api.TaskGroup, allocs, destructive []*api.Allocation) {
	u := r.rolling(g)
	if u == nil || *g.Count == 0 {
		return
	}
	if r.current(r.Deployment) {
		if ActiveDeployment(r.Deployment) {
			r.adopt(g)
		}
		return
	}
	had, inPlace := false, false
	for _, a := range allocs {
		had = had || sameVersion(a, r.Job)
	}
	for _, a := range r.plan.InPlace {
		inPlace = inPlace || a.TaskGroup == *g.Name
	}
	if had && len(destructive) == 0 && !inPlace {
		return
	}
	d := r.plan.Deployment
	if d == nil {
		d = &api.Deployment{
			ID: r.NewID(), Namespace: *r.Job.Namespace, JobID: *r.Job.ID, JobVersion: *r.Job.Version,
			JobModifyIndex: *r.Job.ModifyIndex, JobSpecModifyIndex: *r.Job.JobModifyIndex, JobCreateIndex: *r.Job.CreateIndex,
			Status: "running", StatusDescription: "Deployment is running", TaskGroups: map[string]*api.DeploymentState{},
			CreateTime: r.Now.UnixNano(), ModifyTime: r.Now.UnixNano(),
		}
		r.plan.Deployment = d
	}
	deadline := value(u.ProgressDeadline)
	d.TaskGroups[*g.Name] = &api.DeploymentState{
		AutoRevert: value(u.AutoRevert), ProgressDeadline: deadline, RequireProgressBy: r.Now.Add(deadline), DesiredTotal: *g.Count,
	}
	r.adopt(g)
}

// adopt gives the allocations that changed in place to the deployment. What ran well before runs well after: nothing
// of it was restarted.
func (r *run) adopt(g *api.TaskGroup) {
	d := r.deployment(g)
	if d == nil {
		return
	}
	for _, a := range r.plan.InPlace {
		if a.TaskGroup != *g.Name {
			continue
		}
		healthy := a.ClientStatus == api.AllocClientStatusRunning &&
			(a.DeploymentStatus == nil || a.DeploymentStatus.Healthy == nil || *a.DeploymentStatus.Healthy)
		a.DeploymentID, a.DeploymentStatus = d.ID, nil
		if healthy {
			a.DeploymentStatus = &api.AllocDeploymentStatus{Healthy: new(true), Timestamp: r.Now}
		}
		r.placedIn(g)
	}
}

// deployment is the deployment that new allocations of a group belong to, nil without one.
func (r *run) deployment(g *api.TaskGroup) *api.Deployment {
	d := r.plan.Deployment
	if d == nil && r.current(r.Deployment) && ActiveDeployment(r.Deployment) {
		d = r.Deployment
	}
	if d == nil || d.TaskGroups[*g.Name] == nil {
		return nil
	}
	return d
}

// placedIn counts one more allocation into the group's deployment.
func (r *run) placedIn(g *api.TaskGroup) {
	if r.plan.Deployment == nil {
		next := *r.Deployment
		next.TaskGroups = maps.Clone(next.TaskGroups)
		r.plan.Deployment = &next
	}
	state := *r.plan.Deployment.TaskGroups[*g.Name]
	state.PlacedAllocs++
	r.plan.Deployment.TaskGroups[*g.Name] = &state
}
