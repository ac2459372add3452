package mig

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/task-driver/share"
)

// pick finds the profile of an ask: the smallest that holds the memory and the part of compute, and takes no more of the card's
// slices than were reserved. An ask for just what its slices hold in the card's even division gets the largest profile
// that takes so many slices, since no profile holds as much as an even part. An ask without memory is for the whole card.
func pick(profiles []profile, a share.Ask) (profile, error) {
	plain := slices.DeleteFunc(slices.Clone(profiles), func(p profile) bool { return !p.plain || p.size == 0 })
	slices.SortFunc(plain, func(x, y profile) int {
		return cmp.Or(cmp.Compare(x.memoryMiB, y.memoryMiB), cmp.Compare(x.parts, y.parts), cmp.Compare(x.name, y.name))
	})
	most, all := 0, 0
	for _, p := range plain {
		most, all = max(most, p.parts), max(all, end(p))
	}
	parts := (a.ComputePct*most + 99) / 100
	bySlices := a.MemoryMiB == 0 || all > 0 && a.Card.Units > 0 && a.Card.MemoryMiB > 0 && a.MemoryMiB == uint64(a.Card.Units)*(a.Card.MemoryMiB/uint64(all))
	var tooWide *profile
	var widest profile
	for _, p := range plain {
		fits := a.Card.Units == 0 || p.size <= a.Card.Units
		switch {
		case p.parts < parts:
		case bySlices && fits && p.size > widest.size:
			widest = p
		case bySlices || p.memoryMiB < a.MemoryMiB:
		case fits:
			return p, nil
		case tooWide == nil:
			tooWide = &p
		}
	}
	if widest.size > 0 {
		return widest, nil
	}
	what := ask(a)
	if tooWide != nil {
		return profile{}, fmt.Errorf("the smallest MIG profile for %s is %s, which takes %d of the card's slices, and the task holds %d: ask for %s, or through the placement service, which rounds by profiles",
			what, tooWide.name, tooWide.size, a.Card.Units, accel.FormatMiB(tooWide.memoryMiB))
	}
	return profile{}, fmt.Errorf("no MIG profile of this card holds %s: it has %s", what, sizes(plain))
}

// ask is what is asked for, for a sentence.
func ask(a share.Ask) string {
	text := accel.FormatMiB(a.MemoryMiB)
	if a.ComputePct > 0 {
		text += fmt.Sprintf(" and %d %% of the compute", a.ComputePct)
	}
	return text
}

func sizes(profiles []profile) string {
	var out []string
	for _, p := range profiles {
		out = append(out, p.String())
	}
	return strings.Join(out, ", ")
}

// String is the profile for a sentence.
func (p profile) String() string { return fmt.Sprintf("%s (%s)", p.name, accel.FormatMiB(p.memoryMiB)) }

// end is the number of slices that the profile's places reach over.
func end(p profile) int {
	if len(p.starts) == 0 {
		return 0
	}
	return slices.Max(p.starts) + p.size
}

// free are the places where a profile may stand now.
func free(p profile, taken []instance) []int {
	var out []int
	for _, start := range p.starts {
		if !slices.ContainsFunc(taken, func(i instance) bool { return i.covers(start, p.size) }) {
			out = append(out, start)
		}
	}
	return out
}

// place finds where a profile is best put: where the largest profiles keep the most places, and of equal ones the first. ok is
// false when there is no place.
func place(p profile, profiles []profile, taken []instance) (start int, ok bool) {
	large := slices.DeleteFunc(slices.Clone(profiles), func(o profile) bool { return !o.plain || o.size == 0 })
	slices.SortFunc(large, func(x, y profile) int {
		return cmp.Or(cmp.Compare(y.size, x.size), cmp.Compare(y.parts, x.parts), cmp.Compare(x.id, y.id))
	})
	var best []int
	for _, at := range free(p, taken) {
		after := append(slices.Clone(taken), instance{start: at, size: p.size})
		var kept []int
		for _, l := range large {
			kept = append(kept, len(free(l, after)))
		}
		if !ok || slices.Compare(kept, best) > 0 {
			start, best, ok = at, kept, true
		}
	}
	return start, ok
}
