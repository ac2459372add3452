// Package plugintest is the conformance suite of placement plugins: whoever writes one calls Run in a test. What a plugin
// is good for does not belong here.
package plugintest

import (
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"testing"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// Run holds a plugin against what the engine relies on: a stable name; the same answer to the same candidate; no
// candidate changed and no panic, whatever is unknown or zero; codes that programs can compare; scores of 0–100; and no
// room refused for there being more of it.
func Run(t *testing.T, p engine.Plugin) {
	t.Helper()
	t.Run("name", func(t *testing.T) {
		if name := p.Name(); name != p.Name() || !word.MatchString(name) {
			t.Errorf("name %q: write lower case words with _ between, the same each time", name)
		}
	})
	kinds := 0
	if f, ok := p.(engine.FilterPlugin); ok {
		kinds++
		t.Run("filter", func(t *testing.T) { each(t, func(t *testing.T, c *engine.Candidate) { code(t, c, f.Filter) }) })
	}
	if r, ok := p.(engine.RoomPlugin); ok {
		kinds++
		t.Run("room", func(t *testing.T) {
			each(t, func(t *testing.T, c *engine.Candidate) { code(t, c, r.Room) })
			each(t, func(t *testing.T, c *engine.Candidate) { moreRoom(t, c, r) })
		})
	}
	if s, ok := p.(engine.ScorePlugin); ok {
		kinds++
		t.Run("score", func(t *testing.T) { each(t, func(t *testing.T, c *engine.Candidate) { score(t, c, s) }) })
	}
	if kinds == 0 {
		t.Errorf("plugin %s is never asked: it has none of the methods Filter, Room and Score", p.Name())
	}
	if i, ok := p.(engine.Impersonal); ok {
		t.Run("impersonal", func(t *testing.T) { each(t, func(t *testing.T, c *engine.Candidate) { impersonal(t, c, i) }) })
	}
	t.Run("engine", func(t *testing.T) { whole(t, p) })
}

var word = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)

// each calls check for every candidate. A plugin that panics fails there.
func each(t *testing.T, check func(*testing.T, *engine.Candidate)) {
	t.Helper()
	for _, made := range candidates() {
		func() {
			c := made()
			defer func() {
				if p := recover(); p != nil {
					t.Errorf("panic: %v\nof %s", p, describe(made()))
				}
			}()
			check(t, c)
			if again := made(); !reflect.DeepEqual(c, again) {
				t.Errorf("the candidate was changed\nof %s", describe(again))
			}
		}()
	}
}

func code(t *testing.T, c *engine.Candidate, of func(*engine.Candidate) engine.Code) {
	first, second := of(c), of(c)
	if first != second {
		t.Errorf("codes %q and then %q\nof %s", first, second, describe(c))
	}
	if first != "" && !word.MatchString(string(first)) {
		t.Errorf("code %q: write lower case words with _ between\nof %s", first, describe(c))
	}
}

func moreRoom(t *testing.T, c *engine.Candidate, r engine.RoomPlugin) {
	if r.Room(c) != "" {
		return
	}
	more := *c
	more.FreeUnits += 4
	more.FreeCPUMHz += 10000
	more.FreeMemoryMiB += 10000
	more.FreeDiskMiB += 10000
	if code := r.Room(&more); code != "" {
		t.Errorf("with more room the code is %q\nof %s", code, describe(c))
	}
}

func score(t *testing.T, c *engine.Candidate, s engine.ScorePlugin) {
	if c.Units > c.FreeUnits {
		return // nobody is asked for what a place without room is worth
	}
	first, second := s.Score(c), s.Score(c)
	if first != second && !(math.IsNaN(first) && math.IsNaN(second)) {
		t.Errorf("scores %v and then %v\nof %s", first, second, describe(c))
	}
	if !(first >= 0 && first <= 100) {
		t.Errorf("score %v is outside 0–100\nof %s", first, describe(c))
	}
}

// impersonal holds the answers against those to the same candidate under other names, asked for by somebody else.
func impersonal(t *testing.T, c *engine.Candidate, p engine.Impersonal) {
	other, node, pool, request := *c, *c.Node, *c.Pool, *c.Request
	node.ID, node.Name, node.Attrs = "other", "other", map[string]string{"meta.unlisted": "x"}
	for _, key := range p.Attributes() {
		if v, there := c.Node.Attrs[key]; there {
			node.Attrs[key] = v
		}
	}
	if pool.Form == accel.Shared {
		pool.Group, pool.Name = "other", "other"
	}
	pool.Cards = slices.Clone(pool.Cards)
	for i := range pool.Cards {
		pool.Cards[i].UUID = "other"
	}
	node.Pools = []engine.Pool{pool}
	request.JobID, request.Namespace, request.Tenant, request.Priority = "other", "other", "other", 99
	other.Request, other.Node, other.Pool = &request, &node, &node.Pools[0]
	if first, second := answers(p, c), answers(p, &other); first != second {
		t.Errorf("under other names the answers are %v, not %v: list what it looks at in Attributes, or leave that method out\nof %s", second, first, describe(c))
	}
}

// answers are those of a plugin to all that it can be asked.
func answers(p engine.Plugin, c *engine.Candidate) (out [3]any) {
	if f, ok := p.(engine.FilterPlugin); ok {
		out[0] = f.Filter(c)
	}
	if r, ok := p.(engine.RoomPlugin); ok {
		out[1] = r.Room(c)
	}
	if s, ok := p.(engine.ScorePlugin); ok && c.Units <= c.FreeUnits {
		out[2] = s.Score(c)
	}
	return out
}

// whole lets the engine decide with the plugin: it faults nowhere, and nothing is placed beyond what is free.
func whole(t *testing.T, p engine.Plugin) {
	t.Helper()
	e := engine.New(engine.Config{}).With(p, 1)
	for _, a := range asks() {
		s := engine.Snapshot{}
		for i, pool := range pools() {
			n := node()
			n.ID, n.Name, n.Pools = fmt.Sprintf("n%02d", i), fmt.Sprintf("n%02d", i), []engine.Pool{pool}
			s.Nodes = append(s.Nodes, n)
		}
		r := request(a)
		d := e.Decide(s, r)
		if len(d.Faults) > 0 {
			t.Errorf("faults %v", d.Faults)
		}
		if again := e.Decide(s, r); !reflect.DeepEqual(d, again) {
			t.Errorf("the same question has two answers:\n%+v\n%+v", d, again)
		}
	}
}

func describe(c *engine.Candidate) string {
	return fmt.Sprintf("ask %+v on pool %+v of node %+v, units %d of %d free", *c.Task.Ask, *c.Pool, *c.Node, c.Units, c.FreeUnits)
}

// candidates are recipes, since a plugin could change what it is given.
func candidates() []func() *engine.Candidate {
	var out []func() *engine.Candidate
	for i := range pools() {
		for j := range asks() {
			for _, free := range []int{0, 1, 80} {
				for _, units := range []int{0, 1, 40} {
					out = append(out, func() *engine.Candidate {
						n, r := node(), request(asks()[j])
						n.Pools = pools()[i : i+1]
						free := min(free, n.Pools[0].Total)
						return &engine.Candidate{
							Request: &r, Group: &r.Groups[0], Task: &r.Groups[0].Tasks[0], Node: &n, Pool: &n.Pools[0],
							Units: units, Allocations: min(units, 1), FreeUnits: free,
							FreeCPUMHz: 100 * free, FreeMemoryMiB: 100 * free, FreeDiskMiB: 100 * free,
							NodeUsedMiB: 1024, NodeTotalMiB: uint64(n.Pools[0].Total) * n.Pools[0].UnitMiB, Here: free % 2,
						}
					})
				}
			}
		}
	}
	return out
}

func node() engine.Node {
	return engine.Node{
		ID: "n1", Name: "n1", Datacenter: "dc1", Ready: true, CPUMHz: 64000, MemoryMiB: 512 << 10,
		Drivers: map[string]bool{"heteroflow": true}, Attrs: map[string]string{"meta.rack": "r1"},
	}
}

// pools are one of each brand and form, and some of which little is known.
func pools() []engine.Pool {
	var out []engine.Pool
	for _, vendor := range accel.Vendors() {
		out = append(out,
			engine.Pool{Group: string(vendor) + "/gpu/card", Vendor: vendor, Type: "gpu", Name: "card", Model: "card", Form: accel.Whole, UnitMiB: 65536, Total: 8, Used: 3},
			engine.Pool{
				Group: string(vendor) + "/vgpu/card", Vendor: vendor, Type: "vgpu", Name: "card", Model: "card", Form: accel.Shared, UnitMiB: 1024, Total: 64,
				Cards: []engine.Card{{UUID: "u", Healthy: true, Units: 64}},
			})
	}
	return append(out,
		engine.Pool{Group: "nvidia/mig/part", Vendor: accel.NVIDIA, Type: "mig", Name: "card MIG 1g.10gb", Model: "card", Form: accel.Partition, UnitMiB: 9728, Total: 7},
		engine.Pool{Group: "nvidia/gpu/unknown", Vendor: accel.NVIDIA, Type: "gpu", Name: "unknown", Form: accel.Whole, Total: 1},
		engine.Pool{})
}

func asks() []accel.Ask {
	return []accel.Ask{
		{Count: 1}, {Count: 8}, {Count: 1, MemoryMiB: 20480}, {Count: 2, MemoryMiB: 1, ComputePct: 50, QoS: accel.Gold},
		{Count: 1, MemoryMiB: 1 << 30, Vendors: []accel.Vendor{accel.NVIDIA}, Models: []string{"none*"}},
	}
}

func request(a accel.Ask) engine.Request {
	return engine.Request{
		Tenant: "research", Namespace: "default", JobID: "llm",
		Groups: []engine.GroupAsk{{Name: "g", Count: 1, CPUMHz: 1000, MemoryMiB: 1000, Tasks: []engine.TaskAsk{{Name: "t", Driver: "heteroflow", Ask: &a}}}},
	}
}
