package nomadhttp

import (
	"net/http"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/embedded/core"
	"github.com/heteroflow/heteroflow/internal/embedded/state"
)

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
