package nomadhttp

import (
	"net/http"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/embedded/core"
	"github.com/heteroflow/heteroflow/internal/embedded/state"
)

func stub(a *api.Allocation) *api.AllocationListStub {
	s := a.Stub()
	s.JobType, s.JobVersion = *a.Job.Type, *a.Job.Version
	return s
}

func (q *request) allocations() (any, error) {
	if err := q.only(http.MethodGet); err != nil {
		return nil, err
	}
	resources, err := q.flag("resources")
	if err != nil {
		return nil, err
	}
	states := q.query.Get("task_states") != "false"
	return q.read(func(r state.Reader) (any, uint64, error) {
		allocs := slices.DeleteFunc(r.Allocs(), func(a *api.Allocation) bool { return q.namespace() != "*" && a.Namespace != q.namespace() })
		allocs, err := page(q, allocs, func(a *api.Allocation) string { return a.ID })
		stubs := make([]*api.AllocationListStub, 0, len(allocs))
		for _, a := range allocs {
			s := stub(a)
			if resources {
				s.AllocatedResources = a.AllocatedResources
			}
			if !states {
				s.TaskStates = nil
			}
			stubs = append(stubs, s)
		}
		return stubs, r.TableIndex("allocs", ""), err
	})
}

func (q *request) allocation() (any, error) {
	id := q.path[1]
	action := strings.Join(q.path[2:], "/")
	switch {
	case action == "" && q.get():
		if err := checkID("alloc", id); err != nil {
			return nil, err
		}
		return q.read(func(r state.Reader) (any, uint64, error) {
			a := r.Alloc(id)
			if a == nil {
				return nil, 0, core.NotFound("alloc not found")
			}
			return a, a.ModifyIndex, nil
		})
	case action == "stop" && q.put():
		eval, index, err := q.Core.StopAlloc(id)
		if err != nil {
			return nil, err
		}
		return q.evaluated(eval, index), nil
	case action == "services" && q.get():
		return q.read(func(r state.Reader) (any, uint64, error) {
			return list(r.ServicesByAlloc(id)), r.TableIndex("services", ""), nil
		})
	case action == "checks" && q.get():
		return q.checks(id)
	case action == "" || action == "stop":
		return nil, errMethod
	}
	return q.notHere()
}
