package nomadhttp

import (
	"net/http"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/embedded/core"
	"github.com/heteroflow/heteroflow/internal/embedded/state"
)

// checkID refuses what Nomad refuses as an id of things it has named itself.
func checkID(kind, id string) error {
	if len(id) != 36 {
		return core.Invalid("%s lookup failed: index error: UUID must be 36 characters", kind)
	}
	return nil
}

func (q *request) evaluations() (any, error) {
	if err := q.only(http.MethodGet); err != nil {
		return nil, err
	}
	job, status := q.query.Get("job"), q.query.Get("status")
	return q.read(func(r state.Reader) (any, uint64, error) {
		evals := slices.DeleteFunc(r.Evals(), func(e *api.Evaluation) bool {
			return q.namespace() != "*" && e.Namespace != q.namespace() || job != "" && e.JobID != job || status != "" && e.Status != status
		})
		evals, err := page(q, evals, func(e *api.Evaluation) string { return e.ID })
		return evals, r.TableIndex("evals", ""), err
	})
}

func (q *request) evaluation() (any, error) {
	if err := q.only(http.MethodGet); err != nil {
		return nil, err
	}
	id := q.path[1]
	switch {
	case len(q.path) == 3 && q.path[2] == "allocations":
		return q.read(func(r state.Reader) (any, uint64, error) {
			stubs := []*api.AllocationListStub{}
			for _, a := range r.AllocsByEval(id) {
				stubs = append(stubs, stub(a))
			}
			return stubs, r.TableIndex("allocs", id), nil
		})
	case len(q.path) != 2:
		return q.notHere()
	}
	if err := checkID("failed to lookup eval: eval", id); err != nil {
		return nil, err
	}
	return q.read(func(r state.Reader) (any, uint64, error) {
		e := r.Eval(id)
		if e == nil {
			return nil, 0, core.NotFound("eval not found")
		}
		if related, err := q.flag("related"); err != nil || related {
			full := *e
			full.RelatedEvals = relatedEvals(r, e)
			return &full, e.ModifyIndex, err
		}
		return e, e.ModifyIndex, nil
	})
}

// relatedEvals lists the evaluations that came before and after one.
func relatedEvals(r state.Reader, e *api.Evaluation) []*api.EvaluationStub {
	out := []*api.EvaluationStub{}
	for _, other := range r.EvalsByJob(e.Namespace, e.JobID) {
		if other.ID != e.ID && (other.ID == e.PreviousEval || other.ID == e.BlockedEval || other.ID == e.NextEval || other.PreviousEval == e.ID) {
			out = append(out, &api.EvaluationStub{
				ID: other.ID, Priority: other.Priority, Type: other.Type, TriggeredBy: other.TriggeredBy, Namespace: other.Namespace,
				JobID: other.JobID, NodeID: other.NodeID, DeploymentID: other.DeploymentID, Status: other.Status,
				StatusDescription: other.StatusDescription, WaitUntil: other.WaitUntil, NextEval: other.NextEval,
				PreviousEval: other.PreviousEval, BlockedEval: other.BlockedEval, CreateIndex: other.CreateIndex,
				ModifyIndex: other.ModifyIndex, CreateTime: other.CreateTime, ModifyTime: other.ModifyTime,
			})
		}
	}
	return out
}
