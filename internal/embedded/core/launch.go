package core

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/embedded/state"
)

// maxPayload is the size of a dispatch payload. Source: Nomad's limit.
const maxPayload = 16 << 10

// Dispatch starts one run of a parameterized job.
func (c *Core) Dispatch(namespace, id string, req *api.JobDispatchRequest, token string) (*api.JobDispatchResponse, error) {
	out := &api.JobDispatchResponse{}
	err := c.store.Update(func(tx *state.Tx) error {
		parent := tx.Job(namespace, id)
		switch {
		case parent == nil:
			return NotFound("parameterized job not found")
		case !parent.IsParameterized():
			return Invalid("Specified job %q is not a parameterized job", id)
		case *parent.Stop:
			return Invalid("Specified job %q is stopped", id)
		}
		if err := checkDispatch(parent.ParameterizedJob, req); err != nil {
			return err
		}
		for _, child := range tx.Children(namespace, id) {
			if token != "" && child.DispatchIdempotencyToken != nil && *child.DispatchIdempotencyToken == token {
				out.DispatchedJobID, out.JobCreateIndex = *child.ID, *child.CreateIndex
				return nil
			}
		}
		child, err := copyJob(parent)
		if err != nil {
			return err
		}
		prefix := "dispatch"
		if req.IdPrefixTemplate != "" {
			prefix = "dispatch-" + req.IdPrefixTemplate
		}
		name := fmt.Sprintf("%s/%s-%d-%s", id, prefix, c.now().Unix(), c.NewID()[:8])
		child.ID, child.Name, child.ParentID, child.Dispatched = &name, &name, &id, true
		child.Payload, child.Meta = req.Payload, maps.Clone(parent.Meta)
		if child.Meta == nil {
			child.Meta = map[string]string{}
		}
		maps.Copy(child.Meta, req.Meta)
		if token != "" {
			child.DispatchIdempotencyToken = &token
		}
		if req.Priority > 0 {
			child.Priority = &req.Priority
		}
		e := c.start(tx, child, byRegister)
		out.DispatchedJobID, out.EvalID, out.EvalCreateIndex, out.JobCreateIndex = name, e.ID, tx.Index, tx.Index
		return nil
	})
	return out, err
}

func checkDispatch(p *api.ParameterizedJobConfig, req *api.JobDispatchRequest) error {
	switch {
	case p.Payload == "required" && len(req.Payload) == 0:
		return Invalid("Payload is not provided but required by parameterized job")
	case p.Payload == "forbidden" && len(req.Payload) > 0:
		return Invalid("Payload provided but forbidden by parameterized job")
	case len(req.Payload) > maxPayload:
		return Invalid("Payload exceeds maximum size; %d > %d", len(req.Payload), maxPayload)
	}
	for k := range req.Meta {
		if !slices.Contains(p.MetaRequired, k) && !slices.Contains(p.MetaOptional, k) {
			return Invalid("Dispatch request included unpermitted metadata keys: %s", k)
		}
	}
	for _, k := range p.MetaRequired {
		if _, ok := req.Meta[k]; !ok {
			return Invalid("Dispatch did not provide required meta keys: %s", k)
		}
	}
	return nil
}

// start registers a child of a job and has it scheduled.
func (c *Core) start(tx *state.Tx, child *api.Job, trigger string) *api.Evaluation {
	child.Stop, child.Stable, child.Version = new(false), new(false), new(uint64(0))
	child.Status, child.SubmitTime = new("pending"), new(c.now().UnixNano())
	tx.RegisterJob(child)
	e := c.evaluation(child, trigger)
	tx.PutEval(e)
	return e
}

// ForcePeriodic launches a periodic job now.
func (c *Core) ForcePeriodic(namespace, id string) (eval string, index uint64, err error) {
	err = c.store.Update(func(tx *state.Tx) error {
		j := tx.Job(namespace, id)
		switch {
		case j == nil:
			return NotFound("job not found")
		case !j.IsPeriodic():
			return Invalid("can't force launch non-periodic job")
		case *j.Stop:
			return Invalid("can't force launch a stopped job")
		}
		e, err := c.launch(tx, j, c.now())
		if err != nil {
			return err
		}
		eval, index = e.ID, tx.Index
		return nil
	})
	return eval, index, err
}

func (c *Core) launch(tx *state.Tx, j *api.Job, at time.Time) (*api.Evaluation, error) {
	child, err := copyJob(j)
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("%s/periodic-%d", *j.ID, at.Unix())
	child.ID, child.Name, child.ParentID, child.Periodic = &name, &name, j.ID, nil
	if tx.Job(*j.Namespace, name) != nil {
		return nil, Invalid("job %q was launched in this second already", *j.ID)
	}
	return c.start(tx, child, byPeriodic), nil
}

// runPeriodic launches periodic jobs when their time comes. What was missed while the engine was down is not made up
// for.
func (c *Core) runPeriodic(ctx context.Context) error {
	last := c.now()
	for {
		now := c.now()
		var next time.Time
		var due []*api.Job
		c.store.View(func(r state.Reader) {
			for _, j := range r.Periodic() {
				at, err := nextLaunch(j, last)
				if err != nil || at.IsZero() {
					continue
				}
				if !at.After(now) {
					due = append(due, j)
					at, err = nextLaunch(j, now)
				}
				if err == nil && !at.IsZero() && (next.IsZero() || at.Before(next)) {
					next = at
				}
			}
		})
		last = now
		for _, j := range due {
			if err := c.launchDue(j, now); err != nil {
				c.log.Warn("periodic launch skipped", "job_id", *j.ID, "error", err)
			}
		}
		if !c.await(ctx, next, c.periodic) {
			return nil
		}
	}
}

func (c *Core) launchDue(j *api.Job, now time.Time) error {
	return c.store.Update(func(tx *state.Tx) error {
		if j.Periodic.ProhibitOverlap != nil && *j.Periodic.ProhibitOverlap {
			for _, child := range tx.Children(*j.Namespace, *j.ID) {
				if strings.Contains(*child.ID, "/periodic-") && *child.Status != "dead" {
					return fmt.Errorf("%s still runs and overlap is prohibited", *child.ID)
				}
			}
		}
		_, err := c.launch(tx, j, now)
		return err
	})
}
