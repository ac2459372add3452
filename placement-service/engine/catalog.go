package engine

import (
	"cmp"
	"slices"

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
	type key struct {
		vendor accel.Vendor
		model  string
	}
	found := map[key]*CatalogModel{}
	for i := range s.Nodes {
		here := map[key]int{}
		for j := range s.Nodes[i].Pools {
			p := &s.Nodes[i].Pools[j]
			k := key{p.Vendor, p.Model}
			if p.Form == accel.Partition {
				k.model = p.Name
			}
			m := found[k]
			if m == nil {
				m = &CatalogModel{Vendor: k.vendor, Model: k.model}
				found[k] = m
			}
			m.MemoryMiB = max(m.MemoryMiB, p.CardMiB())
			here[k] += p.cardCount()
			m.Cards += p.cardCount()
			m.MostOnOne = max(m.MostOnOne, here[k])
		}
	}
	var c Catalog
	for _, m := range found {
		c.Models = append(c.Models, *m)
	}
	slices.SortFunc(c.Models, func(a, b CatalogModel) int {
		return cmp.Or(cmp.Compare(a.Vendor, b.Vendor), cmp.Compare(a.Model, b.Model))
	})
	return c
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
