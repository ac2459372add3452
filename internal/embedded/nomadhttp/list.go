package nomadhttp

import (
	"net/http"
	"slices"
	"strings"

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

func (q *request) nodes() (any, error) {
	if err := q.only(http.MethodGet); err != nil {
		return nil, err
	}
	resources, err := q.flag("resources")
	if err != nil {
		return nil, err
	}
	os, err := q.flag("os")
	if err != nil {
		return nil, err
	}
	return q.read(func(r state.Reader) (any, uint64, error) {
		nodes, err := page(q, r.Nodes(), func(n *api.Node) string { return n.ID })
		stubs := make([]*api.NodeListStub, 0, len(nodes))
		for _, n := range nodes {
			address, _, _ := strings.Cut(n.HTTPAddr, ":")
			s := &api.NodeListStub{
				Address: address, ID: n.ID, Datacenter: n.Datacenter, Name: n.Name, NodeClass: n.NodeClass, NodePool: n.NodePool,
				Version: n.Attributes["nomad.version"], Drain: n.DrainStrategy != nil, SchedulingEligibility: n.SchedulingEligibility,
				Status: n.Status, StatusDescription: n.StatusDescription, Drivers: n.Drivers, LastDrain: n.LastDrain,
				CreateIndex: n.CreateIndex, ModifyIndex: n.ModifyIndex,
			}
			if resources {
				s.NodeResources, s.ReservedResources = n.NodeResources, n.ReservedResources
			}
			if os {
				s.Attributes = map[string]string{"os.name": n.Attributes["os.name"]}
			}
			stubs = append(stubs, s)
		}
		return stubs, r.TableIndex("nodes", ""), err
	})
}

func (q *request) node() (any, error) {
	id := q.path[1]
	if q.path[1] == "pool" || q.path[1] == "pools" {
		return q.nodePool()
	}
	action := strings.Join(q.path[2:], "/")
	if err := checkID("node", id); err != nil {
		return nil, err
	}
	switch {
	case action == "" && q.get():
		return q.read(func(r state.Reader) (any, uint64, error) {
			n := r.Node(id)
			if n == nil {
				return nil, 0, core.NotFound("node not found")
			}
			return wire(n), n.ModifyIndex, nil
		})
	case action == "allocations" && q.get():
		return q.read(func(r state.Reader) (any, uint64, error) {
			return list(r.AllocsByNode(id)), r.TableIndex("allocs", id), nil
		})
	case action == "drain" && q.put():
		return q.drain(id)
	case action == "eligibility" && q.put():
		return q.eligibility(id)
	case action == "evaluate" && q.put():
		return q.nodeEvaluate(id)
	case action == "purge" && q.put():
		return nil, core.Beyond("a node of the embedded engine is this machine: end the engine to remove it")
	}
	return q.notHere()
}

// wire fills in the fields that clients before 1.7 read, so that they do not stumble over their absence.
func wire(n *api.Node) *api.Node {
	out := *n
	if r := n.NodeResources; r != nil && n.Resources == nil {
		out.Resources = &api.Resources{
			CPU: new(int(r.Cpu.CpuShares)), MemoryMB: new(int(r.Memory.MemoryMB)), DiskMB: new(int(r.Disk.DiskMB)), Networks: r.Networks,
			IOPS: new(0),
		}
	}
	if r := n.ReservedResources; r != nil && n.Reserved == nil {
		out.Reserved = &api.Resources{CPU: new(int(r.Cpu.CpuShares)), MemoryMB: new(int(r.Memory.MemoryMB)), DiskMB: new(int(r.Disk.DiskMB)), IOPS: new(0)}
	}
	return &out
}

func (q *request) drain(id string) (any, error) {
	req := &api.NodeUpdateDrainRequest{}
	if err := q.decode(req); err != nil {
		return nil, err
	}
	index, evals, err := q.Core.Drain(id, req.DrainSpec, req.MarkEligible, req.Meta)
	return q.nodeChanged(index, evals, err)
}

func (q *request) eligibility(id string) (any, error) {
	req := &api.NodeUpdateEligibilityRequest{}
	if err := q.decode(req); err != nil {
		return nil, err
	}
	index, evals, err := q.Core.SetEligibility(id, req.Eligibility)
	return q.nodeChanged(index, evals, err)
}

func (q *request) nodeChanged(index uint64, evals []string, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	q.indexed(index)
	return map[string]any{"NodeModifyIndex": index, "EvalIDs": evals, "EvalCreateIndex": index, "Index": index}, nil
}

func (q *request) nodeEvaluate(id string) (any, error) {
	evals, index, err := q.Core.EvaluateNode(id)
	return q.nodeChanged(index, evals, err)
}

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

func (q *request) services() (any, error) {
	if err := q.only(http.MethodGet); err != nil {
		return nil, err
	}
	return q.read(func(r state.Reader) (any, uint64, error) {
		tags := map[string]map[string][]string{}
		for _, s := range r.Services() {
			if q.namespace() != "*" && s.Namespace != q.namespace() {
				continue
			}
			if tags[s.Namespace] == nil {
				tags[s.Namespace] = map[string][]string{}
			}
			known := tags[s.Namespace][s.ServiceName]
			for _, t := range s.Tags {
				if !slices.Contains(known, t) {
					known = append(known, t)
				}
			}
			tags[s.Namespace][s.ServiceName] = list(known)
		}
		out := []*api.ServiceRegistrationListStub{}
		for _, ns := range sortedKeys(tags) {
			entry := &api.ServiceRegistrationListStub{Namespace: ns}
			for _, name := range sortedKeys(tags[ns]) {
				slices.Sort(tags[ns][name])
				entry.Services = append(entry.Services, &api.ServiceRegistrationStub{ServiceName: name, Tags: tags[ns][name]})
			}
			out = append(out, entry)
		}
		return out, r.TableIndex("services", ""), nil
	})
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func (q *request) service() (any, error) {
	name := q.path[1]
	switch {
	case len(q.path) == 2 && q.get():
		return q.read(func(r state.Reader) (any, uint64, error) {
			return list(r.ServicesByName(q.namespace(), name)), r.TableIndex("services", state.JobKey(q.namespace(), name)), nil
		})
	case len(q.path) == 3 && q.r.Method == http.MethodDelete:
		index, err := q.Core.DeleteService(q.namespace(), name, q.path[2])
		if err != nil {
			return nil, err
		}
		q.indexed(index)
		return nil, nil
	case len(q.path) > 3:
		return q.notHere()
	}
	return nil, errMethod
}
