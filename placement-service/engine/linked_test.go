package engine

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// pairedNode is a node of eight whole cards with NVLink between (0,2), (1,3), (4,5) and (6,7) and nothing but the bus
// between the others, as recorded in NVIDIA/k8s-device-plugin#193; cards 0–3 and 4–7 are on one NUMA node each.
func pairedNode(name string, taken ...int) Node {
	s := snapshotOf(testNode{Name: name, Cards: []testCard{{Form: accel.Whole, Count: 8}}})
	n := s.Nodes[0]
	partner := map[int]int{0: 2, 2: 0, 1: 3, 3: 1, 4: 5, 5: 4, 6: 7, 7: 6}
	p := &n.Pools[0]
	for i := range p.Cards {
		row := make([]*accel.Link, 8)
		for k := range row {
			kind := accel.LinkSystem
			if i/4 == k/4 {
				kind = accel.LinkPXB
			}
			row[k] = &accel.Link{Kind: kind}
			if partner[i] == k {
				row[k] = &accel.Link{Kind: accel.LinkNVLink, Count: new(12)}
			}
		}
		row[i] = nil
		p.Cards[i].Links, p.Cards[i].NUMA = LinkRow(row), new(i/4)
	}
	for _, i := range taken {
		p.Cards[i].UsedUnits = 1
		p.Used++
	}
	return n
}

// cardsOf are the numbers of the cards that a decision names, in the order of the placements.
func cardsOf(t *testing.T, s Snapshot, d Decision) []string {
	t.Helper()
	var out []string
	for _, g := range d.Groups {
		for _, p := range g.Placements {
			for _, task := range p.Tasks {
				for _, c := range task.Claims {
					if c.Cards != nil && len(c.Cards) != c.Units {
						t.Errorf("%d cards are named for %d", len(c.Cards), c.Units)
					}
					out = append(out, c.Cards...)
				}
			}
		}
	}
	return out
}

func TestLinks_TheSetThatIsChosen(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		nodes []Node
		cards int
		want  []string
	}{
		{"two cards are a pair", []Node{pairedNode("a")}, 2, []string{"GPU-a-0", "GPU-a-2"}},
		{"the pair beside it where one is broken", []Node{pairedNode("a", 0)}, 2, []string{"GPU-a-1", "GPU-a-3"}},
		{"a single from the broken pair", []Node{pairedNode("a", 5)}, 1, []string{"GPU-a-4"}},
		{"a single from a broken pair of another node", []Node{pairedNode("a"), pairedNode("b", 6)}, 1, []string{"GPU-b-7"}},
		{"a pair of another node rather than none here", []Node{pairedNode("a", 0, 1, 4, 6), pairedNode("b")}, 2, []string{"GPU-b-0", "GPU-b-2"}},
		{"four of one NUMA node", []Node{pairedNode("a", 0)}, 4, []string{"GPU-a-4", "GPU-a-5", "GPU-a-6", "GPU-a-7"}},
		{"all cards need no names", []Node{pairedNode("a")}, 8, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := Snapshot{Nodes: tc.nodes}
			r := ask(1, accel.Ask{Count: tc.cards})
			e := New(Config{})
			d := e.Decide(s, r)
			if !d.Placed {
				t.Fatalf("refused: %+v", d.Refusal)
			}
			if got := cardsOf(t, s, d); !slices.Equal(got, tc.want) {
				t.Errorf("cards %v, want %v", got, tc.want)
			}
			block := d.Groups[0].Tasks[0].Blocks[0]
			if got := block.ids(); !slices.Equal(got, tc.want) {
				t.Errorf("the block names %v, want %v", got, tc.want)
			}
			if on := e.DecideOn(NewCluster(tc.nodes...), r); !slices.Equal(cardsOf(t, s, on), tc.want) {
				t.Errorf("on the cluster: %v", cardsOf(t, s, on))
			}
		})
	}
}

// A plan names cards only where another allocation cannot come to need others: one more would restart all.
func TestLinks_SeveralAllocationsNameNone(t *testing.T) {
	t.Parallel()
	s := Snapshot{Nodes: []Node{pairedNode("a")}}
	d := New(Config{}).Decide(s, ask(2, accel.Ask{Count: 2}))
	if !d.Placed || cardsOf(t, s, d) != nil || d.Groups[0].Tasks[0].Blocks[0].ids() != nil {
		t.Errorf("%+v", d.Groups)
	}
}

// Two groups of one job take different cards.
func TestLinks_GroupsTakeDifferentCards(t *testing.T) {
	t.Parallel()
	s := Snapshot{Nodes: []Node{pairedNode("a")}}
	r := ask(1, accel.Ask{Count: 2})
	second := r.Groups[0]
	second.Name = "second"
	r.Groups = append(r.Groups, second)
	d := New(Config{}).Decide(s, r)
	got := cardsOf(t, s, d)
	if want := []string{"GPU-a-0", "GPU-a-2", "GPU-a-1", "GPU-a-3"}; !slices.Equal(got, want) {
		t.Errorf("cards %v, want %v", got, want)
	}
}

// A running plan that names cards is kept while the allocation runs, and given up when a card is gone.
func TestLinks_KeptPlan(t *testing.T) {
	t.Parallel()
	e := New(Config{})
	s := Snapshot{Nodes: []Node{pairedNode("a")}}
	r := ask(1, accel.Ask{Count: 2})
	first := e.Decide(s, r)
	plan := first.Groups[0]
	r.Groups[0].Keep = &plan
	if again := e.Decide(s, r); !again.Placed || !slices.Equal(again.Groups[0].Tasks[0].Blocks[0].ids(), plan.Tasks[0].Blocks[0].ids()) {
		t.Errorf("kept: %+v", again)
	}
	two := r
	two.Groups = slices.Clone(r.Groups)
	two.Groups[0].Count = 2
	if more := e.Decide(s, two); !more.Placed || more.Groups[0].Tasks[0].Blocks[0].ids() != nil {
		t.Errorf("a second allocation has no room among the cards of the first: %+v", more.Groups)
	}
	s.Nodes[0].Pools[0].Cards[2].Healthy = false
	s.Nodes[0].Pools[0].Total--
	lost := *r.Groups[0].Keep
	lost.Placements = nil
	r.Groups[0].Keep = &lost
	if other := e.Decide(s, r); !other.Placed || slices.Contains(other.Groups[0].Tasks[0].Blocks[0].ids(), "GPU-a-2") {
		t.Errorf("after the card died: %+v", other.Groups)
	}
}

// Jobs of one to eight cards come and go: no card is named twice at a time, each named card is free, and what the index
// decides is what Decide decides.
func TestLinks_NeverACardTwice(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		e := New(Config{})
		nodes := []Node{pairedNode("a"), pairedNode("b"), pairedNode("c")}
		c := NewCluster(nodes...)
		type running struct {
			node  string
			cards []string
		}
		var live []running
		set := func(node string, cards []string, used int) {
			for i := range nodes {
				if nodes[i].ID != node {
					continue
				}
				pools := slices.Clone(nodes[i].Pools)
				pools[0].Cards = slices.Clone(pools[0].Cards)
				for k := range pools[0].Cards {
					card := &pools[0].Cards[k]
					if slices.Contains(cards, card.UUID) {
						if card.UsedUnits == used {
							t.Fatalf("%s is named twice, or was not taken", card.UUID)
						}
						card.UsedUnits = used
						pools[0].Used += 2*used - 1
					}
				}
				nodes[i].Pools = pools
				c.Set(nodes[i])
			}
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			if len(live) > 0 && rapid.Bool().Draw(t, "end") {
				at := rapid.IntRange(0, len(live)-1).Draw(t, "which")
				set(live[at].node, live[at].cards, 0)
				live = slices.Delete(live, at, at+1)
				continue
			}
			r := ask(1, accel.Ask{Count: rapid.IntRange(1, 7).Draw(t, "cards")})
			s := Snapshot{Nodes: nodes}
			d := e.Decide(s, r)
			if on := e.DecideOn(c, r); fmt.Sprint(on.Groups) != fmt.Sprint(d.Groups) {
				t.Fatalf("the index decides\n%v\nnot\n%v", on.Groups, d.Groups)
			}
			if !d.Placed {
				continue
			}
			p := d.Groups[0].Placements[0]
			claim := p.Tasks[0].Claims[0]
			if len(claim.Cards) != claim.Units {
				t.Fatalf("%d cards are named for %d", len(claim.Cards), claim.Units)
			}
			set(p.NodeID, claim.Cards, 1)
			live = append(live, running{p.NodeID, claim.Cards})
		}
	})
}
