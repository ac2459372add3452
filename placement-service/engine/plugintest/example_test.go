package plugintest_test

import (
	"fmt"
	"testing"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/engine/plugintest"
)

// nearData keeps a job's tasks out of racks that do not hold its data, when the job says which do, and prefers nodes of
// the first of them: one type with as many of the methods as it needs, and nothing that it keeps.
type nearData struct{ racks []string }

func (nearData) Name() string { return "near_data" }

// Attributes says that nodes of one rack are the same to it.
func (nearData) Attributes() []string { return []string{"meta.rack"} }

func (p nearData) Filter(c *engine.Candidate) engine.Code {
	if p.rank(c) == len(p.racks) && len(p.racks) > 0 {
		return "far_from_data"
	}
	return ""
}

func (p nearData) Score(c *engine.Candidate) float64 {
	if len(p.racks) == 0 {
		return 0
	}
	return 100 * (1 - float64(p.rank(c))/float64(len(p.racks)))
}

func (p nearData) rank(c *engine.Candidate) int {
	for i, rack := range p.racks {
		if c.Node.Attrs["meta.rack"] == rack {
			return i
		}
	}
	return len(p.racks)
}

// The suite is all that its test needs beside what it means.
func TestNearData(t *testing.T) {
	t.Parallel()
	plugintest.Run(t, nearData{})
	plugintest.Run(t, nearData{racks: []string{"r2", "r1"}})
}

func Example() {
	snapshot := engine.Snapshot{}
	for _, rack := range []string{"r1", "r2", "r3"} {
		snapshot.Nodes = append(snapshot.Nodes, engine.Node{
			ID: "node-" + rack, Ready: true, CPUMHz: 10000, MemoryMiB: 10000, Drivers: map[string]bool{"docker": true},
			Attrs: map[string]string{"meta.rack": rack},
			Pools: []engine.Pool{{Group: "nvidia/gpu/A100", Vendor: accel.NVIDIA, Type: "gpu", Name: "A100", Model: "A100", Form: accel.Whole, UnitMiB: 40960, Total: 8}},
		})
	}
	e := engine.New(engine.Config{}).With(nearData{racks: []string{"r3", "r2"}}, 10)
	d := e.Decide(snapshot, engine.Request{JobID: "train", Groups: []engine.GroupAsk{{
		Name: "g", Count: 2, Tasks: []engine.TaskAsk{{Name: "t", Driver: "docker", Ask: &accel.Ask{Count: 8}}},
	}}})
	for _, p := range d.Groups[0].Placements {
		fmt.Println(p.NodeID)
	}
	// Output:
	// node-r3
	// node-r2
}
