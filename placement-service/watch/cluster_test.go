package watch

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"
	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// TestWorld_DecidesAsOnItsSnapshot whatever changed since the last decision: nodes, allocations, what the ledger holds.
func TestWorld_DecidesAsOnItsSnapshot(t *testing.T) {
	t.Parallel()
	engines := []*engine.Engine{engine.New(engine.Config{}), engine.New(engine.Config{Plugins: []engine.PluginSetting{{Name: engine.LoadPlugin, Enabled: true}}})}
	rapid.Check(t, func(t *rapid.T) {
		w := NewWorld()
		var taken Taken
		for step := range rapid.IntRange(1, 12).Draw(t, "steps") {
			for range rapid.IntRange(0, 3).Draw(t, "changes") {
				id := fmt.Sprintf("n%d", rapid.IntRange(1, 4).Draw(t, "node"))
				switch rapid.IntRange(0, 5).Draw(t, "what") {
				case 0, 1:
					n := node()
					n.ID, n.Name = id, id
					n.SchedulingEligibility = rapid.SampledFrom([]string{api.NodeSchedulingEligible, api.NodeSchedulingIneligible}).Draw(t, "eligible")
					w.setNode(n, time.Now())
				case 2:
					w.dropNodes(map[string]bool{"n1": true, "n2": true}, time.Now())
				case 3:
					a := alloc("a"+id, uint64(step+1), rapid.SampledFrom([]string{"running", "complete"}).Draw(t, "status"), "c1.0")
					a.NodeID = id
					w.setAlloc(a, time.Now())
				case 4:
					busy := rapid.SampledFrom([]float64{0, 96, 99}).Draw(t, "busy")
					w.setLoad(id, statsOf(100-busy, map[string]*api.StatValue{accel.StatUtilization: number64(busy)}), time.Now())
				default:
					taken = maps.Clone(taken)
					if taken == nil {
						taken = Taken{}
					}
					units := rapid.IntRange(0, 64).Draw(t, "units")
					tenant := rapid.SampledFrom([]string{"", "blue", "red"}).Draw(t, "holder")
					taken[id] = map[string]int{"ascend/vgpu/910B3-y": units, HeldBy("ascend/vgpu/910B3-y", tenant): units}
					if rapid.IntRange(0, 5).Draw(t, "forgotten") == 0 {
						taken = nil
					}
				}
			}
			r := engine.Request{JobID: "j", Namespace: "default", Tenant: rapid.SampledFrom([]string{"", "blue"}).Draw(t, "tenant"), Groups: []engine.GroupAsk{{Name: "g", Count: 1, Tasks: []engine.TaskAsk{{
				Name: "t", Ask: &accel.Ask{Count: 1, MemoryMiB: uint64(rapid.IntRange(0, 70).Draw(t, "gib")) << 10},
			}}}}}
			e := rapid.SampledFrom(engines).Draw(t, "engine")
			if diff := cmp.Diff(e.Decide(w.Snapshot(taken), r), w.Decide(e, taken, r)); diff != "" {
				t.Fatalf("(-on the snapshot +by the world)\n%s", diff)
			}
		}
	})
}
