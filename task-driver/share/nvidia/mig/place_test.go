package mig

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/task-driver/share"
)

// h100 are the profiles of a recorded H100 NVL.
func h100(t testing.TB) []profile {
	t.Helper()
	list, err := parseProfiles(read(t, "mig-lgip-h100-nvl.txt"))
	if err == nil {
		err = parsePlaces(read(t, "mig-lgipp-h100-nvl.txt"), list)
	}
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestPick(t *testing.T) {
	t.Parallel()
	const slice = 95830 / 8
	for what, c := range map[string]struct {
		memoryMiB  uint64
		pct, units int
		want, err  string
	}{
		"the smallest that holds it":       {memoryMiB: 5000, want: "1g.12gb"},
		"just what a profile holds":        {memoryMiB: 11008, units: 1, want: "1g.12gb"},
		"1 MiB more":                       {memoryMiB: 11009, want: "1g.24gb"},
		"by compute":                       {memoryMiB: 5000, pct: 20, want: "2g.24gb"},
		"compute to the last percent":      {memoryMiB: 1, pct: 43, want: "4g.47gb"},
		"all compute":                      {memoryMiB: 1, pct: 100, want: "7g.94gb"},
		"never with engines of its own":    {memoryMiB: 10000, want: "1g.12gb"},
		"an even part is its slices":       {memoryMiB: slice, units: 1, want: "1g.12gb"},
		"four even parts":                  {memoryMiB: 4 * slice, units: 4, want: "3g.47gb"},
		"four even parts with more of SMs": {memoryMiB: 4 * slice, units: 4, pct: 50, want: "4g.47gb"},
		"all even parts":                   {memoryMiB: 8 * slice, units: 8, want: "7g.94gb"},
		"three even parts":                 {memoryMiB: 3 * slice, units: 3, want: "1g.24gb"},
		"the whole card":                   {want: "7g.94gb"},
		"more slices than were reserved":   {memoryMiB: 30000, units: 3, err: "3g.47gb, which takes 4 of the card's slices, and the task holds 3"},
		"more than the card has":           {memoryMiB: 96000, err: "no MIG profile of this card holds 93.8 GiB: it has 1g.12gb (10.8 GiB)"},
	} {
		a := share.Ask{MemoryMiB: c.memoryMiB, ComputePct: c.pct, Card: grant.Card{MemoryMiB: 95830, Units: c.units}}
		got, err := pick(h100(t), a)
		if got.name != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: got %s, %v", what, got.name, err)
		}
	}
}

func TestPlace_KeepsTheLargestNext(t *testing.T) {
	t.Parallel()
	profiles := h100(t)
	put := func(taken []instance, name string) ([]instance, int) {
		p := profiles[slices.IndexFunc(profiles, func(p profile) bool { return p.name == name })]
		at, ok := place(p, profiles, taken)
		if !ok {
			return taken, -1
		}
		return append(slices.Clone(taken), instance{profile: p.id, name: name, start: at, size: p.size}), at
	}
	for what, c := range map[string]struct {
		names []string
		want  []int
	}{
		"one stands where it harms least":            {[]string{"1g.12gb", "1g.12gb", "1g.12gb", "4g.47gb"}, []int{6, 4, 5, 0}},
		"half a card leaves the larger half":         {[]string{"3g.47gb", "4g.47gb"}, []int{4, 0}},
		"two slices leave the larger half":           {[]string{"2g.24gb", "1g.12gb", "4g.47gb"}, []int{4, 6, 0}},
		"seven of one":                               {slices.Repeat([]string{"1g.12gb"}, 8), []int{6, 4, 5, 0, 1, 2, 3, -1}},
		"four of double memory":                      {slices.Repeat([]string{"1g.24gb"}, 5), []int{6, 4, 0, 2, -1}},
		"a whole card leaves nothing":                {[]string{"7g.94gb", "1g.12gb"}, []int{0, -1}},
		"the published mix, large first":             {[]string{"3g.47gb", "2g.24gb", "1g.12gb", "1g.12gb"}, []int{4, 0, 2, 3}},
		"a piece of the larger half blocks it whole": {[]string{"1g.12gb", "2g.24gb", "2g.24gb", "4g.47gb"}, []int{6, 4, 0, -1}},
	} {
		var taken []instance
		var got []int
		for _, name := range c.names {
			var at int
			taken, at = put(taken, name)
			got = append(got, at)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v at %v, want %v", what, c.names, got, c.want)
		}
	}
}

// TestPlace_Property: a place is one of the profile's, overlaps nothing, is found whenever there is one, and no other place
// would have kept a larger profile possible that this one takes away.
func TestPlace_Property(t *testing.T) {
	t.Parallel()
	profiles := h100(t)
	possible := func(taken []instance) int { // size of the largest that still fits
		largest := 0
		for _, p := range profiles {
			if len(free(p, taken)) > 0 {
				largest = max(largest, p.size)
			}
		}
		return largest
	}
	rapid.Check(t, func(t *rapid.T) {
		var taken []instance
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			if len(taken) > 0 && rapid.Bool().Draw(t, "remove") {
				at := rapid.IntRange(0, len(taken)-1).Draw(t, "which")
				taken = slices.Delete(taken, at, at+1)
				continue
			}
			p := rapid.SampledFrom(profiles).Draw(t, "profile")
			places := free(p, taken)
			start, ok := place(p, profiles, taken)
			if ok != (len(places) > 0) || ok && !slices.Contains(places, start) {
				t.Fatalf("%s on %v: got %d, %t of %v", p.name, taken, start, ok, places)
			}
			if !ok {
				continue
			}
			after := append(slices.Clone(taken), instance{profile: p.id, name: p.name, start: start, size: p.size})
			for _, other := range places {
				instead := append(slices.Clone(taken), instance{start: other, size: p.size})
				if possible(instead) > possible(after) {
					t.Fatalf("%s on %v: at %d leaves size %d, at %d would have left %d", p.name, taken, start, possible(after), other, possible(instead))
				}
			}
			taken = after
		}
	})
}
