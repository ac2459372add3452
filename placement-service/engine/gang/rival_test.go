package gang

import (
	"container/heap"
	"testing"

	"pgregory.net/rapid"
)

// A hundred gangs want a cluster that is busy to 95 %, all at once. Each has all of its members or none at every
// moment, so that none holds a part while it waits; all of them end.
func TestRivals_Drain(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const nodes = 64
		var all []Node
		for i := range nodes {
			all = append(all, Node{ID: string(rune(i)), Path: []string{"z", string(rune('a' + i/16))}, Parts: []int{4, 4}})
		}
		c, err := New(threeLevels, all)
		if err != nil {
			t.Fatal(err)
		}
		ends := &endings{}
		for i := range nodes * 2 * 95 / 100 { // small jobs that end one after the other
			slots, short := c.Place(Ask{Members: 1, Cards: 4})
			if short != nil {
				t.Fatal(short)
			}
			if err := c.Take(slots); err != nil {
				t.Fatal(err)
			}
			heap.Push(ends, &job{arrived: float64(i%17) + 1, slots: slots})
		}
		var waiting []Ask
		for range 100 {
			waiting = append(waiting, Ask{
				Members: rapid.IntRange(2, 64).Draw(t, "members"), Cards: rapid.SampledFrom([]int{1, 4, 8}).Draw(t, "cards"), Level: "rack",
				Mode: rapid.SampledFrom([]Mode{Preferred, Preferred, Balanced}).Draw(t, "mode"),
			})
		}
		free := func() int {
			n := 0
			for i := range nodes {
				p := c.Free(i)
				n += p.sum()
			}
			return n
		}
		for now := 0.0; len(waiting) > 0; {
			kept := waiting[:0]
			for _, a := range waiting {
				before := free()
				slots, _ := c.Place(a)
				if slots == nil {
					kept = append(kept, a)
					continue
				}
				if err := c.Take(slots); err != nil {
					t.Fatal(err)
				}
				if got := before - free(); len(slots) != a.Members || got != a.Members*a.Cards {
					t.Fatalf("%+v holds %d cards in %d slots", a, got, len(slots))
				}
				heap.Push(ends, &job{arrived: now + 5, slots: slots})
			}
			waiting = kept
			if ends.Len() == 0 && len(waiting) > 0 {
				t.Fatalf("nothing runs and %d gangs wait", len(waiting))
			}
			if ends.Len() > 0 {
				ended := heap.Pop(ends).(*job)
				now = ended.arrived
				if err := c.Give(ended.slots); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, j := range *ends {
			if err := c.Give(j.slots); err != nil {
				t.Fatal(err)
			}
		}
		if free() != nodes*8 {
			t.Fatalf("%d of %d cards came back", free(), nodes*8)
		}
	})
}

// Two gangs that want all of the cluster: one runs, the other waits whole.
func TestRivals_TwoOfOneHundred(t *testing.T) {
	t.Parallel()
	c := cluster(t, 1, 4, 30)
	a := Ask{Members: 100, Cards: 8}
	first, _ := c.Place(a)
	if err := c.Take(first); err != nil || len(first) != 100 {
		t.Fatalf("%d slots, %v", len(first), err)
	}
	if second, short := c.Place(a); second != nil || short.Room != 20 || short.Need != 100 {
		t.Errorf("the second got %d slots, %+v", len(second), short)
	}
}
