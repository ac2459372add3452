package gang

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var threeLevels = []string{"zone", "rack"}

// cluster is zones of racks of nodes with two parts of four cards.
func cluster(t testing.TB, zones, racks, nodes int) *Cluster {
	t.Helper()
	var all []Node
	for z := range zones {
		for r := range racks {
			for n := range nodes {
				all = append(all, Node{
					ID: fmt.Sprintf("z%dr%dn%d", z, r, n), Path: []string{fmt.Sprintf("z%d", z), fmt.Sprintf("r%d", r)}, Parts: []int{4, 4},
				})
			}
		}
	}
	c, err := New(threeLevels, all)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func take(t testing.TB, c *Cluster, node int, parts ...uint8) {
	t.Helper()
	s := Slot{Node: node}
	copy(s.Parts[:], parts)
	if err := c.Take([]Slot{s}); err != nil {
		t.Fatal(err)
	}
}

func nodesOf(c *Cluster, slots []Slot) string {
	var out []string
	for i := range slots {
		out = append(out, fmt.Sprintf("%s%v", c.nodes[slots[i].Node].id, slots[i].Parts[:2]))
	}
	return strings.Join(out, " ")
}

func TestPlace(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		taken map[int][]uint8 // of a cluster of two zones with two racks of three nodes each
		ask   Ask
		want  string
		short *Short
	}{
		"a member in a broken part rather than a whole one": {
			taken: map[int][]uint8{4: {3, 0}}, ask: Ask{Members: 1, Cards: 1}, want: "z0r1n1[1 0]",
		},
		"a member in the fuller node, and leaves a pair whole": {
			taken: map[int][]uint8{3: {0, 4}, 4: {2, 4}, 5: {3, 3}}, ask: Ask{Members: 1, Cards: 1}, want: "z0r1n2[1 0]",
		},
		"a member in one part rather than cut in two": {
			taken: map[int][]uint8{4: {3, 3}}, ask: Ask{Members: 1, Cards: 2}, want: "z0r1n0[2 0]",
		},
		"whole nodes in the rack with the least room": {
			taken: map[int][]uint8{6: {1, 0}}, ask: Ask{Members: 2, Cards: 8}, want: "z1r0n1[4 4] z1r0n2[4 4]",
		},
		"members of one node together in one part": {
			taken: map[int][]uint8{3: {2, 0}}, ask: Ask{Members: 4, Cards: 1}, want: "z0r1n0[0 1] z0r1n0[0 1] z0r1n0[0 1] z0r1n0[0 1]",
		},
		"in as few racks as can be, of one zone": {
			ask:  Ask{Members: 5, Cards: 8},
			want: "z0r0n0[4 4] z0r0n1[4 4] z0r0n2[4 4] z0r1n0[4 4] z0r1n1[4 4]",
		},
		"required and not there": {
			ask: Ask{Members: 5, Cards: 8, Level: "rack", Mode: Required}, short: &Short{Level: "rack", Domain: "r0", Room: 3, Need: 5},
		},
		"required in a zone": {
			taken: map[int][]uint8{0: {4, 4}, 1: {4, 4}},
			ask:   Ask{Members: 5, Cards: 8, Level: "zone", Mode: Required},
			want:  "z1r0n0[4 4] z1r0n1[4 4] z1r0n2[4 4] z1r1n0[4 4] z1r1n1[4 4]",
		},
		"required on one node": {
			ask: Ask{Members: 3, Cards: 4, Level: LevelNode, Mode: Required}, short: &Short{Level: "rack", Domain: "r0", Room: 2, Need: 3},
		},
		"required in one part": {
			taken: map[int][]uint8{0: {2, 1}}, ask: Ask{Members: 2, Cards: 2, Level: LevelPart, Mode: Required}, want: "z0r0n1[2 0] z0r0n1[2 0]",
		},
		"balanced over two racks": {
			ask:  Ask{Members: 4, Cards: 8, Level: "rack", Mode: Balanced},
			want: "z0r1n0[4 4] z0r1n1[4 4] z0r0n0[4 4] z0r0n1[4 4]",
		},
		"as many as fit, if they are enough": {
			taken: map[int][]uint8{0: {1, 0}}, ask: Ask{Members: 4, Min: 2, Cards: 8, Level: "rack", Mode: Required},
			want: "z0r1n0[4 4] z0r1n1[4 4] z0r1n2[4 4]",
		},
		"as few as are not enough": {
			ask: Ask{Members: 20, Min: 13, Cards: 8}, short: &Short{Room: 12, Need: 13},
		},
		"other reasons than cards": {
			ask: Ask{Members: 2, Cards: 1, Limit: func(n int) int { return map[int]int{7: 1, 10: 1}[n] }}, want: "z1r0n1[1 0] z1r1n1[1 0]",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := cluster(t, 2, 2, 3)
			for n, parts := range tc.taken {
				take(t, c, n, parts...)
			}
			if err := c.Check(tc.ask); err != nil {
				t.Fatal(err)
			}
			got, short := c.Place(tc.ask)
			if diff := cmp.Diff(tc.want, nodesOf(c, got)); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(tc.short, short); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestReplace_StaysInTheDomain(t *testing.T) {
	t.Parallel()
	c := cluster(t, 2, 2, 3)
	gang, _ := c.Place(Ask{Members: 2, Cards: 8})
	if err := c.Take(gang); err != nil {
		t.Fatal(err)
	}
	a := Ask{Cards: 8, Level: "rack", Mode: Required, Limit: func(n int) int {
		if n == gang[1].Node {
			return 0
		}
		return 1
	}}
	if s, ok := c.Replace(a, gang, 1); !ok || c.nodes[s.Node].id != "z0r0n2" {
		t.Errorf("the rack has a node left: %v %v", s, ok)
	}
	take(t, c, 2, 1, 0)
	if s, ok := c.Replace(a, gang, 1); ok {
		t.Errorf("the rack is required and full: %v", s)
	}
	a.Mode = Preferred
	if s, ok := c.Replace(a, gang, 1); !ok || c.Domain(s.Node, "rack") != "r1" || c.Domain(s.Node, "zone") != "z0" {
		t.Errorf("the zone has another rack: %v %v", s, ok)
	}
}

func TestPlaceReplicas(t *testing.T) {
	t.Parallel()
	c := cluster(t, 1, 2, 3)
	a := Ask{Members: 2, Cards: 8, Level: "rack", Mode: Required}
	got, _ := c.PlaceReplicas(a, 3, 2)
	if len(got) != 2 || c.Domain(got[0][0].Node, "rack") == c.Domain(got[1][0].Node, "rack") {
		t.Errorf("two racks hold a replica each: %v", got)
	}
	if got, short := c.PlaceReplicas(a, 3, 3); got != nil || short == nil || short.Room != 1 {
		t.Errorf("three do not fit: %v, %+v", got, short)
	}
	a.Cards, a.Limit = 1, func(int) int { return 3 }
	if got, _ := c.PlaceReplicas(a, 6, 6); len(got) != 6 {
		t.Errorf("three members a node are one replica and a half: %v", got)
	}
	if room := c.index.count[0]; c.index.kinds[0].state.free.sum() != 8 || room[0] != 6 {
		t.Error("the question changed the cluster")
	}
}

func TestCheck_SaysWhatToWrite(t *testing.T) {
	t.Parallel()
	c := cluster(t, 1, 1, 1)
	for want, a := range map[string]Ask{
		"at least 1":         {Members: 0, Cards: 1},
		"from 1 to 2":        {Members: 2, Cards: 1, Min: 3},
		"zone, rack, node":   {Members: 1, Cards: 1, Level: "block"},
		"needs a level":      {Members: 1, Cards: 1, Mode: Required},
		"none for preferred": {Members: 1, Cards: 1, Mode: "near", Level: "rack"},
	} {
		if err := c.Check(a); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", a, err, want)
		}
	}
}

func TestNew_SaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	for want, n := range map[string]Node{
		"of 1 levels":   {ID: "a", Parts: []int{8}},
		"1 to 8":        {ID: "a", Path: []string{"r"}, Parts: make([]int, 9)},
		"5 cards free":  {ID: "a", Path: []string{"r"}, Parts: []int{4}, Free: []int{5}},
		"2 free ones":   {ID: "a", Path: []string{"r"}, Parts: []int{4}, Free: []int{1, 1}},
		"-1 cards free": {ID: "a", Path: []string{"r"}, Parts: []int{-1}},
	} {
		if _, err := New([]string{"rack"}, []Node{n}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", n, err, want)
		}
	}
	empty, err := New(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if slots, short := empty.Place(Ask{Members: 1, Cards: 1}); slots != nil || short == nil {
		t.Errorf("a cluster without nodes gave %v", slots)
	}
	if err := empty.Take([]Slot{{Node: 0}}); err == nil {
		t.Error("a node that is not there was taken")
	}
}

// The properties: what is given is free, whole or not at all, where it was asked for and as near as can be; and it does
// not depend on what came before.
func TestPlace_Properties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var nodes []Node
		zones, racks := rapid.IntRange(1, 3).Draw(t, "zones"), rapid.IntRange(1, 3).Draw(t, "racks")
		for i := range rapid.IntRange(1, 14).Draw(t, "nodes") {
			nodes = append(nodes, Node{
				ID: fmt.Sprint(i), Path: []string{fmt.Sprint(i % zones), fmt.Sprint(i % racks)},
				Parts: rapid.SampledFrom([][]int{{4, 4}, {8}, {2, 2}, {3, 1, 2}}).Draw(t, "parts"),
			})
		}
		c, err := New(threeLevels, nodes)
		if err != nil {
			t.Fatal(err)
		}
		var running [][]Slot
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			if len(running) > 0 && rapid.IntRange(0, 2).Draw(t, "end") == 0 {
				i := rapid.IntRange(0, len(running)-1).Draw(t, "which")
				if err := c.Give(running[i]); err != nil {
					t.Fatal(err)
				}
				running = slices.Delete(running, i, i+1)
				continue
			}
			a := drawAsk(t, len(nodes))
			slots, short := c.Place(a)
			checkPlaced(t, c, &a, slots, short)
			for i := range nodes {
				free := c.Free(i)
				nodes[i].Free = nil
				for p := range nodes[i].Parts {
					nodes[i].Free = append(nodes[i].Free, int(free[p]))
				}
			}
			fresh, err := New(threeLevels, nodes)
			if err != nil {
				t.Fatal(err)
			}
			if again, _ := fresh.Place(a); !slices.Equal(again, slots) {
				t.Fatalf("%+v: %v, from the same cluster made anew %v", a, slots, again)
			}
			if slots != nil {
				if err := c.Take(slots); err != nil {
					t.Fatal(err)
				}
				running = append(running, slots)
			}
		}
		for _, slots := range running {
			if err := c.Give(slots); err != nil {
				t.Fatal(err)
			}
		}
		for _, slots := range running { // nothing is taken any more, and nothing is half given
			if err := c.Give(slots); err == nil {
				t.Fatal("given back twice")
			}
			if err := c.Take(slots); err != nil {
				t.Fatal(err)
			}
			if err := c.Give(slots); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func drawAsk(t *rapid.T, nodes int) Ask {
	a := Ask{
		Members: rapid.IntRange(1, 9).Draw(t, "members"), Cards: rapid.SampledFrom([]int{1, 1, 2, 3, 4, 8}).Draw(t, "cards"),
		Level: rapid.SampledFrom([]string{"", "zone", "rack", LevelNode, LevelPart}).Draw(t, "level"),
	}
	if a.Level != "" {
		a.Mode = rapid.SampledFrom([]Mode{Preferred, Required, Balanced}).Draw(t, "mode")
	}
	a.Min = rapid.SampledFrom([]int{0, 0, 1, a.Members}).Draw(t, "least")
	if rapid.Bool().Draw(t, "limited") {
		limits := rapid.SliceOfN(rapid.IntRange(0, 3), nodes, nodes).Draw(t, "limits")
		a.Limit = func(n int) int { return limits[n] }
	}
	return a
}

// rooms counts by the words, node by node.
func rooms(c *Cluster, a *Ask, key func(n int) string) map[string]int {
	out := map[string]int{}
	for n := range c.nodes {
		free := c.Free(n)
		room := free.sum() / a.Cards
		if a.Level == LevelPart && a.Mode == Required {
			room = int(slices.Max(free[:])) / a.Cards
		}
		if a.Limit != nil {
			room = min(room, a.Limit(n))
		}
		out[key(n)] += room
	}
	return out
}

func checkPlaced(t *rapid.T, c *Cluster, a *Ask, slots []Slot, short *Short) {
	keys := map[string]func(n int) string{
		"": func(int) string { return "" }, "zone": func(n int) string { return c.Domain(n, "zone") },
		"rack":    func(n int) string { return c.Domain(n, "zone") + "/" + c.Domain(n, "rack") },
		LevelNode: func(n int) string { return fmt.Sprint(n) },
	}
	keys[LevelPart] = keys[LevelNode]
	within := keys[""]
	if a.Mode == Required {
		within = keys[a.Level]
	}
	most := 0
	for _, n := range rooms(c, a, within) {
		most = max(most, n)
	}
	want := min(a.Members, most)
	if want < a.least() {
		if slots != nil || short == nil || short.Room != most || short.Need != a.least() {
			t.Fatalf("%+v: %d fit, got %v, %+v", a, most, slots, short)
		}
		return
	}
	if len(slots) != want || short != nil {
		t.Fatalf("%+v: %d fit, got %d: %+v", a, most, len(slots), short)
	}
	members := map[int]int{}
	parts := map[[2]int]bool{}
	domains := map[string]map[string]int{}
	for i := range slots {
		members[slots[i].Node]++
		if slots[i].Parts.sum() != a.Cards {
			t.Fatalf("%+v: a member has %v", a, slots[i])
		}
		for p, n := range slots[i].Parts {
			if n > 0 {
				parts[[2]int{slots[i].Node, p}] = true
			}
		}
		for level, key := range keys {
			if domains[level] == nil {
				domains[level] = map[string]int{}
			}
			domains[level][key(slots[i].Node)]++
		}
	}
	if a.Mode == Required && len(domains[a.Level]) > 1 || a.Mode == Required && a.Level == LevelPart && len(parts) > 1 {
		t.Fatalf("%+v required one %s: %v", a, a.Level, slots)
	}
	if a.Limit != nil {
		for n, count := range members {
			if count > a.Limit(n) {
				t.Fatalf("%+v: %d on node %d", a, count, n)
			}
		}
	}
	for _, level := range []string{"zone", "rack", LevelNode} {
		for _, room := range rooms(c, a, keys[level]) {
			if room >= want && len(domains[level]) > 1 {
				t.Fatalf("%+v: one %s holds all, got %v", a, level, slots)
			}
		}
	}
	if a.Mode == Balanced && slices.Contains(threeLevels, a.Level) {
		checkEven(t, c, a, keys[a.Level], domains[a.Level])
	}
}

// checkEven: no member could move from a domain that has more to one that has fewer by two.
func checkEven(t *rapid.T, c *Cluster, a *Ask, key func(int) string, shares map[string]int) {
	room := rooms(c, a, key)
	for d, n := range shares {
		for e, m := range shares {
			if n > m+1 && room[e] > m {
				t.Fatalf("%+v: %s has %d, %s has %d and room for %d", a, d, n, e, m, room[e])
			}
		}
	}
}
