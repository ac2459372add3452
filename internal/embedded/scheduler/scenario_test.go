package scheduler_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/embedded/scheduler"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// world is a cluster in memory that applies plans as the engine does.
type world struct {
	nodes      map[string]*api.Node
	allocs     map[string]*api.Allocation
	job        *api.Job
	deployment *api.Deployment
	index      uint64
	ids        int
	now        time.Time
	rand       *rand.Rand
}

func newWorld(seed uint64, nodes ...*api.Node) *world {
	w := &world{nodes: map[string]*api.Node{}, allocs: map[string]*api.Allocation{}, index: 10, now: noon, rand: rand.New(rand.NewPCG(seed, 1))}
	for _, n := range nodes {
		w.nodes[n.ID] = n
	}
	return w
}

// node is a ready node with groups of devices, written "vendor/type/name=count".
func node(id string, cpu, memory int, groups ...string) *api.Node {
	n := &api.Node{
		ID: id, Name: id, Datacenter: "dc1", NodePool: "default", Status: "ready", SchedulingEligibility: "eligible",
		Attributes: map[string]string{"kernel.name": "linux"}, Meta: map[string]string{"rack": id},
		Drivers: map[string]*api.DriverInfo{"d": {Detected: true, Healthy: true}},
		NodeResources: &api.NodeResources{
			Cpu: api.NodeCpuResources{CpuShares: int64(cpu)}, Memory: api.NodeMemoryResources{MemoryMB: int64(memory)},
			Disk: api.NodeDiskResources{DiskMB: 100_000}, Networks: []*api.NetworkResource{{IP: "127.0.0.1"}},
		},
	}
	for _, g := range groups {
		name, count, _ := strings.Cut(g, "=")
		parts := strings.SplitN(name, "/", 3)
		d := &api.NodeDeviceResource{Vendor: parts[0], Type: parts[1], Name: parts[2], Attributes: map[string]*api.Attribute{
			"uuid": {StringVal: new("U-" + parts[2])}, "memory": {IntVal: new(int64(81920)), Unit: "MiB"},
		}}
		var total int
		if _, err := fmt.Sscan(count, &total); err != nil {
			panic(err)
		}
		for i := range total {
			d.Instances = append(d.Instances, &api.NodeDevice{ID: fmt.Sprintf("%s.%d", parts[2], i), Healthy: true})
		}
		n.NodeResources.Devices = append(n.NodeResources.Devices, d)
	}
	return n
}

// job makes a job of one group "g" with one task; device blocks are written "name=count".
func job(kind string, count int, devices ...string) *api.Job {
	t := api.NewTask("t", "d")
	t.Resources = &api.Resources{CPU: new(100), MemoryMB: new(100)}
	for _, d := range devices {
		name, n, _ := strings.Cut(d, "=")
		var count uint64
		if _, err := fmt.Sscan(n, &count); err != nil {
			panic(err)
		}
		t.Resources.Devices = append(t.Resources.Devices, &api.RequestedDevice{Name: name, Count: &count})
	}
	j := api.NewBatchJob("j", "j", "global", 50)
	j.Type = &kind
	j.Datacenters = []string{"*"}
	j.AddTaskGroup(api.NewTaskGroup("g", count).AddTask(t))
	j.Canonicalize()
	return j
}

func (w *world) id() string { w.ids++; return fmt.Sprintf("id-%04d", w.ids) }

func (w *world) list() []*api.Allocation {
	var all []*api.Allocation
	for _, a := range w.allocs {
		all = append(all, a)
	}
	slices.SortFunc(all, func(a, b *api.Allocation) int { return strings.Compare(a.ID, b.ID) })
	return all
}

// register makes the job the newest version.
func (w *world) register(j *api.Job) {
	w.index++
	if w.job != nil {
		j.Version, j.CreateIndex = new(*w.job.Version+1), w.job.CreateIndex
	} else {
		j.CreateIndex = new(w.index)
	}
	j.JobModifyIndex, j.ModifyIndex = new(w.index), new(w.index)
	w.job = j
}

// evaluate plans and applies.
func (w *world) evaluate() scheduler.Plan {
	nodes := make([]*api.Node, 0, len(w.nodes))
	for _, n := range w.nodes {
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b *api.Node) int { return strings.Compare(a.ID, b.ID) })
	plan := scheduler.Schedule(scheduler.Input{
		Now: w.now, Eval: &api.Evaluation{ID: w.id(), Namespace: "default"}, Job: w.job, Allocs: w.list(), Nodes: nodes,
		AllocsByNode: func(id string) []*api.Allocation {
			return slices.DeleteFunc(w.list(), func(a *api.Allocation) bool { return a.NodeID != id })
		},
		Deployment: w.deployment, Rand: w.rand, NewID: w.id, Node: func(id string) *api.Node { return w.nodes[id] },
	})
	for _, s := range plan.Stop {
		a := *s.Alloc
		a.DesiredStatus, a.DesiredDescription = "stop", s.Description
		if s.ClientStatus != "" {
			a.ClientStatus = s.ClientStatus
		}
		w.allocs[a.ID] = &a
	}
	for _, list := range [][]*api.Allocation{plan.InPlace, plan.Delayed, plan.Place} {
		for _, a := range list {
			w.allocs[a.ID] = a
		}
	}
	for _, a := range plan.Place {
		if p := w.allocs[a.PreviousAllocation]; p != nil {
			next := *p
			next.NextAllocation = a.ID
			w.allocs[p.ID] = &next
		}
	}
	if plan.Deployment != nil {
		w.deployment = plan.Deployment
	}
	return plan
}

// settle has the nodes catch up: what is to stop ends, what is to run runs and is healthy.
func (w *world) settle() {
	for id, a := range w.allocs {
		next := *a
		switch {
		case a.ClientStatus == "lost" || a.ClientStatus == "complete" || a.ClientStatus == "failed":
			continue
		case a.DesiredStatus != "run":
			next.ClientStatus = "complete"
		default:
			next.ClientStatus = "running"
			next.DeploymentStatus = &api.AllocDeploymentStatus{Healthy: new(true)}
		}
		w.allocs[id] = &next
	}
}

func (w *world) set(id string, change func(*api.Allocation)) {
	next := *w.allocs[id]
	change(&next)
	w.allocs[id] = &next
}

// live lists the allocations that are to run.
func (w *world) live() []*api.Allocation {
	return slices.DeleteFunc(w.list(), func(a *api.Allocation) bool {
		return a.DesiredStatus != "run" || a.ClientStatus == "complete" || a.ClientStatus == "failed" || a.ClientStatus == "lost"
	})
}

// outcome says a plan in one line, for comparison.
func outcome(p scheduler.Plan) string {
	u := p.Updates["g"]
	if u == nil {
		u = &api.DesiredUpdates{}
	}
	out := fmt.Sprintf("placed %d stopped %d in-place %d ignored %d", len(p.Place), len(p.Stop), len(p.InPlace), u.Ignore)
	if m := p.Failed["g"]; m != nil {
		why := map[string]int{}
		for k, n := range m.ConstraintFiltered {
			why[k] += n
		}
		for k, n := range m.DimensionExhausted {
			why[k] += n
		}
		text, err := json.Marshal(why)
		if err != nil {
			panic(err)
		}
		out += fmt.Sprintf(" failed %d %s", m.CoalescedFailures+1, text)
	}
	return out
}

func TestSchedule_FirstPlacement(t *testing.T) {
	t.Parallel()
	card := "nvidia/vgpu/A100-1=80"
	cases := map[string]struct {
		nodes []*api.Node
		job   *api.Job
		want  string
	}{
		"four shares of 20 fill one card": {
			[]*api.Node{node("n", 10000, 10000, card)},
			job("batch", 5, "nvidia/vgpu=20"),
			`placed 4 stopped 0 in-place 0 ignored 0 failed 1 {"devices: no devices match request":1}`,
		},
		"a block is served from one group": {
			[]*api.Node{node("n", 10000, 10000, card, "nvidia/vgpu/A100-2=80")},
			job("batch", 1, "vgpu=100"),
			`placed 0 stopped 0 in-place 0 ignored 0 failed 1 {"devices: no devices match request":1}`,
		},
		"more than all groups together have is filtered": {
			[]*api.Node{node("n", 10000, 10000, card)},
			job("batch", 1, "vgpu=81"),
			`placed 0 stopped 0 in-place 0 ignored 0 failed 1 {"missing devices":1}`,
		},
		"the exact name is another way to ask": {
			[]*api.Node{node("n", 10000, 10000, card)},
			job("batch", 1, "nvidia/vgpu/A100-1=80"),
			"placed 1 stopped 0 in-place 0 ignored 0",
		},
		"a vendor alone is read as a type": {
			[]*api.Node{node("n", 10000, 10000, card)},
			job("batch", 1, "nvidia=1"),
			`placed 0 stopped 0 in-place 0 ignored 0 failed 1 {"missing devices":1}`,
		},
		"a count of 0 is never satisfied": {
			[]*api.Node{node("n", 10000, 10000, card)},
			job("batch", 1, "vgpu=0"),
			`placed 0 stopped 0 in-place 0 ignored 0 failed 1 {"missing devices":1}`,
		},
		"two blocks of one task take different instances": {
			[]*api.Node{node("n", 10000, 10000, card)},
			job("batch", 3, "vgpu=20", "nvidia/vgpu=20"),
			`placed 2 stopped 0 in-place 0 ignored 0 failed 1 {"devices: no devices match request":1}`,
		},
		"processor shares run out": {
			[]*api.Node{node("n", 250, 10000)},
			job("batch", 3),
			`placed 2 stopped 0 in-place 0 ignored 0 failed 1 {"cpu":1}`,
		},
		"memory runs out": {
			[]*api.Node{node("n", 10000, 250)},
			job("batch", 4),
			`placed 2 stopped 0 in-place 0 ignored 0 failed 2 {"memory":1}`,
		},
		"an unhealthy instance is not handed out": {
			[]*api.Node{sick(node("n", 10000, 10000, "a/gpu/M=2"))},
			job("batch", 2, "gpu=1"),
			`placed 1 stopped 0 in-place 0 ignored 0 failed 1 {"devices: no devices match request":1}`,
		},
		"an unhealthy driver keeps tasks away": {
			[]*api.Node{without(node("n", 10000, 10000))},
			job("batch", 1),
			`placed 0 stopped 0 in-place 0 ignored 0 failed 1 {"missing drivers":1}`,
		},
		"a node of another datacenter is not looked at": {
			[]*api.Node{node("n", 10000, 10000)},
			with(job("batch", 1), func(j *api.Job) { j.Datacenters = []string{"eu-*"} }),
			`placed 0 stopped 0 in-place 0 ignored 0 failed 1 {}`,
		},
		"a node of another pool is not looked at": {
			[]*api.Node{node("n", 10000, 10000)},
			with(job("batch", 1), func(j *api.Job) { j.NodePool = new("gpu") }),
			`placed 0 stopped 0 in-place 0 ignored 0 failed 1 {}`,
		},
		"a constraint names the nodes": {
			[]*api.Node{node("a", 10000, 10000), node("b", 10000, 10000)},
			with(job("batch", 1), constrain("${node.unique.id}", "set_contains_any", "x,y")),
			`placed 0 stopped 0 in-place 0 ignored 0 failed 1 {"${node.unique.id} set_contains_any x,y":2}`,
		},
		"distinct_hosts gives each node one": {
			[]*api.Node{node("a", 10000, 10000), node("b", 10000, 10000)},
			with(job("batch", 3), constrain("", "distinct_hosts", "true")),
			`placed 2 stopped 0 in-place 0 ignored 0 failed 1 {"distinct_hosts":2}`,
		},
		"distinct_property gives each rack two": {
			[]*api.Node{node("a", 10000, 10000)},
			with(job("batch", 3), constrain("${meta.rack}", "distinct_property", "2")),
			`placed 2 stopped 0 in-place 0 ignored 0 failed 1 {"distinct_property: ${meta.rack}=a used by 2 allocs":1}`,
		},
		"a system job runs once on each node": {
			[]*api.Node{node("a", 10000, 10000), node("b", 10000, 10000), without(node("c", 10000, 10000))},
			job("system", 1),
			"placed 2 stopped 0 in-place 0 ignored 0",
		},
		"a static port is given once on a node": {
			[]*api.Node{node("n", 10000, 10000)},
			with(job("batch", 2), func(j *api.Job) {
				j.TaskGroups[0].Networks = []*api.NetworkResource{{ReservedPorts: []api.Port{{Label: "http", Value: 8080}}}}
			}),
			`placed 1 stopped 0 in-place 0 ignored 0 failed 1 {"network: reserved port collision http=8080":1}`,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(1, c.nodes...)
			w.register(c.job)
			if diff := cmp.Diff(c.want, outcome(w.evaluate())); diff != "" {
				t.Errorf("outcome (-want +got):\n%s", diff)
			}
		})
	}
}

func with(j *api.Job, change func(*api.Job)) *api.Job { change(j); return j }

func sick(n *api.Node) *api.Node {
	n.NodeResources.Devices[0].Instances[0].Healthy = false
	return n
}

func without(n *api.Node) *api.Node {
	n.Drivers = map[string]*api.DriverInfo{"d": {Detected: true}}
	return n
}

func constrain(left, operand, right string) func(*api.Job) {
	return func(j *api.Job) {
		j.Constraints = append(j.Constraints, &api.Constraint{LTarget: left, Operand: operand, RTarget: right})
	}
}

func TestSchedule_AffinityDrawsToOneGroup(t *testing.T) {
	t.Parallel()
	w := newWorld(7, node("n", 10000, 10000, "nvidia/vgpu/A-1=80", "nvidia/vgpu/A-2=80", "nvidia/vgpu/A-3=80"))
	j := job("batch", 4, "vgpu=20")
	j.TaskGroups[0].Tasks[0].Resources.Devices[0].Affinities = []*api.Affinity{{LTarget: "${device.attr.uuid}", Operand: "=", RTarget: "U-A-2", Weight: new(int8(100))}}
	w.register(j)
	for _, a := range w.evaluate().Place {
		if got := a.AllocatedResources.Tasks["t"].Devices[0].Name; got != "A-2" {
			t.Errorf("%s got a share of %s, want of A-2 while it has room", a.Name, got)
		}
	}
}

func TestSchedule_PinsExactInstances(t *testing.T) {
	t.Parallel()
	w := newWorld(7, node("n", 10000, 10000, "nvidia/vgpu/A-1=80"))
	j := job("batch", 1, "vgpu=3")
	j.TaskGroups[0].Tasks[0].Resources.Devices[0].Constraints = []*api.Constraint{{LTarget: "${device.ids}", Operand: "set_contains_any", RTarget: "A-1.5,A-1.7,A-1.9"}}
	w.register(j)
	got := w.evaluate().Place[0].AllocatedResources.Tasks["t"].Devices[0].DeviceIDs
	if diff := cmp.Diff([]string{"A-1.5", "A-1.7", "A-1.9"}, got); diff != "" {
		t.Errorf("instances (-want +got):\n%s", diff)
	}
}

func TestSchedule_UpdatesInPlaceOrNot(t *testing.T) {
	t.Parallel()
	g := func(j *api.Job) *api.TaskGroup { return j.TaskGroups[0] }
	task := func(j *api.Job) *api.Task { return j.TaskGroups[0].Tasks[0] }
	cases := map[string]struct {
		change func(*api.Job)
		want   string
	}{
		"nothing":               {func(*api.Job) {}, "placed 0 stopped 0 in-place 2 ignored 0"},
		"count up":              {func(j *api.Job) { g(j).Count = new(3) }, "placed 1 stopped 0 in-place 2 ignored 0"},
		"count down":            {func(j *api.Job) { g(j).Count = new(1) }, "placed 0 stopped 1 in-place 1 ignored 0"},
		"constraint that holds": {constrain("${attr.kernel.name}", "=", "linux"), "placed 0 stopped 0 in-place 2 ignored 0"},
		"affinity": {func(j *api.Job) {
			j.Affinities = []*api.Affinity{{LTarget: "${node.class}", RTarget: "x", Operand: "=", Weight: new(int8(5))}}
		}, "placed 0 stopped 0 in-place 2 ignored 0"},
		"kill timeout": {func(j *api.Job) { task(j).KillTimeout = new(time.Minute) }, "placed 0 stopped 0 in-place 2 ignored 0"},
		"env":          {func(j *api.Job) { task(j).Env = map[string]string{"A": "b"} }, "placed 2 stopped 2 in-place 0 ignored 0"},
		"job meta":     {func(j *api.Job) { j.Meta = map[string]string{"A": "b"} }, "placed 2 stopped 2 in-place 0 ignored 0"},
		"config":       {func(j *api.Job) { task(j).Config = map[string]any{"image": "x"} }, "placed 2 stopped 2 in-place 0 ignored 0"},
		"memory":       {func(j *api.Job) { task(j).Resources.MemoryMB = new(200) }, "placed 2 stopped 2 in-place 0 ignored 0"},
		"device constraint": {func(j *api.Job) {
			task(j).Resources.Devices[0].Constraints = []*api.Constraint{{LTarget: "${device.model}", Operand: "=", RTarget: "A-1"}}
		}, "placed 2 stopped 2 in-place 0 ignored 0"},
		"stopped":                 {func(j *api.Job) { j.Stop = new(true) }, "placed 0 stopped 2 in-place 0 ignored 0"},
		"another group":           {func(j *api.Job) { g(j).Name = new("h") }, "placed 2 stopped 2 in-place 0 ignored 0"},
		"constraint that is lost": {constrain("${attr.kernel.name}", "=", "plan9"), `placed 0 stopped 0 in-place 0 ignored 0 failed 2 {"${attr.kernel.name} = plan9":1}`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(3, node("n", 10000, 10000, "nvidia/vgpu/A-1=80"))
			w.register(job("batch", 2, "vgpu=10"))
			w.evaluate()
			w.settle()
			if got := outcome(w.evaluate()); got != "placed 0 stopped 0 in-place 0 ignored 2" {
				t.Fatalf("evaluating again did %s", got)
			}
			j := job("batch", 2, "vgpu=10")
			c.change(j)
			w.register(j)
			if diff := cmp.Diff(c.want, outcome(w.evaluate())); diff != "" {
				t.Errorf("outcome (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSchedule_BlocksOfOneIDThatDifferAreAlwaysChanged(t *testing.T) {
	t.Parallel()
	w := newWorld(3, node("n", 10000, 10000, "nvidia/vgpu/A-1=80"))
	w.register(job("batch", 1, "vgpu=10", "vgpu=20"))
	w.evaluate()
	w.settle()
	j := job("batch", 2, "vgpu=10", "vgpu=20")
	w.register(j)
	if got := outcome(w.evaluate()); got != "placed 2 stopped 1 in-place 0 ignored 0" {
		t.Errorf("a changed count did %s, want everything replaced", got)
	}
}

func TestSchedule_RollsByMaxParallel(t *testing.T) {
	t.Parallel()
	w := newWorld(3, node("n", 10000, 10000))
	w.register(job("service", 3))
	w.evaluate()
	w.settle()
	next := job("service", 3)
	next.TaskGroups[0].Tasks[0].Env = map[string]string{"A": "b"}
	w.register(next)
	for step := range 3 {
		if got := outcome(w.evaluate()); got != "placed 1 stopped 1 in-place 0 ignored "+fmt.Sprint(2) {
			t.Fatalf("step %d did %s, want one replaced", step, got)
		}
		if got := outcome(w.evaluate()); !strings.HasPrefix(got, "placed 0 stopped 0") {
			t.Fatalf("step %d went on before health: %s", step, got)
		}
		w.settle()
	}
	if got := outcome(w.evaluate()); got != "placed 0 stopped 0 in-place 0 ignored 3" {
		t.Errorf("the end did %s", got)
	}
}

func TestSchedule_NewOnesGoFirstInARollingUpdate(t *testing.T) {
	t.Parallel()
	w := newWorld(3, node("n", 10000, 10000))
	w.register(job("service", 2))
	w.evaluate()
	w.settle()
	next := job("service", 3)
	next.Meta = map[string]string{"a": "b"}
	w.register(next)
	// Recorded from Nomad 2.0.5: "1 create, 2 ignore".
	if got := outcome(w.evaluate()); got != "placed 1 stopped 0 in-place 0 ignored 2" {
		t.Errorf("got %s", got)
	}
}

func TestSchedule_RollingOnAFullCardStopsFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(3, node("n", 10000, 10000, "nvidia/vgpu/A-1=80"))
	w.register(job("service", 2, "vgpu=40"))
	w.evaluate()
	w.settle()
	next := job("service", 2, "vgpu=40")
	next.Meta = map[string]string{"a": "b"}
	w.register(next)
	plan := w.evaluate()
	if len(plan.Place) != 1 || plan.Place[0].PreviousAllocation != plan.Stop[0].Alloc.ID {
		t.Fatalf("got %s, want one replaced in the room of its predecessor", outcome(plan))
	}
}

func TestSchedule_StoppingHoldsItsShareUntilItEnded(t *testing.T) {
	t.Parallel()
	w := newWorld(3, node("n", 10000, 10000, "nvidia/vgpu/A-1=80"))
	w.register(job("batch", 1, "vgpu=80"))
	w.evaluate()
	w.settle()
	for id := range w.allocs {
		w.set(id, func(a *api.Allocation) { a.DesiredStatus = "stop" })
	}
	if got := w.evaluate(); len(got.Place) != 0 {
		t.Fatalf("placed %d while the card was still held", len(got.Place))
	}
	w.settle()
	if got := w.evaluate(); len(got.Place) != 1 {
		t.Errorf("placed %d after the card was given back, want 1", len(got.Place))
	}
}

func TestSchedule_LostNodeIsReplacedElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(3, node("a", 10000, 10000))
	w.register(job("service", 2))
	w.evaluate()
	w.settle()
	w.nodes["a"].Status = "down"
	w.nodes["b"] = node("b", 10000, 10000)
	plan := w.evaluate()
	if len(plan.Stop) != 2 || plan.Stop[0].ClientStatus != "lost" || len(plan.Place) != 2 || plan.Place[0].NodeID != "b" {
		t.Errorf("got %s", outcome(plan))
	}
}

func TestSchedule_DrainingNodeIsLeft(t *testing.T) {
	t.Parallel()
	w := newWorld(3, node("a", 10000, 10000), node("b", 10000, 10000))
	w.register(job("service", 4))
	w.evaluate()
	w.settle()
	w.nodes["a"].DrainStrategy = &api.DrainStrategy{}
	w.evaluate()
	for _, a := range w.live() {
		if a.NodeID != "b" {
			t.Errorf("%s is still on the draining node", a.Name)
		}
	}
	if len(w.live()) != 4 {
		t.Errorf("%d run, want 4", len(w.live()))
	}
}

func TestSchedule_FailedIsReplacedByPolicy(t *testing.T) {
	t.Parallel()
	fail := func(a *api.Allocation) {
		a.ClientStatus = "failed"
		a.TaskStates = map[string]*api.TaskState{"t": {Failed: true, FinishedAt: noon}}
	}
	w := newWorld(3, node("a", 10000, 10000))
	j := job("service", 1)
	j.TaskGroups[0].ReschedulePolicy = &api.ReschedulePolicy{Delay: new(time.Minute), DelayFunction: new("constant"), Unlimited: new(true), MaxDelay: new(time.Hour), Attempts: new(0), Interval: new(time.Duration(0))}
	w.register(j)
	first := w.evaluate().Place[0]
	w.settle()
	w.set(first.ID, fail)
	plan := w.evaluate()
	if len(plan.Followups) != 1 || !plan.Followups[0].WaitUntil.Equal(noon.Add(time.Minute)) || len(plan.Place) != 0 {
		t.Fatalf("got %s and followups %+v, want one a minute later", outcome(plan), plan.Followups)
	}
	if again := w.evaluate(); !again.Empty() {
		t.Fatalf("evaluating again did %s", outcome(again))
	}
	w.now = noon.Add(time.Minute)
	plan = w.evaluate()
	if len(plan.Place) != 1 || plan.Place[0].PreviousAllocation != first.ID || len(plan.Place[0].RescheduleTracker.Events) != 1 {
		t.Errorf("got %s, want the replacement with its history", outcome(plan))
	}
	if w.allocs[first.ID].NextAllocation != plan.Place[0].ID {
		t.Error("the failed allocation does not name its replacement")
	}
}

func TestSchedule_FailedForGoodGetsAChanceWithAChangedJob(t *testing.T) {
	t.Parallel()
	w := newWorld(3, node("a", 10000, 10000))
	never := func() *api.Job {
		j := job("service", 1)
		j.TaskGroups[0].ReschedulePolicy = &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false)}
		return j
	}
	w.register(never())
	w.evaluate()
	for id := range w.allocs {
		w.set(id, func(a *api.Allocation) { a.ClientStatus = "failed" })
	}
	if plan := w.evaluate(); !plan.Empty() {
		t.Fatalf("what failed for good was touched: %s", outcome(plan))
	}
	changed := never()
	changed.Meta = map[string]string{"a": "b"}
	w.register(changed)
	if plan := w.evaluate(); len(plan.Place) != 1 {
		t.Fatalf("a changed job did %s, want it placed again", outcome(plan))
	}
	for id := range w.allocs {
		w.set(id, func(a *api.Allocation) { a.ClientStatus = "failed" })
	}
	stopped := *w.job
	stopped.Stop = new(true)
	w.register(&stopped)
	w.evaluate()
	w.register(changed)
	if plan := w.evaluate(); len(plan.Place) != 1 {
		t.Errorf("stopping and running again did %s, want it placed again", outcome(plan))
	}
}

func TestSchedule_BatchWorkThatIsDoneIsNotRepeated(t *testing.T) {
	t.Parallel()
	w := newWorld(3, node("a", 10000, 10000))
	w.register(job("batch", 2))
	w.evaluate()
	for id := range w.allocs {
		w.set(id, func(a *api.Allocation) { a.ClientStatus = "complete" })
	}
	if plan := w.evaluate(); !plan.Empty() {
		t.Fatalf("got %s, want nothing", outcome(plan))
	}
	w.register(job("batch", 2))
	if plan := w.evaluate(); len(plan.Place) != 2 {
		t.Errorf("a new version did %s, want two placed", outcome(plan))
	}
}

func TestSchedule_DelaysGrowByPolicy(t *testing.T) {
	t.Parallel()
	delays := func(function string) []time.Duration {
		w := newWorld(3, node("a", 10000, 10000))
		j := job("service", 1)
		j.TaskGroups[0].ReschedulePolicy = &api.ReschedulePolicy{
			Delay: new(10 * time.Second), DelayFunction: &function, MaxDelay: new(time.Minute), Unlimited: new(true),
		}
		w.register(j)
		w.evaluate()
		var out []time.Duration
		for range 5 {
			failing := w.live()[0].ID
			w.set(failing, func(a *api.Allocation) {
				a.ClientStatus, a.TaskStates = "failed", map[string]*api.TaskState{"t": {FinishedAt: w.now}}
			})
			at := w.evaluate().Followups[0].WaitUntil
			out = append(out, at.Sub(w.now))
			w.now = at
			w.evaluate()
		}
		return out
	}
	for function, want := range map[string][]time.Duration{
		"constant":    {10 * time.Second, 10 * time.Second, 10 * time.Second, 10 * time.Second, 10 * time.Second},
		"exponential": {10 * time.Second, 20 * time.Second, 40 * time.Second, time.Minute, time.Minute},
		"fibonacci":   {10 * time.Second, 10 * time.Second, 20 * time.Second, 30 * time.Second, 50 * time.Second},
	} {
		if diff := cmp.Diff(want, delays(function)); diff != "" {
			t.Errorf("%s delays (-want +got):\n%s", function, diff)
		}
	}
}

func TestSchedule_ReservedCores(t *testing.T) {
	t.Parallel()
	n := node("n", 8000, 10000)
	n.NodeResources.Cpu.TotalCpuCores, n.NodeResources.Cpu.ReservableCpuCores = 4, []uint16{0, 1, 2, 3}
	w := newWorld(1, n)
	j := job("batch", 3)
	j.TaskGroups[0].Tasks[0].Resources.CPU, j.TaskGroups[0].Tasks[0].Resources.Cores = nil, new(2)
	w.register(j)
	plan := w.evaluate()
	if got := outcome(plan); got != `placed 2 stopped 0 in-place 0 ignored 0 failed 1 {"cores":1}` {
		t.Fatalf("got %s", got)
	}
	cpu := plan.Place[1].AllocatedResources.Tasks["t"].Cpu
	if diff := cmp.Diff(api.AllocatedCpuResources{CpuShares: 4000, ReservedCores: []uint16{2, 3}}, cpu); diff != "" {
		t.Errorf("share of the second (-want +got):\n%s", diff)
	}
}

func TestSchedule_SysbatchIsDoneOnEachNodeOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(1, node("a", 1000, 1000), node("b", 1000, 1000))
	w.register(job("sysbatch", 1))
	w.evaluate()
	for id := range w.allocs {
		w.set(id, func(a *api.Allocation) { a.ClientStatus = "complete" })
	}
	w.nodes["c"] = node("c", 1000, 1000)
	if got := outcome(w.evaluate()); got != "placed 1 stopped 0 in-place 0 ignored 2" {
		t.Errorf("a third node did %s", got)
	}
}

func TestSchedule_SpreadGoesRoundDatacenters(t *testing.T) {
	t.Parallel()
	w := newWorld(3)
	for i := range 4 {
		n := node(fmt.Sprintf("n%d", i), 10000, 10000)
		n.Datacenter = fmt.Sprintf("dc%d", i%2)
		w.nodes[n.ID] = n
	}
	j := job("service", 4)
	j.Spreads = []*api.Spread{{Attribute: "${node.datacenter}", Weight: new(int8(100))}}
	w.register(j)
	count := map[string]int{}
	for _, a := range w.evaluate().Place {
		count[w.nodes[a.NodeID].Datacenter]++
	}
	if diff := cmp.Diff(map[string]int{"dc0": 2, "dc1": 2}, count); diff != "" {
		t.Errorf("allocations by datacenter (-want +got):\n%s", diff)
	}
}

func TestSchedule_SameSeedSameChoice(t *testing.T) {
	t.Parallel()
	choose := func() []string {
		w := newWorld(42)
		for i := range 20 {
			n := node(fmt.Sprintf("n%02d", i), 10000, 10000, "a/vgpu/X=8", "a/vgpu/Y=8")
			w.nodes[n.ID] = n
		}
		w.register(job("service", 10, "vgpu=4"))
		var out []string
		for _, a := range w.evaluate().Place {
			out = append(out, a.NodeID+a.AllocatedResources.Tasks["t"].Devices[0].Name)
		}
		return out
	}
	if diff := cmp.Diff(choose(), choose()); diff != "" {
		t.Errorf("two runs of one seed differ:\n%s", diff)
	}
}
