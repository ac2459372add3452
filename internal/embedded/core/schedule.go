package core

import (
	"context"
	"encoding/json"
	"maps"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/embedded/scheduler"
	"github.com/heteroflow/heteroflow/internal/embedded/state"
)

// Reasons for an evaluation, as Nomad names them.
const (
	byRegister   = "job-register"
	byDeregister = "job-deregister"
	byScaling    = "job-scaling"
	byPeriodic   = "periodic-job"
	byNode       = "node-update"
	byDrain      = "node-drain"
	byStop       = "alloc-stop"
	byFailure    = "alloc-failure"
	byDeployment = "deployment-watcher"
	byQueued     = "queued-allocs"
)

// schedule works on evaluations, one after another: so no two ever plan with the same room.
func (c *Core) schedule(ctx context.Context) error {
	for {
		next, err := c.drainQueue(ctx)
		if err != nil {
			return err
		}
		if !c.await(ctx, next, c.wake) {
			return nil
		}
	}
}

// drainQueue works on everything that is due and returns when the next delayed evaluation is.
func (c *Core) drainQueue(ctx context.Context) (time.Time, error) {
	for {
		c.mu.Lock()
		freed := c.freed
		c.freed = false
		c.mu.Unlock()
		var due []string
		var next time.Time
		c.store.View(func(r state.Reader) {
			for _, e := range r.EvalsByStatus(api.EvalStatusPending) {
				if e.WaitUntil.After(c.now()) {
					if next.IsZero() || e.WaitUntil.Before(next) {
						next = e.WaitUntil
					}
					continue
				}
				due = append(due, e.ID)
			}
			if freed {
				for _, e := range r.EvalsByStatus(api.EvalStatusBlocked) {
					due = append(due, e.ID)
				}
			}
		})
		if len(due) == 0 {
			return next, nil
		}
		for _, id := range due {
			if ctx.Err() != nil {
				return next, nil
			}
			if err := c.process(id); err != nil {
				return next, err
			}
		}
	}
}

// input reads what a decision depends on.
func (c *Core) input(r state.Reader, e *api.Evaluation, j *api.Job) scheduler.Input {
	cfg, _ := c.SchedulerConfig()
	in := scheduler.Input{
		Now: c.now(), Eval: e, Job: j, Allocs: r.AllocsByJob(e.Namespace, e.JobID), Nodes: r.Nodes(), AllocsByNode: r.AllocsByNode,
		Rand: c.fork(), NewID: c.NewID, Spread: cfg.SchedulerAlgorithm == api.SchedulerAlgorithmSpread, Node: r.Node,
	}
	if deployments := r.DeploymentsByJob(e.Namespace, e.JobID); len(deployments) > 0 {
		in.Deployment = deployments[0]
	}
	return in
}

// process works on one evaluation. A fault in it costs the evaluation, not the engine.
func (c *Core) process(id string) (err error) {
	defer func() {
		if p := recover(); p != nil {
			c.log.Error("evaluation failed", "eval_id", id, "panic", p)
			err = c.fail(id)
		}
	}()
	return c.store.Update(func(tx *state.Tx) error {
		old := tx.Eval(id)
		if old == nil || (old.Status != api.EvalStatusPending && old.Status != api.EvalStatusBlocked) {
			return nil
		}
		e := *old
		in := c.input(tx.Reader, &e, tx.Job(e.Namespace, e.JobID))
		plan := scheduler.Schedule(in)
		if e.Status == api.EvalStatusBlocked && plan.Empty() && sameFailure(e.FailedTGAllocs, plan.Failed) {
			return nil // nothing new: it goes on waiting
		}
		c.apply(tx, in, &plan)
		c.finish(tx, in, &e, &plan)
		return nil
	})
}

func (c *Core) fail(id string) error {
	return c.store.Update(func(tx *state.Tx) error {
		old := tx.Eval(id)
		if old == nil {
			return nil
		}
		e := *old
		e.Status, e.StatusDescription, e.ModifyTime = api.EvalStatusFailed, "the scheduler failed on it: the engine's log has the reason", c.now().UnixNano()
		tx.PutEval(&e)
		return nil
	})
}

// sameFailure compares what kept two plans from placing, without what differs at every look.
func sameFailure(a, b map[string]*api.AllocationMetric) bool {
	bare := func(m map[string]*api.AllocationMetric) string {
		out := map[string]api.AllocationMetric{}
		for k, v := range m {
			x := *v
			x.AllocationTime, x.ScoreMetaData, x.Scores = 0, nil, nil
			out[k] = x
		}
		text, err := json.Marshal(out)
		if err != nil {
			return ""
		}
		return string(text)
	}
	return len(a) == len(b) && len(a) > 0 && bare(a) == bare(b)
}

// apply writes a plan.
func (c *Core) apply(tx *state.Tx, in scheduler.Input, plan *scheduler.Plan) {
	now := in.Now.UnixNano()
	next := map[string]string{}
	for _, a := range plan.Place {
		if a.PreviousAllocation != "" {
			next[a.PreviousAllocation] = a.ID
		}
	}
	for _, s := range plan.Stop {
		a := *s.Alloc
		a.DesiredStatus, a.DesiredDescription, a.ModifyTime = api.AllocDesiredStatusStop, s.Description, now
		if s.ClientStatus != "" && !state.Ended(&a) {
			a.ClientStatus = s.ClientStatus
		}
		if id := next[a.ID]; id != "" {
			a.NextAllocation = id
		}
		tx.PutAlloc(&a, state.PlanResult)
	}
	for _, list := range [][]*api.Allocation{plan.InPlace, plan.Delayed, plan.Place} {
		for _, a := range list {
			a.ModifyTime = now
			tx.PutAlloc(a, state.PlanResult)
		}
	}
	for _, e := range plan.Followups {
		tx.PutEval(e)
	}
	c.applyDeployment(tx, in, plan)
}

func (c *Core) applyDeployment(tx *state.Tx, in scheduler.Input, plan *scheduler.Plan) {
	old := in.Deployment
	stopped := in.Job == nil || *in.Job.Stop
	if scheduler.ActiveDeployment(old) && (stopped || old.JobVersion != *in.Job.Version || old.JobCreateIndex != *in.Job.CreateIndex) {
		d := *old
		d.Status, d.StatusDescription, d.ModifyTime = "cancelled", "Cancelled due to newer version of job", in.Now.UnixNano()
		if stopped {
			d.StatusDescription = "Cancelled because job is stopped"
		}
		tx.PutDeployment(&d)
	}
	if plan.Deployment != nil {
		plan.Deployment.ModifyTime = in.Now.UnixNano()
		tx.PutDeployment(plan.Deployment)
	}
}

// finish closes an evaluation, and has what found no room wait in a blocked one.
func (c *Core) finish(tx *state.Tx, in scheduler.Input, e *api.Evaluation, plan *scheduler.Plan) {
	now := in.Now.UnixNano()
	wasBlocked := e.Status == api.EvalStatusBlocked
	e.Status, e.StatusDescription, e.ModifyTime, e.SnapshotIndex = api.EvalStatusComplete, "", now, tx.Index-1
	e.QueuedAllocations, e.FailedTGAllocs = plan.Queued, plan.Failed
	e.PlanAnnotations = &api.PlanAnnotations{DesiredTGUpdates: plan.Updates}
	if plan.Deployment != nil {
		e.DeploymentID = plan.Deployment.ID
	} else if in.Job != nil && scheduler.ActiveDeployment(in.Deployment) && in.Deployment.JobVersion == *in.Job.Version {
		e.DeploymentID = in.Deployment.ID
	}
	for _, other := range tx.EvalsByJob(e.Namespace, e.JobID) {
		if other.ID != e.ID && other.Status == api.EvalStatusBlocked {
			o := *other
			o.Status, o.StatusDescription, o.ModifyTime = api.EvalStatusCancelled, "evaluation is outdated: a newer one of its job was made", now
			tx.PutEval(&o)
		}
	}
	switch {
	case len(plan.Failed) == 0:
	case wasBlocked:
		e.Status, e.StatusDescription = api.EvalStatusBlocked, "created to place remaining allocations"
	default:
		blocked := &api.Evaluation{
			ID: c.NewID(), Namespace: e.Namespace, Priority: e.Priority, Type: e.Type, TriggeredBy: byQueued, JobID: e.JobID,
			JobModifyIndex: e.JobModifyIndex, Status: api.EvalStatusBlocked, StatusDescription: "created to place remaining allocations",
			PreviousEval: e.ID, FailedTGAllocs: plan.Failed, QueuedAllocations: maps.Clone(plan.Queued), CreateTime: now, ModifyTime: now,
		}
		e.BlockedEval = blocked.ID
		tx.PutEval(blocked)
	}
	tx.PutEval(e)
}
