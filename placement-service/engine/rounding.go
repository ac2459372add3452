package engine

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// Makers give shares in steps or in templates only. A share is placed with the size that it will have: one of another size
// would be refused when the task starts, since nobody had reserved the rest.

// rounds reports whether a rule changes an amount of memory.
func rounds(r *accel.Rounding) bool { return len(r.Templates) > 0 || r.StepMiB > 1 }

// size is the memory that the driver makes of an ask for mib on a card of the pool, and the mode by which; empty when the
// ask is not rounded. It is 0 when no share is as large, and then largest is the memory of the largest.
func (p *Pool) size(ask *accel.Ask, mib uint64) (size uint64, by accel.Mode, largest uint64) {
	if len(p.Rounding) == 0 || p.Form != accel.Shared && p.Form != accel.MIG {
		return mib, "", 0
	}
	quality := cmp.Or(ask.QoS, tier(p))
	size = mib
	for changed := true; changed; { // by all of them, since the driver takes the first that is in order when the task starts
		changed = false
		for i := range p.Rounding {
			r := &p.Rounding[i]
			if !rounds(r) || !accel.Makes(r.Mode, p.Form, p.Modes, quality) {
				continue
			}
			share, ok := r.Round(size, ask.ComputePct, p.CardMiB())
			if !ok {
				return 0, r.Mode, p.largest(r)
			}
			by = r.Mode
			changed = changed || share.MemoryMiB != size
			size = share.MemoryMiB
		}
	}
	return size, by, 0
}

// largest is the memory of the largest share that a rule makes of the pool's card.
func (p *Pool) largest(r *accel.Rounding) uint64 {
	if len(r.Templates) == 0 {
		return p.CardMiB() / r.StepMiB * r.StepMiB
	}
	return r.Templates[len(r.Templates)-1].MemoryMiB // they are in the order of their memory
}

// units is the number of slices that a share of the pool's card takes; 0 when none as large is made.
func (p *Pool) units(ask *accel.Ask) int {
	size, _, _ := p.size(ask, ask.MemoryMiB)
	rounded := *ask
	rounded.MemoryMiB = size
	return rounded.Units(p.UnitMiB)
}

// gives reports whether a share of this size is made of the pool's card as it is.
func (p *Pool) gives(ask *accel.Ask, mib uint64) bool {
	size, _, _ := p.size(ask, mib)
	return size == mib
}

// GrantMiB is the memory of each card that the task may use; 0 for whole cards. A MIG profile has what its driver gives it,
// which may be less than is published: there the driver rounds what was asked.
func (s TaskShape) GrantMiB() uint64 {
	if s.RoundedBy == "" || s.RoundedBy == accel.ModeMIG {
		return s.Ask.MemoryMiB
	}
	return s.RoundedMiB
}

// rounded says that a share is larger than was asked; empty when it is not.
func (s TaskShape) rounded() string {
	if s.RoundedBy == "" || s.RoundedMiB <= s.Ask.MemoryMiB {
		return ""
	}
	return fmt.Sprintf("task %q asks for %s and gets %s, the next larger size that %s makes",
		s.Task, size(s.Ask.MemoryMiB, s.RoundedMiB), size(s.RoundedMiB, s.Ask.MemoryMiB), s.RoundedBy)
}

// Rounded says which tasks of a decision get more memory than they asked for, and why; empty when none does.
func (d Decision) Rounded() string {
	var out []string
	for _, g := range d.Groups {
		for _, t := range g.Tasks {
			if text := t.rounded(); text != "" {
				out = append(out, text)
			}
		}
	}
	return strings.Join(out, "; ")
}
