package engine

import (
	"fmt"
	"strings"
	"testing"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// racks has nodes with one card each in the named racks; an empty name is none.
func racks(names ...string) Snapshot {
	var nodes []testNode
	for i, rack := range names {
		n := testNode{Name: fmt.Sprintf("n%d", i), Cards: []testCard{{}}}
		if rack != "" {
			n.Attrs = map[string]string{"meta.rack": rack}
		}
		nodes = append(nodes, n)
	}
	return snapshotOf(nodes...)
}

// perRack counts the allocations of a decision by rack.
func perRack(s Snapshot, d Decision) map[string]int {
	out := map[string]int{}
	for _, g := range d.Groups {
		for _, p := range g.Placements {
			out[nodeOf(s, p.NodeID).Attrs["meta.rack"]]++
		}
	}
	return out
}

func TestApart_AtMostSoManyForEachValue(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		racks       []string
		allocations int
		most        int
		want        Code
		say         string
	}{
		"one for each rack":          {[]string{"a", "a", "b", "b"}, 2, 1, "", ""},
		"a third finds no rack":      {[]string{"a", "a", "b", "b"}, 3, 1, CodeAntiAffinity, "2 of 3 allocations fit"},
		"two for each rack":          {[]string{"a", "a", "b", "b"}, 4, 2, "", ""},
		"0 is taken for one":         {[]string{"a", "a"}, 2, 0, CodeAntiAffinity, "at most 1 for each value"},
		"a node without one is none": {[]string{"a", "", ""}, 2, 1, CodeAntiAffinity, "${meta.rack}"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := racks(c.racks...)
			r := ask(c.allocations, accel.Ask{MemoryMiB: 1 << 10})
			r.Groups[0].Apart = []Apart{{Attribute: "${meta.rack}", Most: c.most}}
			d := New(Config{}).Decide(s, r)
			if got := reason(d); got != c.want {
				t.Fatalf("got %q, want %q", got, c.want)
			}
			if !d.Placed && !strings.Contains(d.Refusal.Sentence, c.say) {
				t.Errorf("sentence %q, want it to say %q", d.Refusal.Sentence, c.say)
			}
		})
	}
}

func TestApart_OfAJobCountsAllGroups(t *testing.T) {
	t.Parallel()
	s := racks("a", "a", "b", "b")
	r := ask(1, accel.Ask{MemoryMiB: 1 << 10})
	rule := []Apart{{Attribute: "${meta.rack}", Most: 1, OfJob: true}}
	r.Groups[0].Apart = rule
	second := r.Groups[0]
	second.Name = "other"
	r.Groups = append(r.Groups, second)
	d := New(Config{}).Decide(s, r)
	if !d.Placed || len(perRack(s, d)) != 2 {
		t.Errorf("two groups are in racks %v", perRack(s, d))
	}
	third := second
	third.Name = "third"
	r.Groups = append(r.Groups, third)
	if got := reason(New(Config{}).Decide(s, r)); got != CodeAntiAffinity {
		t.Errorf("three groups in two racks: %q", got)
	}
	for i := range r.Groups { // of each group by itself there is one in a rack
		r.Groups[i].Apart = []Apart{{Attribute: "${meta.rack}", Most: 1}}
	}
	if d := New(Config{}).Decide(s, r); !d.Placed {
		t.Errorf("by group: %s", d.Refusal.Sentence)
	}
}

// TestSpread_FillsDomainsEvenly: without the rule one node takes all, with it every rack gets its part.
func TestSpread_FillsDomainsEvenly(t *testing.T) {
	t.Parallel()
	s := racks("a", "a", "a", "b", "c", "")
	r := ask(6, accel.Ask{MemoryMiB: 1 << 10})
	if d := New(Config{}).Decide(s, r); len(perRack(s, d)) != 1 {
		t.Fatalf("without spread racks have %v, want all in one", perRack(s, d))
	}
	r.Groups[0].Spread = []Spread{{Attribute: "${meta.rack}", Weight: 100}}
	d := New(Config{}).Decide(s, r)
	for rack, want := range map[string]int{"a": 2, "b": 2, "c": 2, "": 0} {
		if got := perRack(s, d)[rack]; got != want {
			t.Errorf("rack %q has %d allocations, want %d", rack, got, want)
		}
	}
}
