package core

import (
	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/embedded/scheduler"
	"github.com/heteroflow/heteroflow/internal/embedded/state"
)

// Summary counts a job's allocations by what their nodes say of them.
func Summary(r state.Reader, j *api.Job) *api.JobSummary {
	ns, id := *j.Namespace, *j.ID
	s := &api.JobSummary{
		JobID: id, Namespace: ns, Summary: map[string]api.TaskGroupSummary{}, Children: &api.JobChildrenSummary{},
		CreateIndex: *j.CreateIndex,
		ModifyIndex: max(*j.ModifyIndex, r.TableIndex("allocs", state.JobKey(ns, id)), r.TableIndex("evals", state.JobKey(ns, id))),
	}
	queued := map[string]int{}
	for _, e := range r.EvalsByJob(ns, id) { // newest first
		if e.Status == api.EvalStatusComplete || e.Status == api.EvalStatusBlocked {
			queued = e.QueuedAllocations
			break
		}
	}
	for _, g := range j.TaskGroups {
		s.Summary[*g.Name] = api.TaskGroupSummary{Queued: queued[*g.Name]}
	}
	for _, a := range r.AllocsByJob(ns, id) {
		if *a.Job.CreateIndex != *j.CreateIndex {
			continue
		}
		g := s.Summary[a.TaskGroup]
		switch a.ClientStatus {
		case api.AllocClientStatusPending:
			g.Starting++
		case api.AllocClientStatusRunning:
			g.Running++
		case api.AllocClientStatusComplete:
			g.Complete++
		case api.AllocClientStatusFailed:
			g.Failed++
		case api.AllocClientStatusLost:
			g.Lost++
		default:
			g.Unknown++
		}
		s.Summary[a.TaskGroup] = g
	}
	for _, child := range r.Children(ns, id) {
		switch *child.Status {
		case "pending":
			s.Children.Pending++
		case "running":
			s.Children.Running++
		default:
			s.Children.Dead++
		}
	}
	return s
}

// ScaleStatus says how many allocations of each group are wanted and how many there are.
func ScaleStatus(r state.Reader, j *api.Job) *api.JobScaleStatusResponse {
	ns, id := *j.Namespace, *j.ID
	out := &api.JobScaleStatusResponse{
		JobID: id, Namespace: ns, JobCreateIndex: *j.CreateIndex, JobModifyIndex: *j.JobModifyIndex, JobStopped: *j.Stop,
		TaskGroups: map[string]api.TaskGroupScaleStatus{},
	}
	for _, g := range j.TaskGroups {
		s := api.TaskGroupScaleStatus{Desired: *g.Count, Events: r.ScaleEvents(ns, id, *g.Name)}
		for _, a := range r.AllocsByJob(ns, id) {
			if a.TaskGroup != *g.Name || a.DesiredStatus != api.AllocDesiredStatusRun || state.Ended(a) {
				continue
			}
			s.Placed++
			if a.ClientStatus == api.AllocClientStatusRunning {
				s.Running++
			}
			if d := a.DeploymentStatus; d != nil && d.Healthy != nil {
				if *d.Healthy {
					s.Healthy++
				} else {
					s.Unhealthy++
				}
			}
		}
		out.TaskGroups[*g.Name] = s
	}
	return out
}

// ActiveDeployment reports whether a deployment is not over.
func ActiveDeployment(d *api.Deployment) bool { return scheduler.ActiveDeployment(d) }
