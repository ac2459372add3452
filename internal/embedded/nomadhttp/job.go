package nomadhttp

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/embedded/core"
	"github.com/heteroflow/heteroflow/internal/embedded/state"
	"github.com/heteroflow/heteroflow/internal/jobdiff"
)

func (q *request) jobs() (any, error) {
	switch {
	case q.get():
		return q.jobList()
	case q.put():
		return q.register("")
	}
	return nil, errMethod
}

func (q *request) jobList() (any, error) {
	withMeta, err := q.flag("meta")
	if err != nil {
		return nil, err
	}
	return q.read(func(r state.Reader) (any, uint64, error) {
		jobs, err := page(q, r.Jobs(q.namespace()), func(j *api.Job) string { return *j.ID })
		if err != nil {
			return nil, 0, err
		}
		stubs := make([]*api.JobListStub, 0, len(jobs))
		for _, j := range jobs {
			stub := &api.JobListStub{
				ID: *j.ID, ParentID: *j.ParentID, Name: *j.Name, Namespace: *j.Namespace, Datacenters: j.Datacenters, Type: *j.Type,
				Priority: *j.Priority, Periodic: j.IsPeriodic(), ParameterizedJob: j.IsParameterized(), Stop: *j.Stop,
				Status: *j.Status, StatusDescription: *j.StatusDescription, JobSummary: core.Summary(r, j),
				CreateIndex: *j.CreateIndex, ModifyIndex: *j.ModifyIndex, JobModifyIndex: *j.JobModifyIndex, SubmitTime: *j.SubmitTime,
			}
			if withMeta {
				stub.Meta = j.Meta
			}
			stubs = append(stubs, stub)
		}
		// A summary changes with the allocations.
		return stubs, max(r.TableIndex("jobs", ""), r.TableIndex("allocs", "")), nil
	})
}

// Actions on one job, by method and last segment of the path.
var (
	jobReads = map[string]func(*request, string) (any, error){
		"": (*request).jobInfo, "summary": (*request).jobSummary, "allocations": (*request).jobAllocations,
		"evaluations": (*request).jobEvaluations, "deployment": (*request).jobDeployment, "deployments": (*request).jobDeployments,
		"versions": (*request).jobVersions, "submission": (*request).jobSubmission, "scale": (*request).jobScaleStatus,
		"services": (*request).jobServices,
	}
	jobWrites = map[string]func(*request, string) (any, error){
		"": (*request).register, "plan": (*request).jobPlan, "evaluate": (*request).jobEvaluate, "scale": (*request).jobScale,
		"revert": (*request).jobRevert, "dispatch": (*request).jobDispatch, "dispatch/payload": (*request).jobDispatchPayload,
		"periodic/force": (*request).jobForce, "stable": (*request).jobStable,
	}
)

func (q *request) job() (any, error) {
	id, action := jobPath(q.path)
	var f func(*request, string) (any, error)
	switch {
	case q.get():
		f = jobReads[action]
	case q.put():
		f = jobWrites[action]
	case q.r.Method == http.MethodDelete && action == "":
		f = (*request).jobStop
	}
	switch {
	case f != nil:
		return f(q, id)
	case jobReads[action] != nil || jobWrites[action] != nil:
		return nil, errMethod
	}
	return q.notHere()
}

func (q *request) jobInfo(id string) (any, error) {
	return q.read(func(r state.Reader) (any, uint64, error) {
		j := r.Job(q.namespace(), id)
		if j == nil {
			return nil, 0, core.NotFound("job not found")
		}
		return j, *j.ModifyIndex, nil
	})
}

// withJob reads below a job that must be there.
func (q *request) withJob(id string, f func(state.Reader, *api.Job) (any, uint64)) (any, error) {
	return q.read(func(r state.Reader) (any, uint64, error) {
		j := r.Job(q.namespace(), id)
		if j == nil {
			return nil, 0, core.NotFound("job not found")
		}
		value, index := f(r, j)
		return value, index, nil
	})
}

func (q *request) jobSummary(id string) (any, error) {
	return q.withJob(id, func(r state.Reader, j *api.Job) (any, uint64) {
		s := core.Summary(r, j)
		return s, s.ModifyIndex
	})
}

func (q *request) jobAllocations(id string) (any, error) {
	all, err := q.flag("all")
	if err != nil {
		return nil, err
	}
	return q.read(func(r state.Reader) (any, uint64, error) {
		j := r.Job(q.namespace(), id)
		stubs := []*api.AllocationListStub{}
		for _, a := range r.AllocsByJob(q.namespace(), id) {
			// A job that was purged and registered anew shows its own allocations, unless all are asked for.
			if all || j == nil || *a.Job.CreateIndex == *j.CreateIndex {
				stubs = append(stubs, stub(a))
			}
		}
		return stubs, r.TableIndex("allocs", state.JobKey(q.namespace(), id)), nil
	})
}

func (q *request) jobEvaluations(id string) (any, error) {
	return q.read(func(r state.Reader) (any, uint64, error) {
		evals := r.EvalsByJob(q.namespace(), id)
		if evals == nil {
			evals = []*api.Evaluation{}
		}
		return evals, r.TableIndex("evals", state.JobKey(q.namespace(), id)), nil
	})
}

func (q *request) jobDeployments(id string) (any, error) {
	return q.read(func(r state.Reader) (any, uint64, error) {
		return list(q.ofJob(r, id)), r.TableIndex("deployments", state.JobKey(q.namespace(), id)), nil
	})
}

func (q *request) jobDeployment(id string) (any, error) {
	return q.read(func(r state.Reader) (any, uint64, error) {
		index := r.TableIndex("deployments", state.JobKey(q.namespace(), id))
		if found := q.ofJob(r, id); len(found) > 0 {
			return found[0], index, nil
		}
		return json.RawMessage("null"), index, nil
	})
}

func (q *request) ofJob(r state.Reader, id string) []*api.Deployment {
	j := r.Job(q.namespace(), id)
	var found []*api.Deployment
	for _, d := range r.DeploymentsByJob(q.namespace(), id) {
		if j != nil && (d.JobCreateIndex == *j.CreateIndex || q.query.Get("all") == "true") {
			found = append(found, d)
		}
	}
	return found
}

// list is never null on the wire.
func list[T any](items []T) []T {
	if items == nil {
		return []T{}
	}
	return items
}

func (q *request) jobVersions(id string) (any, error) {
	diffs, err := q.flag("diffs")
	if err != nil {
		return nil, err
	}
	return q.read(func(r state.Reader) (any, uint64, error) {
		versions := core.Versions(r, q.namespace(), id)
		if len(versions) == 0 {
			return nil, 0, core.NotFound("job versions not found")
		}
		out := versionsAnswer{Index: r.TableIndex("jobs", state.JobKey(q.namespace(), id)), KnownLeader: true, Versions: versions}
		for i := 0; diffs && i+1 < len(versions); i++ {
			out.Diffs = append(out.Diffs, jobdiff.Diff(versions[i+1], versions[i]))
		}
		return out, out.Index, nil
	})
}

type versionsAnswer struct {
	Diffs       []*api.JobDiff
	Index       uint64
	KnownLeader bool
	LastContact int
	NextToken   string
	Versions    []*api.Job
}

func (q *request) jobSubmission(id string) (any, error) {
	version, err := strconv.ParseUint(q.query.Get("version"), 10, 64)
	if err != nil {
		return nil, core.Bad("Unable to parse job submission version parameter: %s", err)
	}
	return q.read(func(r state.Reader) (any, uint64, error) {
		s := r.Submission(q.namespace(), id, version)
		if s == nil {
			return nil, 0, core.NotFound("job source not found")
		}
		return submissionAnswer{JobSubmission: s, Namespace: q.namespace(), JobID: id, Version: version}, r.TableIndex("jobs", state.JobKey(q.namespace(), id)), nil
	})
}

type submissionAnswer struct {
	*api.JobSubmission
	Namespace string
	JobID     string
	Version   uint64
}

func (q *request) jobScaleStatus(id string) (any, error) {
	return q.withJob(id, func(r state.Reader, j *api.Job) (any, uint64) {
		s := core.ScaleStatus(r, j)
		return s, max(*j.ModifyIndex, r.TableIndex("allocs", state.JobKey(q.namespace(), id)))
	})
}

func (q *request) jobServices(id string) (any, error) {
	return q.read(func(r state.Reader) (any, uint64, error) {
		found := []*api.ServiceRegistration{}
		for _, s := range r.Services() {
			if s.Namespace == q.namespace() && s.JobID == id {
				found = append(found, s)
			}
		}
		return found, r.TableIndex("services", ""), nil
	})
}
