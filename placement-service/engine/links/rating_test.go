package links

import (
	"testing"

	"pgregory.net/rapid"
)

func TestRating_SaysWhatIsBroken(t *testing.T) {
	t.Parallel()
	all := machines(t)
	for _, tc := range []struct {
		name, machine string
		taken, cards  Set
		links, whole  float64
	}{
		{"a pair out of a whole node breaks its half and the node", "topo-matrix-a100x8-pairs", 0, Of(0, 2), 1, 1.0 / 3},
		{"the other pair of the broken half breaks nothing", "topo-matrix-a100x8-pairs", Of(0, 2), Of(1, 3), 1, 1},
		{"a single from a broken pair breaks nothing", "topo-matrix-a100x8-pairs", Of(5), Of(4), 1, 1},
		{"a single out of a whole pair breaks it", "topo-matrix-a100x8-pairs", Of(4, 5, 6, 0, 2, 1), Of(3), 1, 1},
		{"a single out of the only pair", "topo-matrix-a100x8-pairs", Of(1, 3, 4, 5, 6, 7), Of(0), 1, 0.5},
		{"a quad of MLU580", "mlu580x16", Of(0, 1, 12, 13), Of(2, 3, 14, 15), 1, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := Rate(all[tc.machine])
			got := b.Rating(b.All()&^tc.taken, tc.cards)
			if got.Links != tc.links || got.Whole != tc.whole {
				t.Errorf("%+v, want links %v and whole %v", got, tc.links, tc.whole)
			}
		})
	}
	b := Rate(all["topo-matrix-a100x8-pairs"])
	if slow := b.Rating(b.All(), Of(0, 1)); slow.Links >= 0.5 {
		t.Errorf("two cards without a link between them are worth %v", slow.Links)
	}
}

// What Choose chooses breaks no more than it must among sets with links as fast, and every part stays from 0 to 1.
func TestRating_OfTheChoice(t *testing.T) {
	t.Parallel()
	all := machines(t)
	boxes := map[string]*Box{}
	var names []string
	for name, m := range all {
		if m.Len() <= 8 {
			boxes[name] = Rate(m)
			names = append(names, name)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		b := boxes[rapid.SampledFrom(names).Draw(t, "machine")]
		free := Set(rapid.Uint16().Draw(t, "free")) & b.All()
		a := Ask{Cards: rapid.IntRange(1, 8).Draw(t, "cards"), NIC: rapid.Bool().Draw(t, "nic")}
		c, ok := b.Choose(free, a)
		if !ok {
			return
		}
		r := b.Rating(free, c.Cards)
		for _, v := range []float64{r.Links, r.NIC, r.Whole} {
			if v < 0 || v > 1 {
				t.Fatalf("%+v", r)
			}
		}
		if c.Best && !a.NIC && r.Links != 1 {
			t.Fatalf("the best of the node is rated %v", r.Links)
		}
	})
}
