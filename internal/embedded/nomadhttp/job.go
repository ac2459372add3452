package nomadhttp

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/embedded/core"
	"github.com/heteroflow/heteroflow/internal/embedded/state"
	"github.com/heteroflow/heteroflow/internal/jobdiff"
	"github.com/heteroflow/heteroflow/internal/jobspec"
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

// register takes a job; id is that of the path, which must be the job's.
func (q *request) register(id string) (any, error) {
	req := &api.JobRegisterRequest{}
	if err := q.decode(req); err != nil {
		return nil, err
	}
	if req.Job == nil {
		return nil, core.Bad("Job must be specified")
	}
	if req.Job.ID == nil {
		return nil, core.Bad("Job ID hasn't been provided")
	}
	if id != "" && *req.Job.ID != id {
		return nil, core.Bad("Job ID does not match name")
	}
	q.place(req.Job, req.WriteRequest)
	return q.registered(q.Core.Register(req))
}

func (q *request) registered(out *api.JobRegisterResponse, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	q.indexed(out.LastIndex)
	return registerAnswer{EvalID: out.EvalID, EvalCreateIndex: out.EvalCreateIndex, JobModifyIndex: out.JobModifyIndex, Warnings: out.Warnings, Index: out.LastIndex}, nil
}

// registerAnswer is a register's answer as the wire has it.
type registerAnswer struct {
	EvalCreateIndex uint64
	EvalID          string
	Index           uint64
	JobModifyIndex  uint64
	KnownLeader     bool
	LastContact     int
	NextToken       string
	Warnings        string
}

// place gives a job the namespace and the region of its request: the query's, else the body's, else its own.
func (q *request) place(j *api.Job, w api.WriteRequest) {
	switch {
	case q.query.Get("namespace") != "":
		j.Namespace = new(q.query.Get("namespace"))
	case w.Namespace != "" && (j.Namespace == nil || *j.Namespace == ""):
		j.Namespace = &w.Namespace
	}
	if q.query.Get("region") != "" {
		j.Region = new(q.query.Get("region"))
	}
}

func (q *request) validateJob() (any, error) {
	if err := q.only(http.MethodPut); err != nil {
		return nil, err
	}
	req := &api.JobValidateRequest{}
	if err := q.decode(req); err != nil {
		return nil, err
	}
	if req.Job == nil {
		return nil, core.Bad("Job must be specified")
	}
	q.place(req.Job, req.WriteRequest)
	return q.Core.Validate(req.Job), nil
}

func (q *request) jobsParse() (any, error) {
	if err := q.only(http.MethodPut); err != nil {
		return nil, err
	}
	req := &api.JobsParseRequest{}
	if err := q.decode(req); err != nil {
		return nil, err
	}
	if req.JobHCL == "" {
		return nil, core.Bad("Job spec is empty")
	}
	j, err := jobspec.ParseWith("input.hcl", []byte(req.JobHCL), jobspec.Options{VarFile: req.Variables})
	if err != nil {
		return nil, core.Bad("Failed to parse job: %s", err)
	}
	if req.Canonicalize {
		j.Canonicalize()
	}
	return j, nil
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

func (q *request) jobPlan(id string) (any, error) {
	req := &api.JobPlanRequest{}
	if err := q.decode(req); err != nil {
		return nil, err
	}
	if req.Job == nil {
		return nil, core.Bad("Job must be specified")
	}
	if req.Job.ID == nil {
		return nil, core.Bad("Job must have a valid ID")
	}
	if *req.Job.ID != id {
		return nil, core.Bad("Job ID does not match")
	}
	q.place(req.Job, req.WriteRequest)
	out, err := q.Core.Plan(req)
	if err != nil {
		return nil, err
	}
	q.indexed(q.Core.Store().Index())
	return out, nil
}

func (q *request) jobStop(id string) (any, error) {
	purge, err := q.flag("purge")
	if err != nil {
		return nil, err
	}
	priority, err := q.number("eval_priority")
	if err != nil {
		return nil, err
	}
	out, err := q.Core.Deregister(q.namespace(), id, purge, int(priority))
	if err != nil {
		return nil, err
	}
	q.indexed(out.LastIndex)
	return registerAnswer{EvalID: out.EvalID, EvalCreateIndex: out.EvalCreateIndex, JobModifyIndex: out.JobModifyIndex, Index: out.LastIndex}, nil
}

func (q *request) jobEvaluate(id string) (any, error) {
	req := &api.JobEvaluateRequest{}
	if err := q.decodeIfAny(req); err != nil {
		return nil, err
	}
	if req.JobID != "" && req.JobID != id {
		return nil, core.Bad("JobID not same as job name")
	}
	return q.registered(q.Core.Evaluate(q.namespace(), id, req.EvalOptions.ForceReschedule))
}

func (q *request) jobScale(id string) (any, error) {
	req := &api.ScalingRequest{}
	if err := q.decode(req); err != nil {
		return nil, err
	}
	if req.Target["Group"] == "" {
		return nil, core.Bad("missing task group name for scaling action")
	}
	if req.Error && req.Count != nil {
		return nil, core.Bad("scaling action should not contain count if error is true")
	}
	return q.registered(q.Core.Scale(q.namespace(), id, req))
}

func (q *request) jobRevert(id string) (any, error) {
	req := &api.JobRevertRequest{}
	if err := q.decode(req); err != nil {
		return nil, err
	}
	if req.JobID != "" && req.JobID != id {
		return nil, core.Bad("Job ID does not match")
	}
	return q.registered(q.Core.Revert(q.namespace(), id, req.JobVersion, req.EnforcePriorVersion))
}

func (q *request) jobStable(id string) (any, error) {
	req := &api.JobStabilityRequest{}
	if err := q.decode(req); err != nil {
		return nil, err
	}
	index, err := q.Core.SetStable(q.namespace(), id, req.JobVersion, req.Stable)
	if err != nil {
		return nil, err
	}
	q.indexed(index)
	return map[string]uint64{"JobModifyIndex": index, "Index": index}, nil
}

func (q *request) jobDispatch(id string) (any, error) {
	req := &api.JobDispatchRequest{}
	if err := q.decodeIfAny(req); err != nil {
		return nil, err
	}
	if req.JobID != "" && req.JobID != id {
		return nil, core.Bad("Job ID does not match")
	}
	return q.dispatched(q.Core.Dispatch(q.namespace(), id, req, q.query.Get("idempotency_token")))
}

func (q *request) jobDispatchPayload(id string) (any, error) {
	payload, err := io.ReadAll(http.MaxBytesReader(q.w, q.r.Body, 1<<20))
	if err != nil {
		return nil, core.Bad("payload can not be read: %s", err)
	}
	return q.dispatched(q.Core.Dispatch(q.namespace(), id, &api.JobDispatchRequest{Payload: payload}, q.query.Get("idempotency_token")))
}

func (q *request) dispatched(out *api.JobDispatchResponse, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	q.indexed(out.JobCreateIndex)
	return map[string]any{
		"DispatchedJobID": out.DispatchedJobID, "EvalID": out.EvalID, "EvalCreateIndex": out.EvalCreateIndex,
		"JobCreateIndex": out.JobCreateIndex, "Index": out.JobCreateIndex,
	}, nil
}

func (q *request) jobForce(id string) (any, error) {
	eval, index, err := q.Core.ForcePeriodic(q.namespace(), id)
	if err != nil {
		return nil, err
	}
	return q.evaluated(eval, index), nil
}

// evaluated is the answer of a write that made an evaluation.
func (q *request) evaluated(eval string, index uint64) any {
	q.indexed(index)
	return map[string]any{"EvalID": eval, "EvalCreateIndex": index, "Index": index}
}
