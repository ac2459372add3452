package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/placement-service/engine/gang"
)

// racks are nodes of eight whole cards, so many in each rack, named r<rack>n<number>.
func rackNodes(n, nodes int) Snapshot {
	var all []testNode
	for r := range n {
		for k := range nodes {
			all = append(all, testNode{
				Name: fmt.Sprintf("r%02dn%02d", r, k), Attrs: map[string]string{"meta.rack": fmt.Sprintf("r%02d", r)},
				Cards: []testCard{{Form: accel.Whole, Count: 8}},
			})
		}
	}
	return snapshotOf(all...)
}

// gangOf asks for a gang of one group.
func gangOf(members, cards int, level string, mode gang.Mode) Request {
	r := ask(members, accel.Ask{Count: cards})
	r.Gang = &GangAsk{Level: level, Mode: mode}
	r.Groups[0].Gang = true
	return r
}

// fill takes cards of a node.
func fillNode(s Snapshot, name string, cards int) {
	for i := range s.Nodes {
		if p := &s.Nodes[i].Pools[0]; s.Nodes[i].Name == name {
			for k := range p.Cards {
				if p.Cards[k].UsedUnits == 0 && cards > 0 {
					p.Cards[k].UsedUnits, p.Used, cards = 1, p.Used+1, cards-1
				}
			}
		}
	}
}

func inRacks(s Snapshot, d Decision) []string {
	var out []string
	for _, m := range d.Gang {
		rack := nodeOf(s, m.NodeID).Attrs["meta.rack"]
		if len(out) == 0 || out[len(out)-1] != rack {
			out = append(out, rack)
		}
	}
	return out
}

func TestGang_GoesIntoOneRack(t *testing.T) {
	t.Parallel()
	s := rackNodes(3, 4)
	fillNode(s, "r00n00", 8)
	fillNode(s, "r01n00", 1)
	for _, tc := range []struct {
		name           string
		members, cards int
		mode           gang.Mode
		want           []string
	}{
		{"the tightest rack that holds it", 3, 8, gang.Preferred, []string{"r00"}},
		{"the only rack that holds it", 4, 8, gang.Required, []string{"r02"}},
		{"several racks where none holds it", 7, 8, gang.Preferred, []string{"r02", "r00"}},
		{"two racks evenly, those with the least room", 6, 8, gang.Balanced, []string{"r00", "r01"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d := New(Config{}).Decide(s, gangOf(tc.members, tc.cards, "rack", tc.mode))
			if !d.Placed || len(d.Gang) != tc.members || len(d.Groups[0].Placements) != tc.members {
				t.Fatalf("%+v", d.Refusal)
			}
			got := inRacks(s, d)
			slices.Sort(got)
			want := slices.Clone(tc.want)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("ranks are in racks %v, want %v", got, want)
			}
			for i, m := range d.Gang { // the plan is in the order of ranks too
				if d.Groups[0].Placements[i].NodeID != m.NodeID {
					t.Errorf("member %d is on %s, the plan says %s", i, m.NodeID, d.Groups[0].Placements[i].NodeID)
				}
			}
		})
	}
}

func TestGang_SaysWhatIsShort(t *testing.T) {
	t.Parallel()
	s := rackNodes(2, 8)
	fillNode(s, "r00n00", 1)
	for _, tc := range []struct {
		name    string
		request Request
		code    Code
		never   bool
		want    string
	}{
		{"one member short", gangOf(16, 8, "", ""), CodeGangIncomplete, false, "the gang needs 16 members with 8 whole cards of one model each; 15 fit now: 1 short"},
		{"no rack holds it", gangOf(9, 8, "rack", gang.Required), CodeGangIncomplete, false,
			"the gang needs 9 members with 8 whole cards of one model each in one rack; best is r01; 8 fit now: 1 short"},
		{"more than there is", gangOf(17, 8, "", ""), CodeCount, true, "the gang needs 136 cards, but the cluster has 128 that would do"},
		{"a level that no node knows", gangOf(2, 8, "zone", gang.Required), CodeGangLevel, false, `write zone = "…" into the meta of the nodes`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d := New(Config{}).Decide(s, tc.request)
			if d.Placed || d.Refusal.Code != tc.code || d.Refusal.Never != tc.never || !strings.Contains(d.Refusal.Sentence, tc.want) {
				t.Errorf("%+v", d.Refusal)
			}
			if len(d.Gang) > 0 || len(d.Groups) > 0 {
				t.Errorf("a refused gang holds %v", d.Gang)
			}
		})
	}
	d := New(Config{}).Decide(s, gangOf(9, 8, "rack", gang.Required))
	nodes := 0
	for _, c := range d.Refusal.Counts {
		nodes += c.Nodes
	}
	if nodes != 16 {
		t.Errorf("%d nodes have a reason: %+v", nodes, d.Refusal.Counts)
	}
}

// One group for each rank: the groups keep their order, and each names its own cards.
func TestGang_OneGroupForEachRank(t *testing.T) {
	t.Parallel()
	s := Snapshot{Nodes: []Node{pairedNode("a"), pairedNode("b")}}
	r := gangOf(1, 4, "", "")
	for _, name := range []string{"rank1", "rank2", "rank3"} {
		g := r.Groups[0]
		g.Name = name
		r.Groups = append(r.Groups, g)
	}
	d := New(Config{}).Decide(s, r)
	if !d.Placed || len(d.Gang) != 4 {
		t.Fatalf("%+v", d.Refusal)
	}
	seen := map[string]bool{}
	for i, g := range d.Groups {
		if g.Name != r.Groups[i].Name || d.Gang[i].Group != g.Name {
			t.Errorf("member %d is %+v of group %s", i, d.Gang[i], g.Name)
		}
		ids := g.Tasks[0].Blocks[0].ids()
		if len(ids) != 4 {
			t.Fatalf("group %s names %v", g.Name, ids)
		}
		numa := ids[0][len(ids[0])-1] < '4'
		for _, id := range ids {
			if seen[id] || (id[len(id)-1] < '4') != numa {
				t.Errorf("group %s has %v: taken before, or of two halves", g.Name, ids)
			}
			seen[id] = true
		}
	}
}

// Members that are not alike are placed too, all or none.
func TestGang_LeaderAndWorkers(t *testing.T) {
	t.Parallel()
	s := rackNodes(1, 5)
	fillNode(s, "r00n00", 2)
	fillNode(s, "r00n01", 1)
	r := gangOf(1, 1, "", "")
	workers := gangOf(2, 8, "", "").Groups[0]
	workers.Name = "workers"
	r.Groups = append(r.Groups, workers)
	d := New(Config{}).Decide(s, r)
	if !d.Placed || len(d.Gang) != 3 || d.Gang[0].Group != "serve" || d.Gang[2].Group != "workers" {
		t.Fatalf("%+v %+v", d.Gang, d.Refusal)
	}
	r.Groups[1].Count = 4
	if d = New(Config{}).Decide(s, r); d.Placed || len(d.Groups) > 0 || d.Refusal.Code != CodeGangIncomplete {
		t.Errorf("%+v", d.Refusal)
	}
}

// Beside the gang, other groups of the job are placed, or nothing is.
func TestGang_WithAnotherGroup(t *testing.T) {
	t.Parallel()
	s := rackNodes(1, 2)
	r := gangOf(2, 8, "", "")
	other := ask(1, accel.Ask{Count: 1}).Groups[0]
	other.Name = "board"
	r.Groups = append(r.Groups, other)
	if d := New(Config{}).Decide(s, r); d.Placed || d.Refusal.Group != "board" {
		t.Errorf("%+v", d)
	}
	r.Groups[0].Count = 1
	if d := New(Config{}).Decide(s, r); !d.Placed || len(d.Gang) != 1 {
		t.Errorf("%+v", d.Refusal)
	}
}

// What processor and memory leave room for counts too.
func TestGang_LimitedByTheProcessor(t *testing.T) {
	t.Parallel()
	s := rackNodes(1, 4)
	r := gangOf(8, 1, "", "")
	r.Groups[0].CPUMHz = 30000 // two on each node of 64,000
	d := New(Config{}).Decide(s, r)
	if !d.Placed {
		t.Fatalf("%+v", d.Refusal)
	}
	on := map[string]int{}
	for _, m := range d.Gang {
		on[m.NodeID]++
	}
	for node, n := range on {
		if n != 2 {
			t.Errorf("%d members on %s", n, node)
		}
	}
	r.Groups[0].Count = 9
	if d = New(Config{}).Decide(s, r); d.Placed || d.Refusal.Code != CodeGangIncomplete {
		t.Errorf("%+v", d.Refusal)
	}
}

// The smallest change that would start it is found for gangs as well.
func TestGang_Suggestions(t *testing.T) {
	t.Parallel()
	s := rackNodes(2, 4)
	fillNode(s, "r00n00", 1)
	e := New(Config{})
	var fields []string
	for _, sg := range e.Suggest(s, gangOf(5, 8, "rack", gang.Required)) {
		fields = append(fields, sg.Field+" "+sg.To)
		if !e.Fits(s, sg.Request) {
			t.Errorf("%s does not help", sg.Sentence)
		}
	}
	if !slices.Contains(fields, "count 4") || !slices.Contains(fields, "level none") {
		t.Errorf("%v", fields)
	}
}

// Rival gangs come and go on the whole pipeline: each has all of its members or none at every moment, nothing is over
// what is free, and when all that runs has ended each that can fit starts: nobody waits for somebody who waits.
func TestGang_RivalsNeverHoldAPart(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := rackNodes(2, 4)
		e := New(Config{})
		type one struct {
			r Request
			d Decision
		}
		var waiting []Request
		var live []one
		for range rapid.IntRange(2, 12).Draw(t, "gangs") {
			waiting = append(waiting, gangOf(
				rapid.IntRange(1, 12).Draw(t, "members"), rapid.SampledFrom([]int{1, 2, 4, 8}).Draw(t, "cards"),
				rapid.SampledFrom([]string{"", "rack", "node"}).Draw(t, "level"), "",
			))
		}
		for len(waiting) > 0 {
			rest := waiting[:0]
			for _, r := range waiting {
				d := e.Decide(s, r)
				if !d.Placed {
					if len(d.Groups) > 0 || len(d.Gang) > 0 {
						t.Fatalf("a refused gang holds %v", d.Gang)
					}
					if !d.Refusal.Never {
						rest = append(rest, r)
					}
					continue
				}
				if len(d.Gang) != r.Groups[0].Count || len(d.Groups[0].Placements) != r.Groups[0].Count {
					t.Fatalf("%d members of %d are placed", len(d.Gang), r.Groups[0].Count)
				}
				book(t, s, r, d)
				live = append(live, one{r, d})
			}
			waiting = rest
			if len(live) == 0 && len(waiting) > 0 {
				t.Fatalf("nothing runs and %d gangs wait: %+v", len(waiting), e.Decide(s, waiting[0]).Refusal)
			}
			if len(live) > 0 {
				unbook(s, live[0].r, live[0].d)
				live = live[1:]
			}
		}
	})
}

// unbook gives the plan's claims back.
func unbook(s Snapshot, r Request, d Decision) {
	for gi, g := range d.Groups {
		for _, p := range g.Placements {
			n := nodeOf(s, p.NodeID)
			n.UsedCPUMHz -= r.Groups[gi].CPUMHz
			n.UsedMemoryMiB -= r.Groups[gi].MemoryMiB
			n.UsedDiskMiB -= r.Groups[gi].DiskMiB
			for _, task := range p.Tasks {
				for _, c := range task.Claims {
					for i := range n.Pools {
						if n.Pools[i].Group == c.Group {
							n.Pools[i].Used -= c.Units
							n.Pools[i].Hold(r.Tenant, -c.Units)
						}
					}
				}
			}
		}
	}
}

// A hundred gangs want a cluster that is busy to 95 %: all of them start, one after the other.
func TestGang_HundredRivalsDrain(t *testing.T) {
	t.Parallel()
	s := rackNodes(4, 16)
	e := New(Config{})
	for i := range s.Nodes { // 61 of 64 nodes are taken
		if i < 61 {
			fillNode(s, s.Nodes[i].Name, 8)
		}
	}
	var waiting []Request
	for i := range 100 {
		waiting = append(waiting, gangOf(2+i%15, []int{1, 4, 8}[i%3], "rack", []gang.Mode{gang.Preferred, gang.Balanced}[i%2]))
	}
	type one struct {
		r Request
		d Decision
	}
	var live []one
	freed := 0
	for rounds := 0; len(waiting) > 0; rounds++ {
		if rounds > 1000 {
			t.Fatalf("%d gangs still wait", len(waiting))
		}
		var rest []Request
		for _, r := range waiting {
			if d := e.Decide(s, r); d.Placed {
				book(t, s, r, d)
				live = append(live, one{r, d})
			} else {
				rest = append(rest, r)
			}
		}
		waiting = rest
		if len(live) > 0 {
			unbook(s, live[0].r, live[0].d)
			live = live[1:]
		}
		if freed < 61 { // what ran before ends bit by bit
			p := &s.Nodes[freed].Pools[0]
			for k := range p.Cards {
				p.Cards[k].UsedUnits = 0
			}
			p.Used -= 8
			freed++
		}
	}
}

// BenchmarkGangDecision is a gang of 512 members by the whole pipeline, on 1,000 nodes of which every other one is in part
// taken.
func BenchmarkGangDecision(b *testing.B) {
	for _, cards := range []int{4, 8} {
		b.Run(fmt.Sprintf("members=512/cards=%d", cards), func(b *testing.B) {
			s := rackNodes(20, 50)
			for i := range s.Nodes {
				if i%3 == 0 {
					fillNode(s, s.Nodes[i].Name, 1+i%4)
				}
			}
			e := New(Config{})
			r := gangOf(512, cards, "rack", "")
			for b.Loop() {
				if d := e.Decide(s, r); !d.Placed {
					b.Fatal(d.Refusal)
				}
			}
		})
	}
	b.Run("ranks=512", func(b *testing.B) {
		s := rackNodes(20, 50)
		e := New(Config{})
		r := gangOf(1, 8, "rack", "")
		for i := 1; i < 512; i++ {
			g := r.Groups[0]
			g.Name = fmt.Sprintf("rank%d", i)
			r.Groups = append(r.Groups, g)
		}
		for b.Loop() {
			if d := e.Decide(s, r); !d.Placed {
				b.Fatal(d.Refusal)
			}
		}
	})
}

// A member that is lost is replaced in the rack of the others while there is room, and nowhere else when the rack is
// required; those that run stay where they are.
func TestGang_ReplacedNearTheOthers(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		mode gang.Mode
		free string // the node that is left in the gang's rack; empty for none
		want string // the rack of the replacement; empty for a refusal
	}{
		{"in the rack", gang.Preferred, "r01n03", "r01"},
		{"elsewhere where the rack is full", gang.Preferred, "", "r00"},
		{"required, in the rack", gang.Required, "r01n03", "r01"},
		{"required, and the rack is full", gang.Required, "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := rackNodes(2, 4)
			e := New(Config{})
			r := gangOf(3, 8, "rack", tc.mode)
			for i := range 4 {
				fillNode(s, fmt.Sprintf("r00n%02d", i), 8)
			}
			first := e.Decide(s, r)
			if !first.Placed {
				t.Fatalf("%+v", first.Refusal)
			}
			s = rackNodes(2, 4)
			for i := range s.Nodes { // the racks as they are: only what is named is free
				if s.Nodes[i].Name != tc.free && s.Nodes[i].Attrs["meta.rack"] == "r01" && !slices.ContainsFunc(first.Gang, func(m Member) bool { return m.NodeID == s.Nodes[i].ID }) {
					fillNode(s, s.Nodes[i].Name, 8)
				}
			}
			lost := first.Gang[1].NodeID
			nodeOf(s, lost).Ready = false
			keep := first.Groups[0]
			keep.Placements = slices.DeleteFunc(slices.Clone(keep.Placements), func(p Placement) bool { return p.NodeID == lost })
			r.Groups[0].Keep = &keep
			d := e.Decide(s, r)
			if tc.want == "" {
				if d.Placed || d.Refusal.Code != CodeGangIncomplete {
					t.Errorf("%+v", d.Refusal)
				}
				return
			}
			if !d.Placed {
				t.Fatalf("%+v", d.Refusal)
			}
			var racks []string
			for _, m := range d.Gang {
				if m.NodeID == lost {
					t.Errorf("placed on the lost node")
				}
				racks = append(racks, nodeOf(s, m.NodeID).Attrs["meta.rack"])
			}
			slices.Sort(racks)
			want := []string{tc.want, "r01", "r01"}
			slices.Sort(want)
			if !slices.Equal(racks, want) {
				t.Errorf("members are in %v, want %v", racks, want)
			}
			for _, p := range keep.Placements {
				if !slices.ContainsFunc(d.Gang, func(m Member) bool { return m.NodeID == p.NodeID }) {
					t.Errorf("the member on %s was moved", p.NodeID)
				}
			}
		})
	}
}

// An elastic gang gets as many members as a gang of some size could, and none below its fewest; what runs of it stays when
// it grows.
func TestGang_Elastic(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := rackNodes(2, 3)
		for _, n := range s.Nodes {
			fillNode(s, n.Name, rapid.IntRange(0, 8).Draw(t, n.Name))
		}
		most := rapid.IntRange(1, 12).Draw(t, "most")
		least := rapid.IntRange(1, most).Draw(t, "least")
		cards := rapid.SampledFrom([]int{1, 2, 4, 8}).Draw(t, "cards")
		level, mode := "rack", rapid.SampledFrom([]gang.Mode{gang.Preferred, gang.Required}).Draw(t, "mode")
		e := New(Config{})
		want := 0
		for n := least; n <= most; n++ {
			if e.Decide(s, gangOf(n, cards, level, mode)).Placed {
				want = n
			}
		}
		r := gangOf(most, cards, level, mode)
		r.Gang.Min = least
		d := e.Decide(s, r)
		if got := len(d.Gang); got != want || d.Placed != (want > 0) || d.Placed && len(d.Groups[0].Placements) != want {
			t.Fatalf("%d members, want %d of %d to %d: %+v", got, want, least, most, d.Refusal)
		}
		if !d.Placed || want == most {
			return
		}
		keep := d.Groups[0]
		r.Groups[0].Keep, r.Gang.Min = &keep, want
		again := e.Decide(s, r) // as the submitter asks: what it holds is free in its snapshot
		if !again.Placed || len(again.Gang) < want {
			t.Fatalf("%d members once %d run: %+v", len(again.Gang), want, again.Refusal)
		}
		for _, p := range keep.Placements {
			if n := func(g GroupPlan) (n int) {
				for _, other := range g.Placements {
					if other.NodeID == p.NodeID {
						n++
					}
				}
				return n
			}; n(again.Groups[0]) < n(keep) {
				t.Fatalf("a member left %s: %v, then %v", p.NodeID, keep.Placements, again.Groups[0].Placements)
			}
		}
	})
}

func TestGang_ElasticSaysWhatItsFewestLack(t *testing.T) {
	t.Parallel()
	s := rackNodes(1, 2)
	r := gangOf(8, 8, "", "")
	r.Gang.Min = 3
	d := New(Config{}).Decide(s, r)
	if d.Placed || !d.Refusal.Never || !strings.Contains(d.Refusal.Sentence, "the gang needs 24 cards, but the cluster has 16") {
		t.Errorf("%+v", d.Refusal)
	}
	r.Gang.Min = 2
	fillNode(s, s.Nodes[0].Name, 1)
	d = New(Config{}).Decide(s, r)
	if d.Placed || d.Refusal.Never || !strings.Contains(d.Refusal.Sentence, "the gang needs 2 members with 8 whole cards of one model each; 1 fit now: 1 short") {
		t.Errorf("%+v", d.Refusal)
	}
}
