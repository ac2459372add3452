package nomadhttp

import (
	"net/http"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/embedded/core"
	"github.com/heteroflow/heteroflow/internal/embedded/state"
)

func (q *request) deployments() (any, error) {
	if err := q.only(http.MethodGet); err != nil {
		return nil, err
	}
	return q.read(func(r state.Reader) (any, uint64, error) {
		found := slices.DeleteFunc(r.Deployments(), func(d *api.Deployment) bool { return q.namespace() != "*" && d.Namespace != q.namespace() })
		found, err := page(q, found, func(d *api.Deployment) string { return d.ID })
		return found, r.TableIndex("deployments", ""), err
	})
}

func (q *request) deployment() (any, error) {
	if len(q.path) == 3 && q.put() {
		return q.changeDeployment(q.path[1], q.path[2])
	}
	action, id := "", q.path[1]
	if len(q.path) == 3 {
		action, id = q.path[1], q.path[2]
	}
	if err := q.only(http.MethodGet); err != nil {
		return nil, err
	}
	if err := checkID("deployment", id); err != nil {
		return nil, err
	}
	return q.read(func(r state.Reader) (any, uint64, error) {
		d := r.Deployment(id)
		switch {
		case action == "allocations":
			stubs := []*api.AllocationListStub{}
			for _, a := range r.AllocsByDeployment(id) {
				stubs = append(stubs, stub(a))
			}
			return stubs, r.TableIndex("allocs", id), nil
		case action != "":
			return nil, 0, beyond(q.r.URL.Path)
		case d == nil:
			return nil, 0, core.NotFound("deployment not found")
		}
		return d, d.ModifyIndex, nil
	})
}

func (q *request) changeDeployment(action, id string) (any, error) {
	var eval string
	var index uint64
	var err error
	switch action {
	case "fail":
		eval, index, err = q.Core.SetDeployment(id, "failed", "Deployment marked as failed")
	case "pause":
		req := &api.DeploymentPauseRequest{}
		if err := q.decode(req); err != nil {
			return nil, err
		}
		if req.Pause {
			eval, index, err = q.Core.SetDeployment(id, "paused", "Deployment is paused")
		} else {
			eval, index, err = q.Core.SetDeployment(id, "running", "Deployment is running")
		}
	case "promote":
		return nil, core.Beyond("the embedded engine has no canaries, so there is nothing to promote; Nomad has them")
	default:
		return q.notHere()
	}
	if err != nil {
		return nil, err
	}
	q.indexed(index)
	return map[string]any{"EvalID": eval, "EvalCreateIndex": index, "DeploymentModifyIndex": index, "RevertedJobVersion": nil, "Index": index}, nil
}
