package core

import (
	"encoding/json"
	"fmt"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/embedded/state"
)

// Deregister stops a job, and forgets it when purge is set.
func (c *Core) Deregister(namespace, id string, purge bool, priority int) (*api.JobDeregisterResponse, error) {
	out := &api.JobDeregisterResponse{}
	err := c.store.Update(func(tx *state.Tx) error {
		old := tx.Job(namespace, id)
		if old == nil {
			out.LastIndex = tx.Index - 1
			return nil // stopping what is not there is done already
		}
		out.LastIndex = tx.Index
		next := *old
		next.Stop, next.Version = new(true), new(*old.Version+1)
		e := c.evaluation(old, byDeregister)
		if priority > 0 {
			e.Priority = priority
		}
		out.JobModifyIndex = tx.Index
		if purge {
			tx.PurgeJob(old)
		} else {
			tx.StopJob(&next)
		}
		if old.IsPeriodic() || old.IsParameterized() {
			return nil
		}
		e.JobModifyIndex = tx.Index
		tx.PutEval(e)
		out.EvalID, out.EvalCreateIndex = e.ID, tx.Index
		return nil
	})
	c.periodic.set()
	return out, err
}

// Scale sets the count of a group, or only keeps a note of why not.
func (c *Core) Scale(namespace, id string, req *api.ScalingRequest) (*api.JobRegisterResponse, error) {
	out := &api.JobRegisterResponse{}
	err := c.store.Update(func(tx *state.Tx) error {
		old := tx.Job(namespace, id)
		if old == nil {
			return NotFound("job %q not found", id)
		}
		group := req.Target["Group"]
		i := groupIndex(old, group)
		if group == "" || i < 0 {
			return Bad("task group %q does not exist in job", group)
		}
		if err := checkScale(old, old.TaskGroups[i], req); err != nil {
			return err
		}
		event := &state.ScaleEvent{Namespace: namespace, JobID: id, Group: group, Event: api.ScalingEvent{
			Count: req.Count, PreviousCount: int64(*old.TaskGroups[i].Count), Error: req.Error, Message: req.Message, Meta: req.Meta,
			Time: uint64(c.now().UnixNano()),
		}}
		out.JobModifyIndex, out.LastIndex = *old.JobModifyIndex, tx.Index
		if req.Count != nil {
			next, err := copyJob(old)
			if err != nil {
				return err
			}
			next.TaskGroups[i].Count = new(int(*req.Count))
			c.putJob(tx, old, next)
			current := tx.Job(namespace, id)
			e := c.evaluation(current, byScaling)
			tx.PutEval(e)
			event.Event.EvalID = &e.ID
			out.EvalID, out.EvalCreateIndex, out.JobModifyIndex = e.ID, tx.Index, *current.JobModifyIndex
		}
		tx.PutScaleEvent(event)
		return nil
	})
	return out, err
}

func checkScale(j *api.Job, g *api.TaskGroup, req *api.ScalingRequest) error {
	if req.JobModifyIndex != 0 && req.JobModifyIndex != *j.JobModifyIndex {
		return Invalid("job exists with conflicting job modify index: %d", *j.JobModifyIndex)
	}
	if req.Count == nil {
		return nil
	}
	if *j.Stop {
		return Bad("job is stopped: run it again before scaling it")
	}
	n := *req.Count
	if n < 0 {
		return Bad("scaling action count can't be negative: write 0 or more")
	}
	if s := g.Scaling; s != nil {
		if s.Min != nil && n < *s.Min {
			return Bad("group count was less than scaling policy minimum: %d < %d", n, *s.Min)
		}
		if s.Max != nil && n > *s.Max {
			return Bad("group count was greater than scaling policy maximum: %d > %d", n, *s.Max)
		}
	}
	return nil
}

func groupIndex(j *api.Job, name string) int {
	for i, g := range j.TaskGroups {
		if *g.Name == name {
			return i
		}
	}
	return -1
}

// copyJob copies a job deeply, so that parts of it may be changed.
func copyJob(j *api.Job) (*api.Job, error) {
	text, err := json.Marshal(j)
	if err != nil {
		return nil, fmt.Errorf("copy job %s: %w", *j.ID, err)
	}
	out := &api.Job{}
	if err := json.Unmarshal(text, out); err != nil {
		return nil, fmt.Errorf("copy job %s: %w", *j.ID, err)
	}
	return out, nil
}

// Revert makes an older version the newest.
func (c *Core) Revert(namespace, id string, version uint64, prior *uint64) (*api.JobRegisterResponse, error) {
	out := &api.JobRegisterResponse{}
	err := c.store.Update(func(tx *state.Tx) error {
		current := tx.Job(namespace, id)
		if current == nil {
			return NotFound("job %q not found", id)
		}
		if prior != nil && *prior != *current.Version {
			return Invalid("current job has version %d; enforcing version %d", *current.Version, *prior)
		}
		if version == *current.Version {
			return Invalid("can't revert to current version")
		}
		for _, v := range tx.Versions(namespace, id) {
			if *v.Version != version {
				continue
			}
			next, err := copyJob(v)
			if err != nil {
				return err
			}
			next.VersionTag = nil
			c.putJob(tx, current, next)
			if s := tx.Submission(namespace, id, version); s != nil {
				tx.PutSubmission(&state.Submission{Namespace: namespace, JobID: id, Version: *next.Version, Submission: s})
			}
			e := c.evaluation(tx.Job(namespace, id), byRegister)
			tx.PutEval(e)
			out.EvalID, out.EvalCreateIndex, out.JobModifyIndex, out.LastIndex = e.ID, tx.Index, tx.Index, tx.Index
			return nil
		}
		return NotFound("job %q at version %d not found", id, version)
	})
	return out, err
}

// Evaluate has a job looked at again, and what failed replaced at once when force is set.
func (c *Core) Evaluate(namespace, id string, force bool) (*api.JobRegisterResponse, error) {
	out := &api.JobRegisterResponse{}
	err := c.store.Update(func(tx *state.Tx) error {
		j := tx.Job(namespace, id)
		switch {
		case j == nil:
			return Invalid("job not found") // a 500 in Nomad too
		case j.IsPeriodic():
			return Invalid("can't evaluate periodic job")
		case j.IsParameterized():
			return Invalid("can't evaluate parameterized job")
		}
		if force {
			for _, a := range tx.AllocsByJob(namespace, id) {
				if a.ClientStatus == api.AllocClientStatusFailed && a.DesiredStatus == api.AllocDesiredStatusRun && a.NextAllocation == "" {
					next := *a
					next.DesiredTransition.ForceReschedule = new(true)
					tx.PutAlloc(&next, state.DesiredTransition)
				}
			}
		}
		e := c.evaluation(j, byRegister)
		tx.PutEval(e)
		out.EvalID, out.EvalCreateIndex, out.JobModifyIndex, out.LastIndex = e.ID, tx.Index, *j.JobModifyIndex, tx.Index
		return nil
	})
	return out, err
}

// StopAlloc has one allocation stopped and replaced.
func (c *Core) StopAlloc(id string) (eval string, index uint64, err error) {
	err = c.store.Update(func(tx *state.Tx) error {
		a := tx.Alloc(id)
		if a == nil {
			return NotFound("allocation not found")
		}
		j := tx.Job(a.Namespace, a.JobID)
		if j == nil {
			j = a.Job
		}
		index = tx.Index
		next := *a
		next.DesiredTransition.Migrate = new(true)
		tx.PutAlloc(&next, state.DesiredTransition)
		e := c.evaluation(j, byStop)
		tx.PutEval(e)
		eval = e.ID
		return nil
	})
	return eval, index, err
}

// SetStable marks one version as one to go back to, or not.
func (c *Core) SetStable(namespace, id string, version uint64, stable bool) (uint64, error) {
	var index uint64
	err := c.store.Update(func(tx *state.Tx) error {
		for _, v := range tx.Versions(namespace, id) {
			if *v.Version != version {
				continue
			}
			next := *v
			next.Stable = &stable
			tx.PutVersion(&next)
			if current := tx.Job(namespace, id); *current.Version == version {
				tx.UpdateJob(&next, "")
			}
			index = tx.Index
			return nil
		}
		return NotFound("job %q at version %d not found", id, version)
	})
	return index, err
}
