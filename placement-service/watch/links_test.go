package watch

import (
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// linkedNode has four whole cards, 0 and 2 and 1 and 3 of which are linked.
func linkedNode() *api.Node {
	n := node()
	g := &api.NodeDeviceResource{Vendor: "nvidia", Type: "gpu", Name: "A100", Attributes: map[string]*api.Attribute{"memory": mibAttr(81920), "form": textAttr("whole")}}
	n.NodeResources.Devices = []*api.NodeDeviceResource{g}
	uuid := func(i int) string { return fmt.Sprint("GPU-", i) }
	for i := range 4 {
		other := accel.PeerID(accel.NVIDIA, uuid((i+2)%4))
		g.Instances = append(g.Instances, &api.NodeDevice{ID: uuid(i), Healthy: true})
		n.NodeResources.Devices = append(n.NodeResources.Devices, &api.NodeDeviceResource{
			Vendor: "nvidia", Type: "card", Name: "A100-" + uuid(i), Attributes: map[string]*api.Attribute{
				"uuid": textAttr(uuid(i)), "links": textAttr(other + ":nv12,celsewhere:pix,cnew:lightning9"), "nic": textAttr(fmt.Sprint("mlx5_", i/2)), "nic_link": textAttr("pix"),
				"numa_node": {IntVal: new(int64(i / 2))},
			},
		})
	}
	n.Attributes["unique.network.ip-address"] = "10.0.0.1"
	return n
}

func TestWorld_ReadsLinks(t *testing.T) {
	t.Parallel()
	w := NewWorld()
	w.setNode(linkedNode(), time.Now())
	cards := w.Snapshot(nil).Nodes[0].Pools[0].Cards
	for i, want := range []string{",,nv12,", ",,,nv12", "nv12,,,", ",nv12,,"} {
		if c := cards[i]; c.Links != want || c.NIC != fmt.Sprint("mlx5_", i/2) || c.NICLink != "pix" || c.NUMA == nil || *c.NUMA != i/2 {
			t.Errorf("card %d is %+v, want links %q", i, c, want)
		}
	}
	if w.NearestNIC("n1", "GPU-3") != "mlx5_1" || w.NearestNIC("n1", "GPU-9") != "" || w.NearestNIC("n2", "GPU-3") != "" {
		t.Error("the nearest network card is another")
	}
	if w.NodeAddress("n1") != "10.0.0.1" || w.NodeAddress("n2") != "" {
		t.Error("the node's address is another")
	}
}

// Cards that a plan names are taken for others until the allocation is seen, or the plan is given up or too old.
func TestWorld_PinsCards(t *testing.T) {
	t.Parallel()
	now := time.Now()
	job, other := JobKey{"default", "llm"}, JobKey{"default", "other"}
	groups := func(cards ...string) []engine.GroupPlan {
		return []engine.GroupPlan{{Placements: []engine.Placement{{NodeID: "n1", Tasks: []engine.TaskPlacement{{Claims: []engine.Claim{{Group: "nvidia/gpu/A100", Units: len(cards), Cards: cards}}}}}}}}
	}
	used := func(w *World) string {
		out := ""
		for _, s := range []engine.Snapshot{w.Snapshot(nil), {Nodes: []engine.Node{w.engineNode("n1", Taken{})}}} {
			for _, c := range s.Nodes[0].Pools[0].Cards {
				out += fmt.Sprint(c.UsedUnits)
			}
			out += " "
		}
		return out
	}
	w := NewWorld()
	w.setNode(linkedNode(), now)
	w.outOfDate(nil)
	w.Pin(job, groups("GPU-0", "GPU-2"), now)
	if got := used(w); got != "1010 1010 " {
		t.Errorf("pinned: %s", got)
	}
	if stale := w.outOfDate(nil); len(stale) != 1 {
		t.Errorf("the followed cluster does not hear of it: %v", stale)
	}
	w.Pin(other, groups("GPU-1"), now)
	w.Pin(job, groups("GPU-3"), now)
	if got := used(w); got != "0101 0101 " {
		t.Errorf("another plan of the job: %s", got)
	}
	a := alloc("a", 5, "pending", "GPU-3")
	a.Devices[0].Group = "nvidia/gpu/A100"
	w.setAlloc(a, now)
	if len(w.pins.jobs) != 1 {
		t.Errorf("pins are left beside the allocation: %+v", w.pins.jobs)
	}
	if got := used(w); got != "0101 0101 " {
		t.Errorf("with the allocation: %s", got)
	}
	w.Pin(JobKey{"default", "third"}, nil, now.Add(2*pinLife))
	if got := used(w); got != "0001 0001 " || len(w.pins.cards) != 0 {
		t.Errorf("after their time: %s, %v", got, w.pins.cards)
	}
}
