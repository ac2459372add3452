// Package brand is the detector that brands read by a command line tool have in common: which tool to call when, what
// the kernel adds, who a card is, and how a reading becomes cards, samples and processes. How a brand's tool speaks
// belongs to the package of the brand.
package brand

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/device-plugins/toolout"
	"github.com/heteroflow/heteroflow/internal/accel"
)

// A Reading is what one call of a tool, or the kernel, said. Fields that it did not have are nil or empty: unknown is
// not zero.
type Reading struct {
	Cards  []Card
	Driver string // version of the kernel driver
	// ProcessesKnown is set when the reading lists processes, also when it lists none.
	ProcessesKnown bool
	// Trouble is what the tool says instead of cards, such as that it cannot reach the driver. Empty when it has none.
	Trouble string
	// NoCards is set when the tool says that it works and there is no card.
	NoCards bool
	// Foreign is set when the text is of another maker's tool of the same name.
	Foreign bool
	// Doubtful is set when the text is printed alike for two makers' cards, so that only the bus can tell.
	Doubtful bool
	// Facts is what the tool says of the machine besides, in its own words.
	Facts map[string]string

	driverByKernel bool
	driverConflict string      // what the kernel says instead
	byIndex        map[int]int // index → place in Cards; made by At
	surplus        *Card       // what At gives when there are too many
}

// Card is one card, chip or partition as a reading printed it.
type Card struct {
	Index *int   // the tool's own
	ID    string // UUID or serial number by the maker, empty when the reading has none
	PCI   string // address in the kernel's form
	// Part tells cards apart that share an ID or an address: the chip of a board, the number of a partition. Empty for
	// a card that is alone.
	Part string
	// Partition names the kind of partition that this is, such as CPX; empty for a whole card.
	Partition string
	Name      string
	Minor     *int // number of the device node

	MemoryMiB, MemoryUsedMiB                          *uint64
	UtilizationPct, TemperatureC, PowerW, PowerLimitW *float64
	// More is the numbers that only some tools print. What has a field above is not in it.
	More device.Sample

	Processes []Process
	Modes     []accel.Mode     // probed sharing modes, see Mode
	Rounding  []accel.Rounding // of the modes, as far as the tool tells it
	Parts     []Part           // the parts that an administrator made of it
	Divided   bool             // it is divided, whether or not its parts are known
	Dead      string           // why the card cannot be used, empty when nothing says so
	Skip      bool             // it is no accelerator of its own, such as the graphics of a processor
	// Facts is what the tool says of the card besides, in its own words.
	Facts map[string]string

	from      source
	conflicts []string
}

// Process is one process that uses a card.
type Process struct {
	PID       int
	Name      string
	MemoryMiB *uint64
}

// source remembers which fields the kernel gave; all others are the tool's.
type source struct{ memory, name, pci, id bool }

// Fact notes a value that says something under a name.
func (c *Card) Fact(name, value string) {
	if value = strings.TrimSpace(value); value == "" {
		return
	}
	if c.Facts == nil {
		c.Facts = map[string]string{}
	}
	c.Facts[name] = value
}

// maxCards bounds what a reading takes of a text: no node has so many cards.
const maxCards = 256

// At finds the card with this index, and makes it when there is none. Of an absurd number of cards it gives one that is
// not kept.
func (r *Reading) At(index int) *Card {
	if r.byIndex == nil {
		r.byIndex = map[int]int{}
		for i, c := range r.Cards {
			if c.Index != nil {
				r.byIndex[*c.Index] = i
			}
		}
	}
	if i, ok := r.byIndex[index]; ok {
		return &r.Cards[i]
	}
	if len(r.Cards) >= maxCards {
		if r.surplus == nil {
			r.surplus = &Card{Facts: map[string]string{}}
		}
		clear(r.surplus.Facts)
		*r.surplus = Card{Facts: r.surplus.Facts, Processes: r.surplus.Processes[:0], Parts: r.surplus.Parts[:0], Modes: r.surplus.Modes[:0]}
		return r.surplus
	}
	r.byIndex[index] = len(r.Cards)
	r.Cards = append(r.Cards, Card{Index: &index})
	return &r.Cards[len(r.Cards)-1]
}

// Has tells whether there is a card with this index.
func (r *Reading) Has(index int) bool {
	return slices.ContainsFunc(r.Cards, func(c Card) bool { return c.Index != nil && *c.Index == index })
}

// Add adds a card that may share its index with another.
func (r *Reading) Add(c Card) {
	if len(r.Cards) < maxCards {
		r.Cards, r.byIndex = append(r.Cards, c), nil
	}
}

// List notes the processes that a tool lists below its cards. Memory without a unit has the bare one.
func (r *Reading) List(list []toolout.Process, known bool, bare string) {
	r.ProcessesKnown = r.ProcessesKnown || known
	for _, p := range list {
		c := r.At(p.Index)
		c.Processes = append(c.Processes, Process{PID: p.PID, Name: p.Name, MemoryMiB: toolout.MiB(p.Memory, bare)})
	}
}

// Merge adds what another reading knows more. What is known stays.
func (r *Reading) Merge(o Reading) {
	r.byIndex = nil
	byIndex := map[int]int{}
	for i, c := range r.Cards {
		if c.Index != nil {
			byIndex[*c.Index] = i
		}
	}
	for _, theirs := range o.Cards {
		i, ok := -1, false
		if theirs.Index != nil {
			i, ok = byIndex[*theirs.Index]
		}
		if !ok {
			i = slices.IndexFunc(r.Cards, theirs.same)
		}
		if i >= 0 {
			r.Cards[i].merge(theirs)
		} else {
			r.Add(theirs)
		}
	}
	r.Driver = cmp.Or(r.Driver, o.Driver)
	r.Trouble = cmp.Or(r.Trouble, o.Trouble)
	r.ProcessesKnown = r.ProcessesKnown || o.ProcessesKnown
	r.Foreign, r.Doubtful = r.Foreign || o.Foreign, r.Doubtful || o.Doubtful
	r.NoCards = r.NoCards || o.NoCards
	for k, v := range o.Facts {
		if r.Facts == nil {
			r.Facts = map[string]string{}
		}
		r.Facts[k] = cmp.Or(r.Facts[k], v)
	}
}

// same tells whether two readings without a common index mean one card: by ID, else by address.
func (c Card) same(o Card) bool {
	if c.Index != nil && o.Index != nil {
		return *c.Index == *o.Index
	}
	if c.Part != o.Part {
		return false
	}
	if c.ID != "" && o.ID != "" {
		return c.ID == o.ID
	}
	return c.PCI != "" && c.PCI == o.PCI
}

func (c *Card) merge(o Card) {
	c.dispute(o)
	if c.MemoryMiB == nil && o.MemoryMiB != nil {
		c.from.memory = o.from.memory
	}
	if c.Name == "" && o.Name != "" {
		c.from.name = o.from.name
	}
	if c.PCI == "" && o.PCI != "" {
		c.from.pci = o.from.pci
	}
	if c.ID == "" && o.ID != "" {
		c.from.id = o.from.id
	}
	c.ID, c.PCI, c.Name = cmp.Or(c.ID, o.ID), cmp.Or(c.PCI, o.PCI), cmp.Or(c.Name, o.Name)
	c.Part, c.Partition, c.Dead = cmp.Or(c.Part, o.Part), cmp.Or(c.Partition, o.Partition), cmp.Or(c.Dead, o.Dead)
	c.Index, c.Minor = cmp.Or(c.Index, o.Index), cmp.Or(c.Minor, o.Minor)
	c.MemoryMiB, c.MemoryUsedMiB = cmp.Or(c.MemoryMiB, o.MemoryMiB), cmp.Or(c.MemoryUsedMiB, o.MemoryUsedMiB)
	c.UtilizationPct, c.TemperatureC = cmp.Or(c.UtilizationPct, o.UtilizationPct), cmp.Or(c.TemperatureC, o.TemperatureC)
	c.PowerW, c.PowerLimitW = cmp.Or(c.PowerW, o.PowerW), cmp.Or(c.PowerLimitW, o.PowerLimitW)
	c.More.Fill(o.More)
	c.Skip = c.Skip || o.Skip
	if len(c.Processes) == 0 {
		c.Processes = o.Processes
	}
	for _, mode := range o.Modes {
		c.Mode(mode, o.Facts[accel.SourceOfMode(mode)])
	}
	for _, r := range o.Rounding {
		if !slices.ContainsFunc(c.Rounding, func(have accel.Rounding) bool { return have.Mode == r.Mode }) {
			c.Rounding = append(c.Rounding, r)
		}
	}
	for _, p := range o.Parts {
		c.Split(p)
	}
	c.Divided = c.Divided || o.Divided
	for k, v := range o.Facts {
		if c.Facts[k] == "" {
			c.Fact(k, v)
		}
	}
}

// FromKernel marks everything that the reading knows as the kernel's word.
func (r Reading) FromKernel() Reading {
	for i := range r.Cards {
		r.Cards[i].from = source{memory: true, name: true, pci: true, id: true}
	}
	return r
}

// identities are the stable names of the cards of a reading, in its order: the maker's number; the address; the index
// as the last resort. A number or an address that two cards give is taken only with what tells them apart; of numbers that
// is remembered, see Namesakes.
func (r Reading) identities(prefix string, known *Namesakes) []string {
	places := map[string]int{}
	for _, c := range r.Cards {
		places[c.PCI+"\x00"+c.Part]++
	}
	own := known.Own(r.Cards)
	out := make([]string, len(r.Cards))
	taken := map[string]bool{"": true}
	for i, c := range r.Cards {
		part := ""
		if c.Part != "" {
			part = "-" + c.Part
		}
		switch {
		case own[i]:
			out[i] = prefix + c.ID + part
		case c.PCI != "" && c.Part != "" && places[c.PCI+"\x00"+c.Part] == 1:
			// Not "PCI-": a place that several cards share does not name one of them.
			out[i] = prefix + c.PCI + part
		case c.PCI != "" && places[c.PCI+"\x00"+c.Part] == 1:
			out[i] = "PCI-" + c.PCI
		case c.Index != nil:
			out[i] = "INDEX-" + strconv.Itoa(*c.Index)
		}
		if taken[out[i]] {
			out[i] = "" // the second card with all the same: one of the two lines is not a card
		}
		taken[out[i]] = true
	}
	return out
}

// Offer turns the reading into cards in the words of the product, the n-th of the n-th card read, by what it says alone.
// A card without an identity, and one to be skipped, has an empty UUID.
func (r Reading) Offer(spec Spec) []accel.Card { return r.offer(spec, &Namesakes{}) }

func (r Reading) offer(spec Spec, known *Namesakes) []accel.Card {
	cards := make([]accel.Card, len(r.Cards))
	for i, identity := range r.identities(spec.Prefix, known) {
		if !r.Cards[i].Skip {
			cards[i] = r.card(r.Cards[i], spec, identity)
		}
	}
	return cards
}

func (r Reading) card(c Card, spec Spec, identity string) accel.Card {
	product := c.Name
	if spec.Model != nil {
		product = spec.Model(c.Name)
	}
	out := accel.Card{
		Vendor: spec.Vendor, Model: accel.ModelName(spec.Vendor, product), RawName: c.Name, UUID: identity, Index: -1,
		PCIAddress: c.PCI, MemoryMiB: c.MemoryMiB, DriverVersion: r.Driver, Form: accel.Whole, Modes: slices.Sorted(slices.Values(c.Modes)),
		Health: accel.Health{OK: c.Dead == "", Reason: c.Dead}, Sources: map[string]string{},
	}
	if out.MemoryMiB != nil && *out.MemoryMiB == 0 {
		out.MemoryMiB = nil
	}
	if c.Index != nil {
		out.Index = *c.Index
	}
	if c.Partition != "" {
		out.Form = accel.Partition
		out.Model += " " + c.Partition
		out.RawName += " " + c.Partition
		switch {
		case c.Part != "" && c.ID != "":
			out.Parent = spec.Prefix + c.ID
		case c.Part != "" && c.PCI != "":
			out.Parent = "PCI-" + c.PCI
		}
	}
	out.Conflicts = append(out.Conflicts, c.conflicts...)
	if r.driverConflict != "" {
		out.Conflicts = append(out.Conflicts, r.driverConflict)
	}
	for _, f := range []struct {
		name        string
		has, kernel bool
	}{
		{accel.AttrUUID, c.ID != "", c.from.id},
		{accel.AttrModel, c.Name != "", c.from.name},
		{accel.AttrPCI, c.PCI != "", c.from.pci},
		{accel.AttrMemory, out.MemoryMiB != nil, c.from.memory},
		{accel.AttrDriver, r.Driver != "", r.driverByKernel},
	} {
		if f.has {
			out.Sources[f.name] = "cli"
			if f.kernel {
				out.Sources[f.name] = "sysfs"
			}
		}
	}
	c.capable(&out)
	return out
}
