package core

import (
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/embedded/scheduler"
	"github.com/heteroflow/heteroflow/internal/embedded/state"
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
func (c *Core) admit(j *api.Job) (err error) {
	if j == nil {
		return Bad("Job must be specified")
	}
	// The API's own canonicalization takes some things for granted that a body need not have.
	defer func() {
		if p := recover(); p != nil {
			c.log.Debug("job not canonicalized", "panic", p)
			err = Bad("Job can not be read: a block of it lacks what it needs (%v)", p)
		}
	}()
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
	fill(&j.DispatchIdempotencyToken)
	for _, g := range j.TaskGroups {
		hostNetworks(g.Networks)
		for _, t := range g.Tasks {
			if r := t.Resources; r != nil {
				for _, p := range []**int{&r.DiskMB, &r.IOPS, &r.MemoryMaxMB, &r.SecretsMB} {
					fill(p)
				}
				hostNetworks(r.Networks)
			}
		}
	}
}

// fill sets what is unset to its zero value, as a server keeps it.
func fill[T any](p **T) {
	if *p == nil {
		*p = new(T)
	}
}

func hostNetworks(networks []*api.NetworkResource) {
	for _, n := range networks {
		for _, ports := range [][]api.Port{n.ReservedPorts, n.DynamicPorts} {
			for i := range ports {
				if ports[i].HostNetwork == "" {
					ports[i].HostNetwork = "default"
				}
			}
		}
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
