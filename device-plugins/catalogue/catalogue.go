// Package catalogue is what is published about products: the architecture, memory, links, documented ways of sharing and
// performance of a model, by the name that its maker's tool prints or by its PCI id, each product with its sources. A card
// is never changed by it, and what a card can do is probed: neither belongs here.
package catalogue

import (
	"strings"
	"sync"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// Product is one model. What no source tells is empty or nil.
type Product struct {
	Vendor    accel.Vendor
	Model     string         // as accel.ModelName makes it of the maker's name
	Arch      string         // the maker's word
	MemoryMiB *uint64        // of one card as the tool counts cards; what a card itself reports goes before
	Link      accel.LinkKind // the fabric between cards, a bridge that can be bought included; pcie when the product has none
	LinkGen   int            // of the fabric or of PCIe; 0 when it is not told
	LinkGBps  float64        // of one card over all its links, both directions together; 0 when it is not told
	Names     []string       // as tools print them
	PCI       []string       // vendor:device, 8 hexadecimal digits; one id may be of several products
	Modes     []string       // documented ways of sharing, for people only
	Templates []Template     // sizes in which the maker lets a card be divided
	TFLOPS    Peak           // of one card as the tool counts cards
	Sources   []string       // title and address, or a note; never empty
}

// Peak is the performance that is published, by precision: fp64, fp32, tf32, fp16, bf16, fp8; int8 and int16 in TOPS. It is
// dense: a maker's figure with sparsity is halved. fp64 and fp32 are without matrix units, the others with them where a card
// has any. Where a maker tells two accumulators, fp16, fp8 and int8 are with the faster one and bf16 with FP32.
type Peak map[string]float64

// Template is one size in which a card can be divided.
type Template struct {
	Kind      string // mig, vnpu, svi, vxpu or partition
	Name      string // as the maker's tool takes it
	Max       int    // on one card; 0 when it is not told
	MemoryMiB *uint64
	Cores     int // AI cores; 0 when it is not told
}

// catalogue is the products with the ways to them.
type catalogue struct {
	products []Product
	byName   map[string]int   // key of brand and name
	byPCI    map[string][]int // vendor:device
}

// loaded reads the file once, when something is first looked for. That the file can be read is seen by its test; were it
// not, nothing would be known about any product.
var loaded = sync.OnceValue(func() catalogue {
	products, err := parse(file, sourcesFile)
	if err != nil {
		return catalogue{}
	}
	return index(products)
})

func index(products []Product) catalogue {
	c := catalogue{products: products, byName: map[string]int{}, byPCI: map[string][]int{}}
	for i, p := range products {
		for _, name := range append([]string{p.Model}, p.Names...) {
			c.byName[key(p.Vendor, name)] = i
		}
		for _, id := range p.PCI {
			c.byPCI[id] = append(c.byPCI[id], i)
		}
	}
	return c
}

// key makes spellings of one name equal: with or without the maker's name, blanks, dashes and underscores, in any case.
func key(v accel.Vendor, name string) string {
	return string(v) + "/" + strings.ToLower(strings.ReplaceAll(accel.ModelName(v, name), "_", "-"))
}

// ByName finds the product of the first of the names that is known. A partition, whose name goes on after a blank behind the
// model, is found by its board.
func ByName(v accel.Vendor, names ...string) (Product, bool) {
	c := loaded()
	for _, name := range names {
		if i, ok := c.byName[key(v, name)]; ok {
			return c.products[i], true
		}
		if board, _, more := strings.Cut(name, " "); more {
			if i, ok := c.byName[key(v, board)]; ok {
				return c.products[i], true
			}
		}
	}
	return Product{}, false
}

// ByPCI finds the product of a PCI device. Where the maker tells several products apart by the subsystem only, it finds none:
// a card is better without a name than with another's.
func ByPCI(vendor, device string) (Product, bool) {
	c := loaded()
	found := c.byPCI[strings.ToLower(vendor+":"+device)]
	if len(found) != 1 {
		return Product{}, false
	}
	return c.products[found[0]], true
}
