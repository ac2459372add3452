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

// limited is an engine with the plugin load on.
func limited(l Limits) *Engine {
	return New(Config{Plugins: []PluginSetting{{Name: LoadPlugin, Enabled: true, Limits: l}}})
}

func TestLoad_OverTheLimitTakesNoMore(t *testing.T) {
	t.Parallel()
	limits := Limits{CardComputePct: 90, CardMemoryPct: 80, CardCelsius: 85, NodeComputePct: 70, NodeMemoryPct: 60}
	for name, c := range map[string]struct {
		node, card *Load
		form       accel.Form
		says       string // empty: it is placed
	}{
		"nothing is known":              {},
		"nothing of it is known":        {node: &Load{}, card: &Load{}},
		"idle":                          {node: &Load{ComputePct: new(0.0)}, card: &Load{ComputePct: new(0.0), MemoryPct: new(0.0), Celsius: new(0.0)}},
		"at the limit":                  {node: &Load{ComputePct: new(70.0)}, card: &Load{ComputePct: new(90.0), Celsius: new(85.0)}},
		"a busy card":                   {card: &Load{ComputePct: new(97.0)}, says: "A100-SXM4-80GB-%s on node n1 is 97 % busy, limit 90 %"},
		"a full card":                   {card: &Load{MemoryPct: new(81.0)}, says: "81 % of the memory of A100-SXM4-80GB-%s on node n1 is in use, limit 80 %"},
		"a hot card":                    {card: &Load{ComputePct: new(5.0), Celsius: new(91.0)}, says: "A100-SXM4-80GB-%s on node n1 has 91 °C, limit 85 °C"},
		"a busy node":                   {node: &Load{ComputePct: new(71.0)}, says: "the processors of node n1 are 71 % busy, limit 70 %"},
		"a full node":                   {node: &Load{MemoryPct: new(61.0)}, says: "61 % of the main memory of node n1 is in use, limit 60 %"},
		"a whole card has no neighbour": {card: &Load{ComputePct: new(97.0)}, form: accel.Whole},
		"whole cards of a busy node":    {node: &Load{ComputePct: new(71.0)}, form: accel.Whole, says: "the processors of node n1 are 71 % busy"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := snapshotOf(testNode{Name: "n1", Load: c.node, Cards: []testCard{{Form: c.form, Load: c.card}}})
			a := accel.Ask{MemoryMiB: 8 << 10}
			if c.form == accel.Whole {
				a = accel.Ask{}
			}
			e := limited(limits)
			says := strings.ReplaceAll(c.says, "%s", strings.TrimPrefix(s.Nodes[0].Pools[0].Name, "A100-SXM4-80GB-"))
			for _, d := range []Decision{e.Decide(s, ask(1, a)), e.DecideOn(NewCluster(s.Nodes...), ask(1, a))} {
				switch {
				case says == "" && !d.Placed:
					t.Errorf("refused: %s", d.Refusal.Sentence)
				case says != "" && (d.Placed || d.Refusal.Code != CodeLoad || d.Refusal.Never || !strings.Contains(d.Refusal.Sentence, says)):
					t.Errorf("got %+v, want %q", d.Refusal, says)
				case says != "" && (len(d.Refusal.Counts) != 1 || !strings.Contains(d.Refusal.Counts[0].Example, says)):
					t.Errorf("counts are %+v", d.Refusal.Counts)
				}
			}
			if got := e.Overloaded(&s.Nodes[0], s.Nodes[0].Pools[0].Group); (got == "") != (says == "") || !strings.Contains(got, says) {
				t.Errorf("overloaded by %q, want %q", got, says)
			}
			if d := New(Config{}).Decide(s, ask(1, a)); !d.Placed || New(Config{}).LimitsLoad() {
				t.Errorf("with the plugin off: %+v", d.Refusal)
			}
		})
	}
}

// The limits that are not set are the defaults, and one that is 0 beside others is none.
func TestLoad_Limits(t *testing.T) {
	t.Parallel()
	hot := snapshotOf(testNode{Name: "n1", Cards: []testCard{{Load: &Load{Celsius: new(91.0)}}}})
	share := ask(1, accel.Ask{MemoryMiB: 8 << 10})
	if d := limited(Limits{}).Decide(hot, share); d.Placed {
		t.Error("the default limit of 90 °C does not hold")
	}
	if d := limited(Limits{CardComputePct: 90}).Decide(hot, share); !d.Placed {
		t.Errorf("without a limit of temperature: %s", d.Refusal.Sentence)
	}
	off := New(Config{Plugins: []PluginSetting{{Name: LoadPlugin, Limits: Limits{CardCelsius: 1}}}})
	if d := off.Decide(hot, share); !d.Placed {
		t.Error("limits of a plugin that is off hold")
	}
	at := slices.IndexFunc(off.Settings(), func(s PluginSetting) bool { return s.Name == LoadPlugin })
	if got := off.Settings()[at].Limits; got != (Limits{CardCelsius: 1}) {
		t.Errorf("limits are %+v", got)
	}
	text, err := json.Marshal(PluginSetting{Name: "spread"})
	if err != nil || string(text) != `{"name":"spread","enabled":false,"weight":0}` {
		t.Errorf("the setting of another plugin is %s, %v", text, err)
	}
}

// Where one card of a node is busy the others take the share.
func TestLoad_OtherCardsTakeIt(t *testing.T) {
	t.Parallel()
	s := snapshotOf(testNode{Name: "n1", Cards: []testCard{{Used: 40, Load: &Load{ComputePct: new(99.0)}}, {Load: &Load{ComputePct: new(1.0)}}}})
	e := limited(Limits{CardComputePct: 90})
	for range 2 {
		c := NewCluster(s.Nodes...)
		for _, d := range []Decision{e.Decide(s, ask(1, accel.Ask{MemoryMiB: 8 << 10})), e.DecideOn(c, ask(1, accel.Ask{MemoryMiB: 8 << 10}))} {
			if got := where(s, d); !slices.Equal(got, []string{"n1 card1×8"}) {
				t.Errorf("at %v, want the idle card", got)
			}
		}
	}
	if d := e.Decide(s, ask(1, accel.Ask{MemoryMiB: 8 << 10, Count: 2})); d.Placed {
		t.Error("a task of two cards has the busy one")
	}
}

// TestLoad_Properties: what is placed is nowhere over a limit, and where all loads are unknown the plugin changes nothing.
func TestLoad_Properties(t *testing.T) {
	t.Parallel()
	limits := Limits{CardComputePct: 80, CardMemoryPct: 70, CardCelsius: 60, NodeComputePct: 50, NodeMemoryPct: 90}
	e, plain := limited(limits), New(Config{})
	rapid.Check(t, func(t *rapid.T) {
		s := drawSnapshot(t)
		for i := range s.Nodes {
			s.Nodes[i].Load = drawLoad(t, "node")
			for j := range s.Nodes[i].Pools {
				for k := range s.Nodes[i].Pools[j].Cards {
					s.Nodes[i].Pools[j].Cards[k].Load = drawLoad(t, "card")
				}
			}
		}
		r := drawRequest(t)
		d := e.Decide(s, r)
		for _, g := range d.Groups {
			for _, p := range g.Placements {
				for _, task := range p.Tasks {
					for _, c := range task.Claims {
						if why := e.Overloaded(nodeOf(s, p.NodeID), c.Group); why != "" {
							t.Fatalf("placed although %s", why)
						}
					}
				}
			}
		}
		if diff := cmp.Diff(d, e.Decide(clone(s), clone(r))); diff != "" {
			t.Fatalf("a copy is decided otherwise: %s", diff)
		}
		for i := range s.Nodes {
			s.Nodes[i].Load = nil
			for j := range s.Nodes[i].Pools {
				for k := range s.Nodes[i].Pools[j].Cards {
					s.Nodes[i].Pools[j].Cards[k].Load = nil
				}
			}
		}
		if diff := cmp.Diff(plain.Decide(s, r), e.Decide(s, r)); diff != "" {
			t.Fatalf("where no load is known (-without the plugin +with it)\n%s", diff)
		}
	})
}
