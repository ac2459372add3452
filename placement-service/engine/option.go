package engine

import (
	"cmp"
	"slices"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// option is one way to serve a task's ask: the shape of its device blocks. All allocations of a group share one
// specification, so that each has the same option.
type option struct {
	blocks  int        // device blocks, each on a pool of its own
	units   int        // instances of each block
	named   bool       // the blocks name their pools, so that every allocation uses the same ones
	form    accel.Form // of the pools
	unitMiB uint64     // of the pools; 0 where it does not matter
	total   int        // instances of the pools; 0 where it does not matter: a whole card out of its slices
	keep    []Block    // of the running plan; the other fields but units and blocks do not matter then
	waste   uint64     // MiB that each block takes beyond the ask
	ask     *accel.Ask // of a share
	mib     uint64     // of a share: memory of each block, the same on every pool, since a task has one grant
}

// accepts reports whether the pool can serve a block, apart from what is free.
func (o *option) accepts(block int, p *Pool) bool {
	if o.keep != nil {
		return o.keep[block].names(p)
	}
	return p.Form == o.form && (o.unitMiB == 0 || p.UnitMiB == o.unitMiB) && (o.total == 0 || p.Total == o.total && wholeCard(p)) &&
		(o.mib == 0 || p.gives(o.ask, o.mib))
}

// sameModel reports whether one task can take cards of both pools: a task works on cards of one model.
func sameModel(a, b *Pool) bool { return a.Vendor == b.Vendor && a.Model == b.Model }

func compareModels(a, b *Pool) int {
	return cmp.Or(cmp.Compare(a.Vendor, b.Vendor), cmp.Compare(a.Model, b.Model))
}

// options lists the ways to serve a task on the pools that come into question, best first.
func (w *work) options(task int) []option {
	var out []option
	ask := w.tasks[task].Ask
	for _, n := range w.open {
		for p := w.first[n]; p < w.first[n+1]; p++ {
			if w.why[task][p] != "" {
				continue
			}
			o := optionOn(ask, w.pool(n, p))
			if o.units > 0 && !known(out, &o) {
				out = append(out, o)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b option) int { return compareWays(&a, &b) })
	return out
}

// compareWays orders ways to serve an ask, the best first.
func compareWays(a, b *option) int {
	return cmp.Or(
		cmp.Compare(preference(a.form), preference(b.form)), cmp.Compare(a.waste, b.waste),
		cmp.Compare(a.units, b.units), cmp.Compare(a.unitMiB, b.unitMiB), cmp.Compare(a.mib, b.mib), cmp.Compare(a.total, b.total),
	)
}

// known reports whether one of the options is this way.
func known(options []option, o *option) bool {
	for i := range options {
		x := &options[i]
		if x.form == o.form && x.units == o.units && x.unitMiB == o.unitMiB && x.total == o.total && x.mib == o.mib {
			return true
		}
	}
	return false
}

// optionOn is the way to serve an ask on pools like this one. Its units are 0 when there is none.
func optionOn(ask *accel.Ask, p *Pool) option {
	switch {
	case ask.Whole() && (p.Form == accel.Whole || p.Form == accel.Partition):
		return option{blocks: 1, units: ask.Count, form: p.Form}
	case ask.Whole() && wholeCard(p):
		return option{blocks: ask.Count, units: p.Total, named: ask.Count > 1, form: p.Form, total: p.Total, unitMiB: p.UnitMiB}
	case ask.Whole() || p.UnitMiB == 0:
		return option{}
	case p.Form == accel.Partition: // one existing partition is a share with hardware isolation
		if p.UnitMiB < ask.MemoryMiB || ask.Count > 1 {
			return option{}
		}
		return option{blocks: 1, units: 1, form: p.Form, unitMiB: p.UnitMiB, waste: p.UnitMiB - ask.MemoryMiB}
	case p.Form == accel.Whole:
		return option{}
	}
	units := p.units(ask)
	if units == 0 {
		return option{}
	}
	mib, _, _ := p.size(ask, ask.MemoryMiB)
	return option{
		ask: ask, mib: mib, blocks: ask.Count, units: units, named: ask.Count > 1, form: p.Form, unitMiB: p.UnitMiB,
		waste: uint64(units)*p.UnitMiB - ask.MemoryMiB,
	}
}

// preference orders forms: what is made for the ask before what is scarcer.
func preference(f accel.Form) int {
	return slices.Index([]accel.Form{accel.Whole, accel.Shared, accel.MIG, accel.Partition}, f)
}

// kept is the option that repeats the running shape of a task; nil when the plan has none that still serves it.
func kept(shape *TaskShape) *option {
	if shape == nil || len(shape.Blocks) == 0 {
		return nil
	}
	o := &option{blocks: len(shape.Blocks), units: shape.Blocks[0].Count, named: len(shape.Blocks) > 1, keep: shape.Blocks}
	for _, b := range shape.Blocks {
		if b.Count != o.units {
			return nil
		}
	}
	return o
}

// names reports whether a device group of this id and these attributes may serve the block, as Nomad decides it.
func (b Block) names(p *Pool) bool {
	if b.Device != p.Type && b.Device != string(p.Vendor)+"/"+p.Type && b.Device != p.Group {
		return false
	}
	for _, allow := range b.Allow {
		if allow.Attribute == attrIDs {
			if p.among(allow.Values).Len() < b.Count {
				return false
			}
			continue
		}
		value, known := p.attribute(allow.Attribute)
		if !known || !slices.Contains(allow.Values, value) {
			return false
		}
	}
	return true
}

// attribute is the value of a target that plans use.
func (p *Pool) attribute(target string) (string, bool) {
	switch target {
	case attrUUID:
		if len(p.Cards) == 1 && (p.Form == accel.Shared || p.Form == accel.MIG) {
			return p.Cards[0].UUID, true
		}
	case attrGroupName:
		return p.Name, true
	case attrType:
		return p.Type, true
	case attrVendor:
		return string(p.Vendor), true
	case attrModel:
		return p.Model, true
	}
	return "", false
}

// Targets of the allow-lists of a plan.
const (
	attrUUID      = "${device.attr." + accel.AttrUUID + "}"
	attrModel     = "${device.attr." + accel.AttrModel + "}"
	attrUnit      = "${device.attr." + accel.AttrUnitMemory + "}"
	attrGroupName = "${device.model}"
	attrType      = "${device.type}"
	attrVendor    = "${device.vendor}"
	attrIDs       = "${device.ids}"
)
