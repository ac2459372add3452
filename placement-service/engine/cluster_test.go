package engine

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// drawSingle is a request for one allocation, as most are.
func drawSingle(t *rapid.T) Request {
	r := ask(1, drawAsk(t))
	r.Tenant = drawTenant(t)
	g := &r.Groups[0]
	g.CPUMHz, g.MemoryMiB = rapid.SampledFrom([]int{0, 600, 2000}).Draw(t, "mhz"), rapid.SampledFrom([]int{100, 600 << 10}).Draw(t, "node memory")
	g.Tasks[0].Driver = rapid.SampledFrom([]string{"heteroflow", "heteroflow", "exec"}).Draw(t, "driver")
	g.Tasks[0].Runtime = rapid.SampledFrom([]string{"", "", "docker"}).Draw(t, "runtime")
	r.Datacenters = rapid.SampledFrom([][]string{nil, {"dc*"}, {"dc2"}}).Draw(t, "datacenters")
	g.Constraints = rapid.SampledFrom([][]Constraint{
		nil, nil, {{"${meta.rack}", "r1", "="}}, {{"${node.unique.name}", "n3", "!="}}, {{"${meta.rack}", "${meta.row}", "="}},
	}).Draw(t, "constraints")
	return r
}

// drawLoad is a load of which something may not be known.
func drawLoad(t *rapid.T, of string) *Load {
	if rapid.IntRange(0, 2).Draw(t, "load of "+of) > 0 {
		return nil
	}
	value := func(what string) *float64 {
		return rapid.SampledFrom([]*float64{nil, new(0.0), new(40.0), new(75.0), new(99.0)}).Draw(t, what+" of "+of)
	}
	return &Load{ComputePct: value("compute"), MemoryPct: value("memory"), Celsius: value("celsius")}
}

// TestDecideOn_IsDecide: while nodes come, change and go, a cluster gives the decision of its snapshot.
func TestDecideOn_IsDecide(t *testing.T) {
	t.Parallel()
	engines := []*Engine{
		New(Config{}), New(Config{Learnt: learntSome()}), New(Config{Learnt: learntSome(), Level: 4}),
		New(Config{Plugins: []PluginSetting{{Name: "spread", Enabled: true, Weight: 1}}}), New(Config{}).With(notOnNode("n2"), 0),
		New(Config{Plugins: []PluginSetting{{Name: LoadPlugin, Enabled: true, Limits: Limits{CardComputePct: 80, NodeComputePct: 50}}}}),
		New(Config{Plugins: []PluginSetting{{Name: LoadPlugin, Enabled: true, Limits: Limits{CardCelsius: 60, CardMemoryPct: 70}}}, Learnt: learntSome()}),
	}
	indexed, several, all := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		kinds := drawNodes(t)
		c := NewCluster()
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			for range rapid.IntRange(0, 3).Draw(t, "changes") {
				name := fmt.Sprintf("n%d", rapid.IntRange(1, 8).Draw(t, "name"))
				if rapid.IntRange(0, 4).Draw(t, "gone") == 0 {
					c.Remove("id-" + name)
					continue
				}
				n := kinds[rapid.IntRange(0, len(kinds)-1).Draw(t, "kind")]
				n.Name = name
				n.Attrs = map[string]string{"meta.rack": rapid.SampledFrom([]string{"r1", "r2"}).Draw(t, "rack"), "meta.row": "r2", "attr.unique.ip": name}
				n.Runtimes = rapid.SampledFrom([]map[string]bool{nil, {"docker": true}, {"docker": false}}).Draw(t, "runtimes")
				n.Load = drawLoad(t, "node")
				whole := snapshotOf(n).Nodes[0]
				for i := range whole.Pools {
					for j := range whole.Pools[i].Cards {
						whole.Pools[i].Cards[j].Load = drawLoad(t, "card")
					}
				}
				c.Set(whole)
			}
			r := drawSingle(t)
			switch rapid.IntRange(0, 5).Draw(t, "several") {
			case 0:
				r = drawRequest(t)
			case 1, 2: // more of the same
				r.Groups[0].Count = rapid.IntRange(2, 6).Draw(t, "allocations")
				r.Groups[0].DistinctHosts = rapid.Bool().Draw(t, "distinct")
			case 3: // groups of one task each
				second := drawSingle(t).Groups[0]
				second.Name, second.Count = "other", rapid.IntRange(0, 3).Draw(t, "of the second")
				r.Groups = append(r.Groups, second)
			}
			e := rapid.SampledFrom(engines).Draw(t, "engine")
			s := c.Snapshot()
			if _, ok := e.decideIndexed(c, &r); ok {
				indexed++
			} else if _, ok := e.decideSeveral(c, &r); ok {
				several++
			}
			if len(r.Groups) == 1 && r.Groups[0].Count == 1 {
				all++
			}
			want, got := e.Decide(s, r), e.DecideOn(c, r)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("(-of the snapshot +of the cluster)\n%s", diff)
			}
			if got.Placed {
				after := clone(s)
				book(t, after, r, got)
				for _, g := range got.Groups {
					for _, id := range g.Nodes {
						c.Set(*nodeOf(after, id))
					}
				}
			}
		}
	})
	if several == 0 {
		t.Error("several allocations or groups were never decided among the best nodes")
	}
	if indexed < all/3 {
		t.Errorf("of %d decisions for one allocation only %d did without a look at every node", all, indexed)
	}
}

// TestDecideOn_AFaultyPlugin is asked again for every node, and left out or refused by as ever.
func TestDecideOn_AFaultyPlugin(t *testing.T) {
	t.Parallel()
	c := NewCluster(snapshotOf(testNode{Name: "n1", Cards: []testCard{{}}}, testNode{Name: "n2", Cards: []testCard{{}}}).Nodes...)
	e := New(Config{}).With(breaks{}, 1)
	for range 2 {
		d := e.DecideOn(c, ask(1, accel.Ask{MemoryMiB: 1024}))
		if !d.Placed || len(d.Faults) != 1 || d.Faults[0].Plugin != "breaks" {
			t.Errorf("got %+v", d)
		}
	}
}

// breaks is a scorer that is impersonal and panics.
type breaks struct{ anybody }

func (breaks) Name() string             { return "breaks" }
func (breaks) Score(*Candidate) float64 { panic("no") }
