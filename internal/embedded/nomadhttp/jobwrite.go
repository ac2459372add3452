package nomadhttp

import (
	"io"
	"net/http"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/embedded/core"
	"github.com/heteroflow/heteroflow/internal/jobspec"
)

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
	index := q.Core.Store().Index()
	q.indexed(index)
	return planAnswer{JobPlanResponse: out, Index: index}, nil
}

type planAnswer struct {
	*api.JobPlanResponse
	Index uint64
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
