package core

import (
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/embedded/scheduler"
	"github.com/heteroflow/heteroflow/internal/embedded/state"
	"github.com/heteroflow/heteroflow/internal/jobdiff"
)

// Plan says what registering a job would do, and changes nothing.
func (c *Core) Plan(req *api.JobPlanRequest) (*api.JobPlanResponse, error) {
	j := req.Job
	if err := c.admit(j); err != nil {
		return nil, err
	}
	out := &api.JobPlanResponse{Warnings: warnings(j)}
	var failure error
	c.store.View(func(r state.Reader) {
		old := r.Job(*j.Namespace, *j.ID)
		if failure = transition(old, j); failure != nil {
			return
		}
		next := *j
		next.CreateIndex, next.JobModifyIndex, next.ModifyIndex = new(r.Index()+1), new(r.Index()+1), new(r.Index()+1)
		next.Stop = new(false)
		if old != nil {
			out.JobModifyIndex = *old.JobModifyIndex
			next.CreateIndex, next.Version = old.CreateIndex, new(*old.Version+1)
			if !*old.Stop && !scheduler.SpecChanged(old, &next) {
				next = *old
			}
		}
		e := c.evaluation(&next, byRegister)
		var plan scheduler.Plan
		if next.IsPeriodic() || next.IsParameterized() {
			plan.Updates = map[string]*api.DesiredUpdates{}
			if next.IsPeriodic() {
				out.NextPeriodicLaunch, failure = nextLaunch(&next, c.now())
			}
		} else {
			plan = scheduler.Schedule(c.input(r, e, &next))
		}
		out.Annotations = &api.PlanAnnotations{DesiredTGUpdates: plan.Updates}
		out.FailedTGAllocs = plan.Failed
		out.CreatedEvals = plan.Followups
		if req.Diff {
			out.Diff = jobdiff.Diff(old, &next)
			jobdiff.Annotate(out.Diff, plan.Updates)
		}
	})
	return out, failure
}

func nextLaunch(j *api.Job, after time.Time) (time.Time, error) {
	if j.Periodic == nil || (j.Periodic.Enabled != nil && !*j.Periodic.Enabled) {
		return time.Time{}, nil
	}
	at := after
	if zone, err := j.Periodic.GetLocation(); err == nil {
		at = after.In(zone)
	}
	next, err := j.Periodic.Next(at)
	if err != nil {
		return time.Time{}, Invalid("failed to determine next launch time of periodic job %q: %s", *j.ID, err)
	}
	return next.UTC(), nil
}
