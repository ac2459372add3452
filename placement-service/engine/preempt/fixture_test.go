package preempt

import (
	"fmt"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// world is a cluster under test with what runs in it.
type world struct {
	snapshot engine.Snapshot
	running  []Allocation
}

// node adds a machine with pools.
func (w *world) node(name string, cpu int, pools ...engine.Pool) {
	w.snapshot.Nodes = append(w.snapshot.Nodes, engine.Node{
		ID: name, Name: name, Datacenter: "dc1", Ready: true, CPUMHz: cpu, MemoryMiB: 1 << 20, Drivers: map[string]bool{"heteroflow": true}, Pools: pools,
	})
}

// whole is a pool of whole cards of one model.
func whole(model string, cards int) engine.Pool {
	p := engine.Pool{Group: "nvidia/gpu/" + model, Vendor: accel.NVIDIA, Type: "gpu", Name: model, Model: model, Form: accel.Whole, UnitMiB: 81920, Total: cards}
	for i := range cards {
		p.Cards = append(p.Cards, engine.Card{UUID: fmt.Sprintf("GPU-%s-%d", model, i), Healthy: true, Units: 1})
	}
	return p
}

// shared is one shared card with slices of 1 GiB.
func shared(name string, slices int) engine.Pool {
	return engine.Pool{
		Group: "nvidia/vgpu/" + name, Vendor: accel.NVIDIA, Type: "vgpu", Name: name, Model: "A100", Form: accel.Shared, UnitMiB: 1024, Total: slices,
		Modes: []string{"mps"}, Cards: []engine.Card{{UUID: "GPU-" + name, Healthy: true, Units: slices}},
	}
}

// runs starts an allocation: its claims are taken from the snapshot.
func (w *world) runs(a Allocation) {
	for i := range w.snapshot.Nodes {
		n := &w.snapshot.Nodes[i]
		if n.ID != a.NodeID {
			continue
		}
		n.UsedCPUMHz += a.CPUMHz
		n.UsedMemoryMiB += a.MemoryMiB
		for _, c := range a.Claims {
			for j := range n.Pools {
				if n.Pools[j].Group == c.Group {
					n.Pools[j].Used += c.Units
				}
			}
		}
	}
	w.running = append(w.running, a)
}

// take is an allocation of a job of its own that has run for a day.
func take(id, node, group string, units, priority int, change ...func(*Allocation)) Allocation {
	a := Allocation{ID: id, Job: id, NodeID: node, Claims: []engine.Claim{{Group: group, Units: units}}, CPUMHz: 100, MemoryMiB: 100, Priority: priority, StartedAt: now - 86400}
	for _, c := range change {
		c(&a)
	}
	return a
}

func ofGang(job string) func(*Allocation) { return func(a *Allocation) { a.Job, a.Whole = job, true } }

// now is when questions are asked, in seconds.
const now = 1_800_000_000

// asks is a request of one group.
func asks(priority, allocations int, a accel.Ask) engine.Request {
	if a.Count == 0 {
		a.Count = 1
	}
	return engine.Request{JobID: "asker", Namespace: "default", Priority: priority, Groups: []engine.GroupAsk{{
		Name: "g", Count: allocations, CPUMHz: 100, MemoryMiB: 100, Tasks: []engine.TaskAsk{{Name: "t", Driver: "heteroflow", Ask: &a}},
	}}}
}

func (w *world) question(r engine.Request) Question {
	return Question{
		Engine: engine.New(engine.Config{}), Snapshot: w.snapshot, Request: r, Running: w.running, Now: now,
		Policy: Policy{Mode: Running, MinRuntime: 600, Guard: 1800},
	}
}

// without are the allocations that a plan leaves.
func without(running []Allocation, victims []string) (left, gone []Allocation) {
	dead := map[string]bool{}
	for _, id := range victims {
		dead[id] = true
	}
	for _, a := range running {
		if dead[a.ID] {
			gone = append(gone, a)
		} else {
			left = append(left, a)
		}
	}
	return left, gone
}
