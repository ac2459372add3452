package watch

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/engine"
)

func textAttr(s string) *api.Attribute { return &api.Attribute{StringVal: &s} }

func mibAttr(n int64) *api.Attribute { return &api.Attribute{IntVal: &n, Unit: "MiB"} }

// node has two whole cards of one model, one of them sick, a shared card, and a device that is no accelerator.
func node() *api.Node {
	return &api.Node{
		ID: "n1", Name: "node-1", Datacenter: "dc1", Status: "ready", SchedulingEligibility: "eligible",
		Attributes: map[string]string{"kernel.name": "linux"}, Meta: map[string]string{"rack": "7"},
		Drivers: map[string]*api.DriverInfo{"heteroflow": {Detected: true, Healthy: true}, "docker": {Detected: true}},
		NodeResources: &api.NodeResources{
			Cpu: api.NodeCpuResources{CpuShares: 1000}, Memory: api.NodeMemoryResources{MemoryMB: 2000},
			Devices: []*api.NodeDeviceResource{
				{
					Vendor: "nvidia", Type: "gpu", Name: "H100", Attributes: map[string]*api.Attribute{"memory": mibAttr(81920), "form": textAttr("whole")},
					Instances: []*api.NodeDevice{{ID: "GPU-1", Healthy: true}, {ID: "GPU-2", HealthDescription: "fell off the bus"}},
				},
				{Vendor: "nvidia", Type: "card", Name: "H100-x", Attributes: map[string]*api.Attribute{"uuid": textAttr("GPU-1"), "index": textAttr("3"), "form_policy": textAttr("auto")}},
				{
					Vendor: "ascend", Type: "vgpu", Name: "910B3-y", Attributes: map[string]*api.Attribute{"uuid": textAttr("NPU-1"), "unit_memory": mibAttr(1024), "model": textAttr("910B3"), "form": textAttr("shared"), "modes": textAttr("hami,vnpu"), "rounding": textAttr("hami:memory=1,parts=100;new:kind=?;vnpu:parts=20,vir10_3c_32g=32768/10")},
					Instances: []*api.NodeDevice{{ID: "c1.0", Healthy: true}, {ID: "c1.1", Healthy: true}},
				},
				{Vendor: "acme", Type: "usb", Name: "stick", Instances: []*api.NodeDevice{{ID: "u", Healthy: true}}},
			},
		},
		ReservedResources: &api.NodeReservedResources{Cpu: api.NodeReservedCpuResources{CpuShares: 100}},
	}
}

func TestWorld_ReadsANode(t *testing.T) {
	t.Parallel()
	w := NewWorld()
	if !w.setNode(node(), time.Now()) || w.setNode(node(), time.Now()) {
		t.Error("a new node changes the world once, the same again does not")
	}
	n := w.Snapshot(nil).Nodes[0]
	if !n.Ready || n.CPUMHz != 900 || n.MemoryMiB != 2000 || n.Attrs["meta.rack"] != "7" || !n.Drivers["heteroflow"] || n.Drivers["docker"] {
		t.Errorf("node is %+v", n)
	}
	if len(n.Pools) != 2 {
		t.Fatalf("pools are %+v, want the shared card and the whole ones", n.Pools)
	}
	shared, whole := n.Pools[0], n.Pools[1]
	if shared.Group != "ascend/vgpu/910B3-y" || shared.Form != accel.Shared || shared.UnitMiB != 1024 || shared.Total != 2 || !cmp.Equal(shared.Modes, []string{"hami", "vnpu"}) {
		t.Errorf("shared pool is %+v", shared)
	}
	vnpu := accel.Rounding{Mode: "vnpu", Parts: 20, Templates: []accel.Template{{Name: "vir10_3c_32g", MemoryMiB: 32768, Parts: 10}}}
	if diff := cmp.Diff([]accel.Rounding{vnpu}, shared.Rounding); diff != "" { // hami makes every size, and of the other nothing is known
		t.Errorf("rounding of the shared pool (-want +got)\n%s", diff)
	}
	if whole.UnitMiB != 81920 || whole.Total != 1 || len(whole.Cards) != 2 || !whole.Auto || whole.Cards[0].Index != 3 || whole.Cards[1].Healthy {
		t.Errorf("whole pool is %+v", whole)
	}
}

func alloc(id string, index uint64, status string, ids ...string) *Alloc {
	return allocOf(&api.Allocation{
		ID: id, Namespace: "default", JobID: "llm", TaskGroup: "g", NodeID: "n1", ClientStatus: status, DesiredStatus: "run", ModifyIndex: index,
		AllocatedResources: &api.AllocatedResources{Tasks: map[string]*api.AllocatedTaskResources{"t": {
			Cpu: api.AllocatedCpuResources{CpuShares: 50}, Memory: api.AllocatedMemoryResources{MemoryMB: 60},
			Devices: []*api.AllocatedDeviceResource{{Vendor: "ascend", Type: "vgpu", Name: "910B3-y", DeviceIDs: ids}},
		}}},
	})
}

func TestWorld_CountsWhatAllocationsHold(t *testing.T) {
	t.Parallel()
	w := NewWorld()
	w.setNode(node(), time.Now())
	if !w.setAlloc(alloc("a", 5, "running", "c1.0"), time.Now()) {
		t.Error("a new allocation with devices changes what is held")
	}
	if w.setAlloc(alloc("a", 4, "complete", "c1.0"), time.Now()) {
		t.Error("an older event was taken in")
	}
	n := w.Snapshot(nil).Nodes[0]
	if n.UsedCPUMHz != 50 || n.UsedMemoryMiB != 60 || n.Pools[0].Used != 1 || n.Pools[0].Cards[0].UsedUnits != 1 {
		t.Errorf("node is %+v", n)
	}
	want := []store.Claim{{NodeID: "n1", Group: "ascend/vgpu/910B3-y", Units: 1, TaskGroup: "g", Task: "t", AllocID: "a"}}
	if diff := cmp.Diff(want, w.LiveAllocs(JobKey{"default", "llm"})[0].Claims()); diff != "" {
		t.Errorf("claims (-want +got)\n%s", diff)
	}
	if got := w.Snapshot(Taken{"n1": {"ascend/vgpu/910B3-y": 2}}).Nodes[0].Pools[0].Used; got != 2 {
		t.Errorf("the ledger's 2 units are %d in the snapshot", got)
	}
	if !w.setAlloc(alloc("a", 6, "complete", "c1.0"), time.Now()) {
		t.Error("an ended allocation gives back what it held")
	}
	if n := w.Snapshot(nil).Nodes[0]; n.UsedCPUMHz != 0 || n.Pools[0].Used != 0 || len(w.JobsWithDevices()) != 0 {
		t.Errorf("something is left over: %+v", n)
	}
}

// TestWorld_KnowsWhomCardsAreFor: the node's meta says whom it is for, the ledger who is there.
func TestWorld_KnowsWhomCardsAreFor(t *testing.T) {
	t.Parallel()
	w, n := NewWorld(), node()
	n.Meta[MetaTenants], n.Meta[MetaShareTenants] = " red, blue ,,red", "blue"
	w.setNode(n, time.Now())
	const group = "ascend/vgpu/910B3-y"
	got := w.Snapshot(Taken{"n1": {group: 2, HeldBy(group, "red"): 1, HeldBy(group, "blue"): 1}}).Nodes[0]
	want := []engine.Holder{{Tenant: "blue", Units: 1}, {Tenant: "red", Units: 1}}
	if diff := cmp.Diff(want, got.Pools[0].Holders); diff != "" || got.Pools[0].Used != 2 || len(got.Pools) != 2 {
		t.Errorf("holders of %+v (-want +got)\n%s", got.Pools, diff)
	}
	if !cmp.Equal(got.Tenants, []string{"blue", "red"}) || !cmp.Equal(got.Beside, []string{"blue"}) {
		t.Errorf("for %v, together %v", got.Tenants, got.Beside)
	}
	if held := w.Snapshot(nil).Nodes[0].Pools[0].Holders; held != nil {
		t.Errorf("without a ledger holders are %v, want none known", held)
	}
	for tenant, want := range map[string][]string{"red": nil, "blue": {"blue"}} {
		if beside, alone := w.Alone("n1", group, tenant); !alone || !cmp.Equal(beside, want) {
			t.Errorf("%s is alone %v, but beside %v", tenant, alone, beside)
		}
	}
	if _, alone := w.Alone("n1", "nvidia/gpu/H100", "red"); alone {
		t.Error("a whole card has nobody to be alone from")
	}
}

func TestEvalBook_KnowsWhatIsStillToCome(t *testing.T) {
	t.Parallel()
	b, job := newEvalBook(), JobKey{"default", "llm"}
	eval := func(id, status string) *api.Evaluation {
		return &api.Evaluation{ID: id, Namespace: "default", JobID: "llm", Status: status}
	}
	b.expect(job, "e1")
	if !b.open(job) {
		t.Error("a registration's evaluation is to come")
	}
	b.note(eval("e2", "blocked"))
	if b.note(eval("e1", "complete")) || !b.open(job) {
		t.Error("the blocked evaluation is still to come")
	}
	if !b.note(eval("e2", "complete")) || b.open(job) {
		t.Error("nothing is to come any more")
	}
	b.expect(job, "e1")
	if b.open(job) {
		t.Error("an evaluation that ended before it was expected is not to come")
	}
	b.expect(job, "e3")
	if blocked := b.reset([]*api.Evaluation{eval("e4", "blocked")}, b.awaited()); len(blocked) != 1 || !b.ended("e3") {
		t.Errorf("after a list: blocked %v, e3 ended %v", blocked, b.ended("e3"))
	}
}

func TestTakesElse(t *testing.T) {
	t.Parallel()
	claim := func(alloc string, units int) store.Claim {
		return store.Claim{NodeID: "n", Group: "g", Units: units, AllocID: alloc}
	}
	for name, c := range map[string]struct {
		held, live []store.Claim
		coming     bool
		want       bool
	}{
		"confirmed":              {[]store.Claim{claim("", 5)}, []store.Claim{claim("a", 5)}, false, false},
		"still to come":          {[]store.Claim{claim("", 5)}, nil, true, false},
		"released":               {[]store.Claim{claim("a", 5)}, nil, false, true},
		"released, more to come": {[]store.Claim{claim("a", 5)}, nil, true, true},
		"adopted":                {nil, []store.Claim{claim("a", 5)}, false, true},
		"nothing":                {nil, nil, false, false},
	} {
		if got := takesElse(store.Reservation{Claims: c.held}, c.live, c.coming); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// What a driver does not say of its runtimes must not keep its node from anything.
func TestWorld_ReadsRuntimes(t *testing.T) {
	t.Parallel()
	const docker, process = "driver.heteroflow.runtime.docker", "driver.heteroflow.runtime.process"
	for name, c := range map[string]struct {
		attrs map[string]string
		want  map[string]bool
	}{
		"an old driver":      {map[string]string{"driver.heteroflow.version": "0.0.1"}, map[string]bool{}},
		"Docker alone":       {map[string]string{docker: "true", docker + ".version": "99"}, map[string]bool{"docker": true}},
		"both":               {map[string]string{docker: "true", process: "true"}, map[string]bool{"docker": true, "process": true}},
		"a daemon that died": {map[string]string{docker: "", process: "true"}, map[string]bool{"docker": false, "process": true}},
	} {
		n := node()
		n.Attributes = c.attrs
		w := NewWorld()
		w.setNode(n, time.Now())
		if diff := cmp.Diff(c.want, w.Snapshot(nil).Nodes[0].Runtimes); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}

func TestWorld_CountsWhatBeginsAndEnds(t *testing.T) {
	t.Parallel()
	w := NewWorld()
	w.setAllocs([]*Alloc{alloc("old", 1, "running", "c1.0")}, time.Now())
	for _, a := range []*Alloc{
		alloc("a", 2, "pending", "c1.1"), alloc("a", 3, "running", "c1.1"), alloc("a", 5, "complete", "c1.1"),
		alloc("old", 6, "failed", "c1.0"),
	} {
		w.setAlloc(a, time.Now())
	}
	if placed, left := w.Traffic(); placed != 1 || left != 2 {
		t.Errorf("%d began and %d ended, want 1 and 2: what was there before did not begin", placed, left)
	}
}
