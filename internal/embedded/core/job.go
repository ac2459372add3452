package core

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/embedded/scheduler"
	"github.com/heteroflow/heteroflow/internal/embedded/state"
	"github.com/heteroflow/heteroflow/internal/jobdiff"
)

// keptVersions is how many versions of a job are kept beside those that still run. Source: Nomad's default.
const keptVersions = 6

// maxSubmission is the size of a job's source above which it is not kept. Source: Nomad's default.
const maxSubmission = 1 << 20

// Register takes a job, new or changed, and has it scheduled.
func (c *Core) Register(req *api.JobRegisterRequest) (*api.JobRegisterResponse, error) {
	j := req.Job
	if err := c.admit(j); err != nil {
		return nil, err
	}
	out := &api.JobRegisterResponse{Warnings: warnings(j)}
	err := c.store.Update(func(tx *state.Tx) error {
		old := tx.Job(*j.Namespace, *j.ID)
		if req.EnforceIndex {
			if err := enforce(old, req.JobModifyIndex); err != nil {
				return err
			}
		}
		if err := transition(old, j); err != nil {
			return err
		}
		preserve(old, j, req)
		changed := c.putJob(tx, old, j)
		current := tx.Job(*j.Namespace, *j.ID)
		if changed && req.Submission != nil {
			out.Warnings = keepSubmission(tx, j, req.Submission, out.Warnings)
		}
		out.JobModifyIndex = *current.JobModifyIndex
		if !current.IsPeriodic() && !current.IsParameterized() {
			e := c.evaluation(current, byRegister)
			if req.EvalPriority > 0 {
				e.Priority = req.EvalPriority
			}
			tx.PutEval(e)
			out.EvalID, out.EvalCreateIndex = e.ID, tx.Index
		}
		out.LastIndex = tx.Index
		return nil
	})
	c.periodic.set()
	return out, err
}

// admit brings a job into the form the engine keeps, and refuses what can not run.
func (c *Core) admit(j *api.Job) error {
	if j == nil {
		return Bad("Job must be specified")
	}
	canonicalize(j)
	return validate(j, c.pools())
}

// pools are the node pools there are: Nomad's own two and those that nodes say they are in.
func (c *Core) pools() map[string]bool {
	known := map[string]bool{"all": true, "default": true}
	c.store.View(func(r state.Reader) {
		for _, n := range r.Nodes() {
			known[n.NodePool] = true
		}
	})
	return known
}

func canonicalize(j *api.Job) {
	j.Canonicalize()
	if len(j.Datacenters) == 0 {
		j.Datacenters = []string{"*"}
	}
	if *j.NodePool == "" {
		j.NodePool = new("default")
	}
	if *j.Namespace == "" {
		j.Namespace = new(api.DefaultNamespace)
	}
}

func enforce(old *api.Job, index uint64) error {
	switch {
	case index == 0 && old != nil:
		return Invalid("Enforcing job modify index 0: job already exists")
	case index != 0 && old == nil:
		return Invalid("Enforcing job modify index %d: job does not exist", index)
	case index != 0 && *old.JobModifyIndex != index:
		return Invalid("Enforcing job modify index %d: job exists with conflicting job modify index: %d", index, *old.JobModifyIndex)
	}
	return nil
}

// transition refuses changes of a job that only another job can be.
func transition(old, j *api.Job) error {
	if old == nil {
		if j.Dispatched {
			return Invalid("job can't be submitted with 'Dispatched' set")
		}
		return nil
	}
	switch {
	case *old.Type != *j.Type:
		return Invalid("cannot update job from type %q to %q", *old.Type, *j.Type)
	case old.IsPeriodic() != j.IsPeriodic():
		return Invalid("cannot update periodic job to being non-periodic, or the other way: stop the job first, or choose another name")
	case (old.ParameterizedJob != nil) != (j.ParameterizedJob != nil):
		return Invalid("cannot update parameterized job to being non-parameterized, or the other way: stop the job first, or choose another name")
	case old.Dispatched != j.Dispatched:
		return Invalid("field 'Dispatched' is read-only")
	}
	return nil
}

func preserve(old, j *api.Job, req *api.JobRegisterRequest) {
	if old == nil {
		return
	}
	for _, g := range j.TaskGroups {
		for _, before := range old.TaskGroups {
			if *before.Name != *g.Name {
				continue
			}
			if req.PreserveCounts {
				g.Count = new(*before.Count)
			}
			for _, t := range g.Tasks {
				for _, was := range before.Tasks {
					if req.PreserveResources && was.Name == t.Name {
						t.Resources = was.Resources
					}
				}
			}
		}
	}
}

// putJob writes a job unless it is the one that is there, and reports whether it was.
func (c *Core) putJob(tx *state.Tx, old, j *api.Job) bool {
	if old != nil && !*old.Stop && !scheduler.SpecChanged(old, j) {
		return false
	}
	next := *j
	next.Stop, next.Stable, next.Version = new(false), new(false), new(uint64(0))
	next.Status, next.StatusDescription = new("pending"), new("")
	if old != nil {
		next.Version = new(*old.Version + 1)
	}
	next.SubmitTime = new(c.now().UnixNano())
	tx.RegisterJob(&next)
	*j = next
	c.dropVersions(tx, &next)
	return true
}

// dropVersions forgets versions that are old and that nothing runs any more.
func (c *Core) dropVersions(tx *state.Tx, j *api.Job) {
	versions := tx.Versions(*j.Namespace, *j.ID)
	if len(versions) <= keptVersions {
		return
	}
	used := map[uint64]bool{}
	for _, a := range tx.AllocsByJob(*j.Namespace, *j.ID) {
		used[*a.Job.JobModifyIndex] = true
	}
	for _, v := range versions[keptVersions:] {
		if !used[*v.JobModifyIndex] && v.VersionTag == nil {
			tx.DropVersion(v)
		}
	}
}

// Versions lists the versions of a job that its history shows, newest first.
func Versions(r state.Reader, namespace, id string) []*api.Job {
	all := r.Versions(namespace, id)
	return all[:min(len(all), keptVersions)]
}

func keepSubmission(tx *state.Tx, j *api.Job, s *api.JobSubmission, warn string) string {
	if len(s.Source)+len(s.Variables) > maxSubmission {
		return joinWarnings(warn, fmt.Sprintf("job source is larger than %d bytes and is not kept", maxSubmission))
	}
	tx.PutSubmission(&state.Submission{Namespace: *j.Namespace, JobID: *j.ID, Version: *j.Version, Submission: s})
	return warn
}

// joinWarnings adds lines to a warnings text in the form that Nomad gives it.
func joinWarnings(text string, more ...string) string {
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		if item, ok := strings.CutPrefix(strings.TrimSpace(line), "* "); ok {
			lines = append(lines, item)
		}
	}
	lines = append(lines, more...)
	if len(lines) == 0 {
		return ""
	}
	return fmt.Sprintf("%d warning(s):\n\n* %s", len(lines), strings.Join(lines, "\n* "))
}

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

// Deregister stops a job, and forgets it when purge is set.
func (c *Core) Deregister(namespace, id string, purge bool, priority int) (*api.JobDeregisterResponse, error) {
	out := &api.JobDeregisterResponse{}
	err := c.store.Update(func(tx *state.Tx) error {
		old := tx.Job(namespace, id)
		out.LastIndex = tx.Index
		if old == nil {
			return NotFound("job not found")
		}
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
