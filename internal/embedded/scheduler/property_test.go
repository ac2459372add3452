package scheduler_test

import (
	"fmt"
	"testing"

	"github.com/hashicorp/nomad/api"
	"pgregory.net/rapid"
)

// checkWorld holds a cluster to what must always be true of it.
func checkWorld(t *rapid.T, w *world) {
	for id, n := range w.nodes {
		holder := map[string]*api.Allocation{}
		ports := map[int]*api.Allocation{}
		var cpu, memory int64
		for _, a := range w.list() {
			if a.NodeID != id || a.ClientStatus == "complete" || a.ClientStatus == "failed" || a.ClientStatus == "lost" {
				continue
			}
			if p := w.allocs[a.PreviousAllocation]; p != nil && p.NodeID == id && p.ClientStatus != "complete" {
				if p.DesiredStatus == "run" {
					t.Fatalf("%s runs beside the one it replaces", a.Name)
				}
				continue // it starts only when that one has ended, and may take its room
			}
			for _, task := range a.AllocatedResources.Tasks {
				cpu += task.Cpu.CpuShares
				memory += task.Memory.MemoryMB
				for _, d := range task.Devices {
					for _, instance := range d.DeviceIDs {
						if other := holder[instance]; other != nil {
							t.Fatalf("instance %s is with %s and with %s", instance, other.ID, a.ID)
						}
						holder[instance] = a
					}
				}
			}
			for _, p := range a.AllocatedResources.Shared.Ports {
				if other := ports[p.Value]; other != nil {
					t.Fatalf("port %d is with %s and with %s", p.Value, other.ID, a.ID)
				}
				ports[p.Value] = a
			}
		}
		if cpu > n.NodeResources.Cpu.CpuShares || memory > n.NodeResources.Memory.MemoryMB {
			t.Fatalf("node %s has %d MHz and %d MiB in use of %d and %d", id, cpu, memory, n.NodeResources.Cpu.CpuShares, n.NodeResources.Memory.MemoryMB)
		}
	}
}

// checkCount holds a decision to the count of its job.
func checkCount(t *rapid.T, w *world) {
	want := *w.job.TaskGroups[0].Count
	if *w.job.Stop {
		want = 0
	}
	if live := len(w.live()); live > want {
		t.Fatalf("%d allocations are to run after the decision, want at most %d", live, want)
	}
}

func TestSchedule_NeverGivesAnythingTwice(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapid.Uint64().Draw(t, "seed"))
		for i := range rapid.IntRange(1, 4).Draw(t, "nodes") {
			n := node(fmt.Sprintf("n%d", i), rapid.IntRange(100, 1000).Draw(t, "cpu"), rapid.IntRange(100, 1000).Draw(t, "memory"),
				fmt.Sprintf("a/vgpu/X%d=%d", i, rapid.IntRange(1, 8).Draw(t, "x")), fmt.Sprintf("a/vgpu/Y%d=%d", i, rapid.IntRange(1, 8).Draw(t, "y")))
			n.NodeResources.MinDynamicPort, n.NodeResources.MaxDynamicPort = 20000, 20005
			w.nodes[n.ID] = n
		}
		kind := rapid.SampledFrom([]string{"batch", "service"}).Draw(t, "type")
		make := func() *api.Job {
			j := job(kind, rapid.IntRange(0, 8).Draw(t, "count"), fmt.Sprintf("vgpu=%d", rapid.IntRange(1, 5).Draw(t, "want")))
			if rapid.Bool().Draw(t, "second block") {
				d := uint64(rapid.IntRange(1, 3).Draw(t, "second"))
				res := j.TaskGroups[0].Tasks[0].Resources
				res.Devices = append(res.Devices, &api.RequestedDevice{Name: "a/vgpu", Count: &d})
			}
			j.TaskGroups[0].Networks = []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "p"}}}}
			return j
		}
		w.register(make())
		pick := func() string {
			if live := w.live(); len(live) > 0 {
				return rapid.SampledFrom(live).Draw(t, "alloc").ID
			}
			return ""
		}
		t.Repeat(map[string]func(*rapid.T){
			"register": func(*rapid.T) { w.register(make()) },
			"stop": func(*rapid.T) {
				next := *w.job
				next.Stop = new(true)
				w.register(&next)
			},
			"evaluate": func(t *rapid.T) {
				w.evaluate()
				checkCount(t, w)
			},
			"settle": func(*rapid.T) { w.settle() },
			"end some": func(*rapid.T) {
				for id, a := range w.allocs {
					if a.DesiredStatus != "run" && a.ClientStatus == "running" {
						w.set(id, func(a *api.Allocation) { a.ClientStatus = "complete" })
						return
					}
				}
			},
			"fail": func(*rapid.T) {
				if id := pick(); id != "" {
					w.set(id, func(a *api.Allocation) { a.ClientStatus = "failed" })
				}
			},
			"move": func(*rapid.T) {
				if id := pick(); id != "" {
					w.set(id, func(a *api.Allocation) { a.DesiredTransition.Migrate = new(true) })
				}
			},
			"flip node": func(t *rapid.T) {
				id := fmt.Sprintf("n%d", rapid.IntRange(0, len(w.nodes)-1).Draw(t, "node"))
				n := *w.nodes[id]
				if n.Status = "down"; w.nodes[id].Status == "down" {
					n.Status = "ready"
				} else {
					w.nodes[id] = &n
					w.evaluate() // a lost node's tasks are written off before it can come back
					return
				}
				w.nodes[id] = &n
			},
			"sicken": func(t *rapid.T) {
				id := fmt.Sprintf("n%d", rapid.IntRange(0, len(w.nodes)-1).Draw(t, "node"))
				d := w.nodes[id].NodeResources.Devices[0].Instances[0]
				d.Healthy = !d.Healthy
			},
			"": func(t *rapid.T) { checkWorld(t, w) },
		})
	})
}
