package engine

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/placement-service/engine/potential"
)

// Demand is what was asked for so far and what the cluster has for it. Two engines with the same demand score alike.
type Demand struct {
	Observed int     `json:"observed"` // allocations that were asked for
	Asked    []Asked `json:"asked"`    // the most frequent first
	Models   []Model `json:"models"`   // by brand and name; at most maxModels
	Kinds    []Kind  `json:"kinds"`    // of nodes
}

// Asked is what an allocation asks of one node for one task, and how often that is asked.
type Asked struct {
	Cards     int            `json:"cards"`              // 0 for what runs beside those that ask for cards
	CardMiB   uint64         `json:"card_mib,omitempty"` // of each card; 0 for whole cards
	Vendors   []accel.Vendor `json:"vendors,omitempty"`  // sorted; any when empty
	Patterns  []string       `json:"patterns,omitempty"` // of models, sorted; any when empty
	CPUMHz    int            `json:"cpu_mhz"`
	MemoryMiB int            `json:"memory_mib"`
	Weight    float64        `json:"weight"` // in allocations, one of now counting 1
}

// Model is cards that are alike. A partition is a model by its name.
type Model struct {
	Vendor    accel.Vendor `json:"vendor"`
	Name      string       `json:"name"`
	MemoryMiB uint64       `json:"memory_mib"` // of the largest of its cards; 0 when unknown
}

// modelName names a model.
type modelName struct {
	vendor accel.Vendor
	name   string
}

// Kind is nodes that are nearly alike when nothing runs on them.
type Kind struct {
	Nodes     int   `json:"nodes"`
	CPUMHz    int   `json:"cpu_mhz"`    // rounded down to whole GHz
	MemoryMiB int   `json:"memory_mib"` // rounded down to whole GiB
	Cards     []int `json:"cards"`      // by the number of their model
}

const (
	// halfLife is after how many later allocations one counts half.
	halfLife = 20_000
	// maxAsked is how many different asks are remembered; the rarest are forgotten.
	maxAsked = 1024
	// maxModels leaves one number for the models that a demand does not know.
	maxModels = potential.MaxModels - 1
	// learntFrom is how many allocations say more about the demand than nothing does.
	learntFrom = 30
)

// AsksOf is what the allocations of a request ask of nodes. What the tasks of a group need beside their cards is taken
// as divided evenly among those that ask for cards.
func AsksOf(r Request) []Asked {
	var out []Asked
	for i := range r.Groups {
		g := &r.Groups[i]
		tasks := g.asking()
		for _, t := range g.Tasks {
			if t.Ask == nil || g.Count <= 0 {
				continue
			}
			a := Asked{
				Cards: t.Ask.Count, CardMiB: t.Ask.MemoryMiB, Vendors: slices.Clone(t.Ask.Vendors), Patterns: slices.Clone(t.Ask.Models),
				CPUMHz: g.CPUMHz / tasks, MemoryMiB: g.MemoryMiB / tasks, Weight: float64(g.Count),
			}
			slices.Sort(a.Vendors)
			slices.Sort(a.Patterns)
			out = append(out, a)
		}
	}
	return out
}

// asking is how many tasks of the group ask for cards.
func (g *GroupAsk) asking() int {
	n := 0
	for i := range g.Tasks {
		if g.Tasks[i].Ask != nil {
			n++
		}
	}
	return n
}

// Add is the demand after more was asked for.
func (d Demand) Add(more []Asked) Demand {
	came := 0.0
	for i := range more {
		came += more[i].Weight
	}
	keep := math.Exp2(-came / halfLife)
	all := make([]Asked, 0, len(d.Asked)+len(more))
	for _, a := range d.Asked {
		a.Weight *= keep
		all = append(all, a)
	}
	all = append(all, more...)
	slices.SortStableFunc(all, compareAsked)
	merged := all[:0]
	for _, a := range all {
		if n := len(merged); n > 0 && compareAsked(merged[n-1], a) == 0 {
			merged[n-1].Weight += a.Weight
		} else {
			merged = append(merged, a)
		}
	}
	slices.SortStableFunc(merged, func(a, b Asked) int { return cmp.Compare(b.Weight, a.Weight) })
	d.Asked = merged[:min(len(merged), maxAsked)]
	d.Observed += int(came)
	return d
}

// compareAsked orders asks by what they ask for.
func compareAsked(a, b Asked) int {
	return cmp.Or(
		cmp.Compare(a.Cards, b.Cards), cmp.Compare(a.CardMiB, b.CardMiB), cmp.Compare(a.CPUMHz, b.CPUMHz), cmp.Compare(a.MemoryMiB, b.MemoryMiB),
		slices.Compare(a.Vendors, b.Vendors), slices.Compare(a.Patterns, b.Patterns),
	)
}

// On is the demand with the cluster that is to serve it. What is free there does not matter.
func (d Demand) On(s Snapshot) Demand {
	d.Models, d.Kinds = modelsOf(s), nil
	numbers := numbered(d.Models)
	at := map[string]int{}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		kind := Kind{Nodes: 1, CPUMHz: n.CPUMHz / 1000 * 1000, MemoryMiB: n.MemoryMiB / 1024 * 1024, Cards: make([]int, len(d.Models))}
		cards := 0
		for j := range n.Pools {
			if number, known := numbers[n.Pools[j].modelName()]; known {
				kind.Cards[number] += n.Pools[j].cardCount()
				cards++
			}
		}
		if cards == 0 {
			continue
		}
		key := fmt.Sprint(kind)
		if where, known := at[key]; known {
			d.Kinds[where].Nodes++
			continue
		}
		at[key] = len(d.Kinds)
		d.Kinds = append(d.Kinds, kind)
	}
	slices.SortFunc(d.Kinds, func(a, b Kind) int {
		return cmp.Or(cmp.Compare(b.Nodes, a.Nodes), cmp.Compare(a.CPUMHz, b.CPUMHz), cmp.Compare(a.MemoryMiB, b.MemoryMiB), slices.Compare(a.Cards, b.Cards))
	})
	return d
}

// modelsOf lists the models of a cluster, those with most cards when they are too many.
func modelsOf(s Snapshot) []Model {
	type count struct {
		Model
		cards int
	}
	counts := map[modelName]*count{}
	for i := range s.Nodes {
		for j := range s.Nodes[i].Pools {
			p := &s.Nodes[i].Pools[j]
			name := p.modelName()
			c := counts[name]
			if c == nil {
				c = &count{Model: Model{Vendor: name.vendor, Name: name.name}}
				counts[name] = c
			}
			c.cards += p.cardCount()
			c.MemoryMiB = max(c.MemoryMiB, p.CardMiB())
		}
	}
	all := make([]count, 0, len(counts))
	for _, c := range counts {
		all = append(all, *c)
	}
	byName := func(a, b count) int { return cmp.Or(cmp.Compare(a.Vendor, b.Vendor), cmp.Compare(a.Name, b.Name)) }
	slices.SortFunc(all, func(a, b count) int { return cmp.Or(cmp.Compare(b.cards, a.cards), byName(a, b)) })
	all = all[:min(len(all), maxModels)]
	slices.SortFunc(all, byName)
	models := make([]Model, len(all))
	for i := range all {
		models[i] = all[i].Model
	}
	return models
}

// modelName is the model of the pool's cards.
func (p *Pool) modelName() modelName {
	if p.Form == accel.Partition {
		return modelName{p.Vendor, p.Name}
	}
	return modelName{p.Vendor, p.Model}
}

func numbered(models []Model) map[modelName]int {
	out := make(map[modelName]int, len(models))
	for i, m := range models {
		out[modelName{m.Vendor, m.Name}] = i
	}
	return out
}

// Check says what is wrong with a demand that was written by somebody else.
func (d *Demand) Check() error {
	if d.Observed < 0 || len(d.Models) > maxModels || len(d.Asked) > maxAsked {
		return fmt.Errorf("a demand of %d allocations, %d models and %d asks: not from 0, at most %d and %d", d.Observed, len(d.Models), len(d.Asked), maxModels, maxAsked)
	}
	for _, a := range d.Asked {
		if !(a.Weight > 0 && a.Weight < 1e12) || a.CPUMHz < 0 || a.CPUMHz > math.MaxInt32 || a.MemoryMiB < 0 || a.MemoryMiB > math.MaxInt32 || a.CardMiB > math.MaxInt32 {
			return fmt.Errorf("%+v is not what an allocation can ask for", a)
		}
	}
	for _, k := range d.Kinds {
		if k.Nodes < 0 || k.Nodes > math.MaxInt32 || k.CPUMHz > math.MaxInt32 || k.MemoryMiB > math.MaxInt32 || len(k.Cards) > len(d.Models) {
			return fmt.Errorf("%+v is no kind of node", k)
		}
	}
	return nil
}

// accepts are the models that would do by name and by size, as bits by their number; 0 when any would. ok is false when
// none would.
func (a *Asked) accepts(models []Model) (set uint64, ok bool) {
	ask := accel.Ask{Vendors: a.Vendors, Models: a.Patterns}
	all := true
	for i, m := range models {
		if ask.Accepts(m.Vendor, m.Name) && (m.MemoryMiB == 0 || m.MemoryMiB >= a.CardMiB) {
			set |= 1 << i
		} else {
			all = false
		}
	}
	if all {
		return 0, true
	}
	return set, set != 0
}

// shares is the demand as cards of one size see it, whose memory is cardMiB: a share is its part of such a card, and
// what is larger than the card is not asked of it.
func (d *Demand) shares(cardMiB uint64) []potential.Share {
	var out []potential.Share
	for i := range d.Asked {
		a := &d.Asked[i]
		milli := uint64(potential.Whole)
		switch {
		case a.Cards == 0:
			milli = 0
		case a.CardMiB > 0 && cardMiB > 0:
			milli = max(1, (a.CardMiB*potential.Whole+cardMiB-1)/cardMiB)
		}
		set, ok := a.accepts(d.Models)
		if !ok || milli > potential.Whole || a.Cards < 0 || a.Cards > potential.MaxCards {
			continue
		}
		out = append(out, potential.Share{
			Shape: potential.Shape{
				CPU: int32(a.CPUMHz), Memory: int32(a.MemoryMiB), Cards: int16(a.Cards), Milli: int16(milli), Models: set,
			},
			Weight: a.Weight,
		})
	}
	return out
}

// supply is the nodes as the scorer sees them when nothing runs on them.
func (d *Demand) supply() []potential.Supply {
	var out []potential.Supply
	for _, k := range d.Kinds {
		var cards []potential.Card
		for number, n := range k.Cards {
			for range min(n, potential.MaxCards) {
				cards = append(cards, potential.MakeCard(number, potential.Whole))
			}
		}
		out = append(out, potential.Supply{State: potential.MakeState(k.CPUMHz, k.MemoryMiB, cards), Nodes: k.Nodes})
	}
	return out
}
