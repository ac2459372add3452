package engine

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/internal/accel"
)

func drawSnapshot(t *rapid.T) Snapshot { return snapshotOf(drawNodes(t)...) }

func drawNodes(t *rapid.T) []testNode {
	var nodes []testNode
	names := []string{"a", "b", "c", "d", "e"}
	for _, name := range names[:rapid.IntRange(1, len(names)).Draw(t, "nodes")] {
		n := testNode{
			Name: name, Offline: rapid.IntRange(0, 9).Draw(t, "offline") == 0, CPU: rapid.SampledFrom([]int{1000, 64000}).Draw(t, "cpu"),
			Tenants: rapid.SampledFrom([][]string{nil, nil, nil, {"blue", "red"}}).Draw(t, "tenants"),
			Beside:  rapid.SampledFrom([][]string{nil, nil, {"blue", "red"}, {AnyTenant}}).Draw(t, "beside"),
			Attrs:   rapid.SampledFrom([]map[string]string{nil, {"meta.rack": "r1"}, {"meta.rack": "r2"}}).Draw(t, "domain"),
		}
		models := map[string]bool{}
		for range rapid.IntRange(0, 4).Draw(t, "cards") {
			c := testCard{
				Vendor: rapid.SampledFrom([]accel.Vendor{accel.NVIDIA, accel.Ascend}).Draw(t, "vendor"),
				Form:   rapid.SampledFrom([]accel.Form{accel.Shared, accel.Shared, accel.Whole, accel.MIG}).Draw(t, "form"),
				GiB:    rapid.SampledFrom([]int{16, 32}).Draw(t, "gib"),
				Unit:   rapid.SampledFrom([]int{1024, 2048}).Draw(t, "unit"),
				Auto:   rapid.Bool().Draw(t, "auto"),
				Modes:  rapid.SampledFrom([][]string{nil, {"mps"}, {"vnpu"}, {"hami", "vnpu", "smlu"}}).Draw(t, "modes"),
				Rounding: rapid.SampledFrom([]string{
					"", "vnpu:parts=20,s=4096/5,m=8192/10", "mps:memory=512;vnpu:s=2000,l=17000", "smlu:memory=768;vnpu:parts=8,a=3000/2,b=10000/4",
					"mig:parts=7,1g=3500/1,3g=15000/3;hami:memory=1,parts=100",
				}).Draw(t, "rounding"),
			}
			c.Model = map[accel.Vendor]string{accel.NVIDIA: "A", accel.Ascend: "B"}[c.Vendor]
			if c.Form == accel.Whole {
				if key := string(c.Vendor); models[key] {
					continue // one group for all whole cards of a model
				} else {
					models[key] = true
				}
				c.Count = rapid.IntRange(1, 4).Draw(t, "count")
				c.Used = rapid.IntRange(0, c.Count).Draw(t, "used cards")
			} else {
				c.Used = rapid.IntRange(0, c.GiB*1024/c.Unit).Draw(t, "used")
				if c.Used > 0 {
					c.Holders = rapid.SampledFrom([][]Holder{nil, {{"", c.Used}}, {{"blue", c.Used}}, {{"red", c.Used}}}).Draw(t, "holders")
				}
			}
			n.Cards = append(n.Cards, c)
		}
		nodes = append(nodes, n)
	}
	return nodes
}

func drawTenant(t *rapid.T) string {
	return rapid.SampledFrom([]string{"", "", "blue", "red"}).Draw(t, "tenant")
}

func drawAsk(t *rapid.T) accel.Ask {
	a := accel.Ask{Count: rapid.SampledFrom([]int{1, 1, 2, 3}).Draw(t, "count")}
	a.MemoryMiB = uint64(rapid.SampledFrom([]int{0, 1, 1500, 4096, 9000, 16384, 30000}).Draw(t, "memory"))
	if a.MemoryMiB > 0 {
		a.ComputePct = rapid.SampledFrom([]int{0, 0, 25, 60}).Draw(t, "compute")
	}
	a.QoS = rapid.SampledFrom([]accel.QoS{"", "", accel.Silver, accel.Gold}).Draw(t, "qos")
	a.Vendors = rapid.SampledFrom([][]accel.Vendor{nil, nil, {accel.NVIDIA}}).Draw(t, "vendors")
	a.Models = rapid.SampledFrom([][]string{nil, nil, {"B*"}}).Draw(t, "models")
	return a
}

func drawRequest(t *rapid.T) Request {
	r := Request{JobID: "job", Namespace: "default", Tenant: drawTenant(t), DistinctHosts: rapid.IntRange(0, 9).Draw(t, "distinct job") == 0}
	for _, name := range []string{"g1", "g2"}[:rapid.IntRange(1, 2).Draw(t, "groups")] {
		g := GroupAsk{
			Name: name, Count: rapid.IntRange(1, 4).Draw(t, "allocations"), CPUMHz: rapid.IntRange(0, 600).Draw(t, "mhz"), MemoryMiB: 100,
			DistinctHosts: rapid.IntRange(0, 5).Draw(t, "distinct") == 0,
			Apart:         rapid.SampledFrom([][]Apart{nil, nil, nil, {{"${meta.rack}", 1, false}}, {{"${meta.rack}", 2, true}}}).Draw(t, "apart"),
			Spread:        rapid.SampledFrom([][]Spread{nil, nil, nil, {{"${meta.rack}", 100}}}).Draw(t, "spread"),
		}
		for _, task := range []string{"t1", "t2"}[:rapid.IntRange(1, 2).Draw(t, "tasks")] {
			a := drawAsk(t)
			g.Tasks = append(g.Tasks, TaskAsk{Name: task, Driver: "heteroflow", Ask: &a})
		}
		r.Groups = append(r.Groups, g)
	}
	return r
}

func clone[T any](v T) T {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	var out T
	if err := json.Unmarshal(text, &out); err != nil {
		panic(err)
	}
	return out
}

// TestDecide_Properties holds every decision under random input against the rules that no placement may break.
func TestDecide_Properties(t *testing.T) {
	t.Parallel()
	engines := []*Engine{New(Config{}), New(Config{Learnt: learntSome(), Level: 0}), New(Config{Learnt: learntSome(), Level: 3})}
	rapid.Check(t, func(t *rapid.T) {
		e := rapid.SampledFrom(engines).Draw(t, "engine")
		s := drawSnapshot(t)
		for range rapid.IntRange(1, 4).Draw(t, "requests") {
			r := drawRequest(t)
			before := clone(s)
			d := e.Decide(s, r)
			if diff := cmp.Diff(before, clone(s)); diff != "" {
				t.Fatalf("deciding changed the snapshot (-before +after)\n%s", diff)
			}
			checkDeterministic(t, e, s, r, d)
			if !d.Placed {
				checkRefusal(t, s, d)
				continue
			}
			checkPlan(t, s, r, d)
			empty := clone(s)
			book(t, s, r, d)
			checkFitsAgain(t, e, empty, r, d)
		}
	})
}

func checkDeterministic(t *rapid.T, e *Engine, s Snapshot, r Request, want Decision) {
	other := clone(s)
	slices.Reverse(other.Nodes)
	for i := range other.Nodes {
		slices.Reverse(other.Nodes[i].Pools)
	}
	got := e.Decide(other, r)
	for _, d := range []*Decision{&want, &got} {
		if d.Refusal != nil { // examples are the first node's, on purpose
			refusal := *d.Refusal
			refusal.Counts = slices.Clone(refusal.Counts)
			for i := range refusal.Counts {
				refusal.Counts[i].Example = ""
			}
			d.Refusal = &refusal
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("the order of nodes and pools changed the decision\n%s", diff)
	}
}

func checkRefusal(t *rapid.T, s Snapshot, d Decision) {
	if strings.Contains(d.Refusal.Sentence, "18014398") || strings.Contains(d.Refusal.Sentence, " 0 MiB short") {
		t.Fatalf("the sentence makes no sense: %s", d.Refusal.Sentence)
	}
	if len(d.Groups) != 0 || d.Refusal == nil || d.Refusal.Sentence == "" || d.Refusal.Code == "" {
		t.Fatalf("a refusal is all or nothing and says why: %+v", d)
	}
	nodes := 0
	for _, c := range d.Refusal.Counts {
		nodes += c.Nodes
	}
	if nodes != len(s.Nodes) {
		t.Fatalf("%d nodes have a reason, the cluster has %d", nodes, len(s.Nodes))
	}
	for _, sw := range d.Switches {
		n := nodeOf(s, sw.NodeID)
		for i := range n.Pools {
			for _, c := range n.Pools[i].Cards {
				if c.UUID == sw.CardUUID && (!n.Pools[i].Auto || c.UsedUnits > 0 || n.Pools[i].Form == sw.To) {
					t.Fatalf("card %s is not empty and switchable to %s", sw.CardUUID, sw.To)
				}
			}
		}
	}
}

func checkPlan(t failer, s Snapshot, r Request, d Decision) {
	checkDomains(t, s, r, d)
	hosts := map[string]int{}
	for i, g := range d.Groups {
		ask := r.Groups[i]
		if g.Name != ask.Name || len(g.Placements) != ask.Count {
			t.Fatalf("group %s: %d of %d allocations", ask.Name, len(g.Placements), ask.Count)
		}
		groupHosts := map[string]int{}
		for _, p := range g.Placements {
			n := nodeOf(s, p.NodeID)
			hosts[p.NodeID]++
			groupHosts[p.NodeID]++
			checkTenant(t, n, r, p)
			if !n.Ready || !slices.Contains(g.Nodes, p.NodeID) || ask.DistinctHosts && groupHosts[p.NodeID] > 1 || r.DistinctHosts && hosts[p.NodeID] > 1 {
				t.Fatalf("group %s may not use node %s", g.Name, n.Name)
			}
			for j, task := range p.Tasks {
				checkTask(t, n, *ask.Tasks[j].Ask, g.Tasks[j], task)
			}
		}
	}
}

// checkTenant holds a placement against whom the node is for and who is on its cards.
func checkTenant(t failer, n *Node, r Request, p Placement) {
	if len(n.Tenants) > 0 && !slices.Contains(n.Tenants, r.Tenant) {
		t.Fatalf("tenant %q may not use node %s, kept for %v", r.Tenant, n.Name, n.Tenants)
	}
	if slices.Contains(n.Beside, AnyTenant) {
		return
	}
	for _, task := range p.Tasks {
		for _, c := range task.Claims {
			pool := poolOf(n, c.Group)
			for _, h := range pool.Holders {
				group := slices.Contains(n.Beside, r.Tenant) && slices.Contains(n.Beside, h.Tenant)
				if h.Tenant != r.Tenant && !group && (pool.Form == accel.Shared || pool.Form == accel.MIG) {
					t.Fatalf("tenant %q is on %s beside %q", r.Tenant, c.Group, h.Tenant)
				}
			}
		}
	}
}

// checkDomains holds a plan against the rules of failure domains.
func checkDomains(t failer, s Snapshot, r Request, d Decision) {
	ofJob := map[string]int{}
	for i, g := range d.Groups {
		ofGroup := map[string]int{}
		for _, p := range g.Placements {
			rack := nodeOf(s, p.NodeID).Attrs["meta.rack"]
			ofGroup[rack]++
			for _, a := range r.Groups[i].Apart {
				if a.OfJob {
					ofJob[rack]++
				}
				if rack == "" || a.OfJob && ofJob[rack] > a.Most || !a.OfJob && ofGroup[rack] > a.Most {
					t.Fatalf("group %s has %d allocations in rack %q, the job %d: at most %d may be there", g.Name, ofGroup[rack], rack, ofJob[rack], a.Most)
				}
			}
		}
	}
}

// checkTask holds the claims of one task against its ask, and the claims against the blocks that Nomad will see.
func checkTask(t failer, n *Node, a accel.Ask, shape TaskShape, placed TaskPlacement) {
	if len(placed.Claims) != len(shape.Blocks) {
		t.Fatalf("task %s: %d claims, %d blocks", placed.Task, len(placed.Claims), len(shape.Blocks))
	}
	cards := 0
	seen := map[string]bool{}
	ids := map[string]bool{}
	for i, c := range placed.Claims {
		p := poolOf(n, c.Group)
		block := shape.Blocks[i]
		if seen[c.Group] || ids[block.Device] {
			t.Fatalf("task %s takes %s twice", placed.Task, c.Group)
		}
		seen[c.Group], ids[block.Device] = true, true
		if c.Units != block.Count || !block.names(p) {
			t.Fatalf("block %+v does not serve claim %+v", block, c)
		}
		if !a.Accepts(p.Vendor, p.Model) {
			t.Fatalf("%s is not what %s asks for", p.Group, a)
		}
		switch {
		case a.Whole() && p.Form == accel.Whole:
			cards += c.Units
		case a.Whole() && c.Units == p.Total:
			cards++
		case !a.Whole() && uint64(c.Units)*p.UnitMiB >= shape.GrantMiB() && shape.GrantMiB() >= a.MemoryMiB && made(p, a, shape) && strength(tier(p)) >= strength(a.QoS):
			cards++
		}
	}
	if cards != a.Count {
		t.Fatalf("task %s gets %d cards for %s", placed.Task, cards, a)
	}
}

// made tells whether the driver makes the share that is granted: no mode that it may use rounds it to more than is granted,
// or than the slices hold where the driver does the rounding.
func made(p *Pool, a accel.Ask, shape TaskShape) bool {
	q := shape.QoS
	if a.QoS == "" {
		q = tier(p)
	}
	for _, r := range p.Rounding {
		if !accel.Makes(r.Mode, p.Form, p.Modes, q) {
			continue
		}
		share, ok := r.Round(shape.GrantMiB(), a.ComputePct, p.CardMiB())
		most := shape.GrantMiB()
		if r.Mode == accel.ModeMIG {
			most = shape.RoundedMiB
		}
		if !ok || share.MemoryMiB > most {
			return false
		}
	}
	return true
}

func poolOf(n *Node, group string) *Pool {
	for i := range n.Pools {
		if n.Pools[i].Group == group {
			return &n.Pools[i]
		}
	}
	return nil
}

// checkFitsAgain gives the plan back to the snapshot that it was made on: it is kept as it is, blocks and all.
func checkFitsAgain(t *rapid.T, e *Engine, s Snapshot, r Request, d Decision) {
	again := clone(r)
	for i := range again.Groups {
		plan := d.Groups[i]
		again.Groups[i].Keep = &plan
	}
	got := e.Decide(s, again)
	if !got.Placed {
		t.Fatalf("the plan does not fit where it was made: %s", got.Refusal.Sentence)
	}
	for i := range got.Groups {
		if diff := cmp.Diff(d.Groups[i].Tasks, got.Groups[i].Tasks); diff != "" {
			t.Fatalf("kept blocks differ\n%s", diff)
		}
		if diff := cmp.Diff(d.Groups[i].Nodes, got.Groups[i].Nodes); diff != "" {
			t.Fatalf("kept nodes differ\n%s", diff)
		}
	}
}
