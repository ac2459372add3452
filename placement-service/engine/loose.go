package engine

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// decideLoose plans for a job whose allocations appear without passing here again: the blocks say what a card must
// be like and stay true while the cluster changes; Nomad counts the instances.
func (e *Engine) decideLoose(s Snapshot, r Request) Decision {
	d := Decision{Placed: true}
	catalog := CatalogOf(s)
	for i := range r.Groups {
		g := &r.Groups[i]
		plan := GroupPlan{Name: g.Name, Tasks: []TaskShape{}}
		for _, t := range g.Tasks {
			if t.Ask == nil {
				continue
			}
			if never := catalog.Impossible(*t.Ask); never != nil {
				return refuseLoose(g, t.Name, never.Code, never.Sentence, true)
			}
			block, code, sentence := looseBlock(s, r, *t.Ask)
			if code != "" {
				return refuseLoose(g, t.Name, code, sentence, code == CodeOneSpec)
			}
			shape := TaskShape{Task: t.Name, Ask: *t.Ask, QoS: looseQuality(*t.Ask), Blocks: []Block{block}}
			if !t.Ask.Whole() {
				if mib, by := looseSize(s, t.Ask, commonUnit(s, *t.Ask)); by != "" {
					shape.RoundedMiB, shape.RoundedBy = mib, by
				}
			}
			plan.Tasks = append(plan.Tasks, shape)
		}
		d.Groups = append(d.Groups, plan)
	}
	return d
}

func refuseLoose(g *GroupAsk, task string, code Code, sentence string, never bool) Decision {
	return Decision{Refusal: &Refusal{Code: code, Sentence: sentence, Group: g.Name, Task: task, Never: never}}
}

// looseQuality promises no isolation that was not asked for, since the card is not known.
func looseQuality(a accel.Ask) accel.QoS {
	switch {
	case a.QoS != "":
		return a.QoS
	case a.Whole():
		return accel.Gold
	}
	return accel.Bronze
}

// looseBlock describes the cards of an ask.
func looseBlock(s Snapshot, r Request, a accel.Ask) (Block, Code, string) {
	if !a.Whole() && a.Count > 1 {
		return Block{}, CodeOneSpec, fmt.Sprintf(
			"a %s job cannot take shares of %d cards in one task, since the cards have to be named: ask for one card for each task, or for whole cards",
			r.Loose, a.Count)
	}
	models := acceptedModels(s, a)
	if a.Whole() {
		b := Block{Device: accel.Whole.DeviceType(), Count: a.Count, Allow: []Allow{{Attribute: attrType, Values: []string{accel.Whole.DeviceType()}}}}
		return limit(b, a, models), "", ""
	}
	unit := commonUnit(s, a)
	rounded := a
	rounded.MemoryMiB, _ = looseSize(s, &a, unit)
	units := rounded.Units(unit)
	b := Block{
		Device: accel.Shared.DeviceType(), Count: units,
		Allow: []Allow{
			{Attribute: attrType, Values: []string{accel.Shared.DeviceType()}},
			{Attribute: attrUnit, Values: []string{strconv.FormatUint(unit, 10) + " MiB"}, Measure: true},
		},
	}
	return limit(b, a, models), "", ""
}

// limit adds the brands and models that the ask names.
func limit(b Block, a accel.Ask, models []string) Block {
	if len(a.Vendors) > 0 {
		var names []string
		for _, v := range a.Vendors {
			names = append(names, string(v))
		}
		slices.Sort(names)
		b.Allow = append(b.Allow, Allow{Attribute: attrVendor, Values: slices.Compact(names)})
	}
	if len(a.Models) > 0 && len(models) > 0 {
		b.Allow = append(b.Allow, Allow{Attribute: attrModel, Values: models})
	}
	return b
}

// acceptedModels lists the models of the cluster that the ask accepts, sorted.
func acceptedModels(s Snapshot, a accel.Ask) []string {
	var out []string
	for i := range s.Nodes {
		for j := range s.Nodes[i].Pools {
			if p := &s.Nodes[i].Pools[j]; a.Accepts(p.Vendor, p.Model) && !slices.Contains(out, p.Model) {
				out = append(out, p.Model)
			}
		}
	}
	slices.Sort(out)
	return out
}

// commonUnit is the slice size that most of the accepted shared cards have; of equally many the smaller.
func commonUnit(s Snapshot, a accel.Ask) uint64 {
	cards := map[uint64]int{}
	for i := range s.Nodes {
		for j := range s.Nodes[i].Pools {
			if p := &s.Nodes[i].Pools[j]; p.Form == accel.Shared && p.UnitMiB > 0 && a.Accepts(p.Vendor, p.Model) {
				cards[p.UnitMiB]++
			}
		}
	}
	best := uint64(accel.DefaultSliceMiB)
	most := 0
	for unit, n := range cards {
		if n > most || n == most && unit < best {
			best, most = unit, n
		}
	}
	return best
}

// looseSize is a size that every accepted shared card of this slice size makes of an ask, since nobody knows which it will
// be. Cards that make none as large have no say: Nomad may choose one, and the driver refuses it then.
func looseSize(s Snapshot, a *accel.Ask, unit uint64) (mib uint64, by accel.Mode) {
	ask := *a
	ask.QoS = looseQuality(*a)
	mib = a.MemoryMiB
	for changed := true; changed; {
		changed = false
		for i := range s.Nodes {
			for j := range s.Nodes[i].Pools {
				p := &s.Nodes[i].Pools[j]
				if p.Form != accel.Shared || p.UnitMiB != unit || !a.Accepts(p.Vendor, p.Model) {
					continue
				}
				size, mode, _ := p.size(&ask, mib)
				if size == 0 || mode == "" {
					continue
				}
				changed = changed || size != mib
				mib, by = size, mode
			}
		}
	}
	return mib, by
}
