package engine

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// Catalog is what a cluster has, used or not and ready or not: what an ask can be checked against before it
// waits for something that does not exist.
type Catalog struct {
	Models []CatalogModel `json:"models"` // by brand and model
}

// CatalogModel is one model of card.
type CatalogModel struct {
	Vendor    accel.Vendor `json:"vendor"`
	Model     string       `json:"model"`
	MemoryMiB uint64       `json:"memory_mib"` // of the largest card of the model; 0 when unknown
	Cards     int          `json:"cards"`
	MostOnOne int          `json:"most_on_one"` // cards on the node that has the most
}

// CatalogOf lists the models of a snapshot. Partitions count as models of their own.
func CatalogOf(s Snapshot) Catalog {
	var c Catalog
	var here []int // cards on the node, by model
	for i := range s.Nodes {
		here = resize(here, len(c.Models))
		for j := range s.Nodes[i].Pools {
			p := &s.Nodes[i].Pools[j]
			at := c.find(p)
			if at == len(here) {
				here = append(here, 0)
			}
			m := &c.Models[at]
			m.MemoryMiB = max(m.MemoryMiB, p.CardMiB())
			n := p.cardCount()
			here[at] += n
			m.Cards += n
			m.MostOnOne = max(m.MostOnOne, here[at])
		}
	}
	slices.SortFunc(c.Models, func(a, b CatalogModel) int {
		return cmp.Or(cmp.Compare(a.Vendor, b.Vendor), cmp.Compare(a.Model, b.Model))
	})
	return c
}

// find is the place of the pool's model in the list, which it joins when it is new. Models are few.
func (c *Catalog) find(p *Pool) int {
	model := p.Model
	if p.Form == accel.Partition {
		model = p.Name
	}
	for i := range c.Models {
		if c.Models[i].Model == model && c.Models[i].Vendor == p.Vendor {
			return i
		}
	}
	c.Models = append(c.Models, CatalogModel{Vendor: p.Vendor, Model: model})
	return len(c.Models) - 1
}

// cardCount is the number of cards behind the pool, healthy or not.
func (p *Pool) cardCount() int {
	switch {
	case len(p.Cards) > 0:
		return len(p.Cards)
	case p.Form == accel.Whole || p.Form == accel.Partition:
		return p.Total
	}
	return 1
}

// Impossible is the reason why an ask fits on no card of the cluster, even an empty one; nil when it may fit, and when
// the cluster has no cards yet. Field says which part of the ask is at fault: memory, count, model or vendor.
func (c Catalog) Impossible(a accel.Ask) *Never {
	if len(c.Models) == 0 {
		return nil
	}
	var accepted []CatalogModel
	brand := false
	for _, m := range c.Models {
		brand = brand || a.AcceptsVendor(m.Vendor)
		if a.Accepts(m.Vendor, m.Model) {
			accepted = append(accepted, m)
		}
	}
	switch {
	case !brand:
		return &Never{CodeBrand, "vendor", fmt.Sprintf("the cluster has no card of %s: it has %s", list(a.Vendors), c.brands())}
	case len(accepted) == 0:
		return &Never{CodeModel, "model", fmt.Sprintf("no card of the cluster is of model %s: write one of %s", list(a.Models), c.names(a))}
	}
	largest := slices.MaxFunc(accepted, func(x, y CatalogModel) int { return cmp.Compare(x.MemoryMiB, y.MemoryMiB) })
	if a.MemoryMiB > largest.MemoryMiB && !slices.ContainsFunc(accepted, func(m CatalogModel) bool { return m.MemoryMiB == 0 }) {
		return &Never{CodeMemory, "memory", fmt.Sprintf("needs %s on one card, but the largest card is %s with %s: write at most %s",
			size(a.MemoryMiB, largest.MemoryMiB), largest.Model, size(largest.MemoryMiB, a.MemoryMiB), exact(largest.MemoryMiB))}
	}
	most := 0
	for _, m := range accepted {
		most = max(most, m.MostOnOne)
	}
	if a.Count > most {
		return &Never{CodeCount, "count", fmt.Sprintf("needs %d cards of one model on one node, but no node has more than %d: write at most %d, and more allocations of the group",
			a.Count, most, most)}
	}
	return nil
}

// Never is a reason that no waiting cures.
type Never struct {
	Code     Code
	Field    string // of the accelerator block
	Sentence string
}

func (c Catalog) brands() string {
	var out []accel.Vendor
	for _, m := range c.Models {
		out = append(out, m.Vendor)
	}
	return list(slices.Compact(out))
}

// names lists the models of the accepted brands.
func (c Catalog) names(a accel.Ask) string {
	var out []string
	for _, m := range c.Models {
		if a.AcceptsVendor(m.Vendor) && !slices.Contains(out, m.Model) {
			out = append(out, m.Model)
		}
	}
	const most = 12
	if len(out) > most {
		return strings.Join(out[:most], ", ") + ", …"
	}
	return strings.Join(out, ", ")
}
