package brand

import (
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/device-plugins/catalogue"
	"github.com/heteroflow/heteroflow/device-plugins/hostfs"
)

// bus is what the PCI bus says about a brand.
type bus struct {
	cards        []hostfs.PCIDevice // cards of the brand, also those given away to virtual machines
	listed       bool               // the machine shows a bus with devices on it
	rival        bool               // the bus has cards of the brand's rival
	signs        bool               // a device node or module of the brand is there
	mayHaveCards bool
}

// givenAway are kernel drivers that hold a card for somebody else, such as a virtual machine.
var givenAway = []string{"vfio-pci", "pci-stub", "pciback"}

func (d *Detector) bus() bus {
	var b bus
	all, err := d.files.Names("sys/bus/pci/devices")
	b.listed = err == nil && len(all) > 0
	found, err := d.files.Accelerators(d.spec.PCI)
	if err != nil {
		d.log.Debug("some pci devices cannot be read", "error", err)
	}
	for _, device := range found {
		if !slices.Contains(d.spec.NotPCI, device.Device) && !d.spec.inProcessor(device.Address) {
			b.cards = append(b.cards, device)
		}
	}
	if d.spec.Rival != "" {
		rivals, err := d.files.Accelerators(d.spec.Rival)
		b.rival = err != nil || len(rivals) > 0
	}
	b.mayHaveCards = !b.listed || len(b.cards) > 0
	for _, sign := range d.spec.Signs {
		if len(d.files.Glob(sign)) > 0 {
			b.signs, b.mayHaveCards = true, true
		}
	}
	return b
}

func (s Spec) inProcessor(address string) bool {
	return s.NotAt != "" && strings.HasPrefix(address, s.NotAt)
}

// ours tells whether a reading is of this brand's cards. The bus decides: the same text may be printed for two makers.
func (d *Detector) ours(r Reading, b bus) bool {
	if r.Foreign {
		return false
	}
	return !r.Doubtful || len(b.cards) > 0 && !b.rival
}

// otherMaker tells whether the bus has another maker's device at this address.
func (d *Detector) otherMaker(address string) bool {
	vendor, err := d.files.Text("sys/bus/pci/devices", address, "vendor")
	return err == nil && vendor != "" && !strings.EqualFold(strings.TrimPrefix(vendor, "0x"), d.spec.PCI)
}

// complete adds to a reading what the kernel knows: device nodes, memory, drivers, and cards that the tool left out.
func (d *Detector) complete(r Reading, b bus) Reading {
	r.Cards = slices.DeleteFunc(r.Cards, func(c Card) bool {
		return c.PCI != "" && (d.otherMaker(c.PCI) || d.spec.inProcessor(c.PCI))
	})
	byTool := len(r.Cards)
	placed := !slices.ContainsFunc(r.Cards, func(c Card) bool { return c.PCI == "" })
	if d.spec.Kernel != nil {
		r.mergeKernel(d.spec.Kernel(d.files).FromKernel())
	}
	for i := range r.Cards {
		if c := &r.Cards[i]; d.spec.Parts != nil && len(c.Parts) == 0 {
			for _, p := range d.spec.Parts(d.files, *c) {
				c.Split(p)
			}
		}
	}
	var left []Card
	for _, device := range b.cards {
		c := Card{PCI: device.Address, from: source{pci: true}}
		switch {
		case slices.Contains(givenAway, device.Driver):
			continue
		case !device.Answers:
			c.Dead = ReasonNoAnswer
		case device.Driver == "":
			c.Dead = ReasonNoDriver
		case byTool > 0 || r.NoCards:
			c.Dead = ReasonUnreported
		}
		if p, ok := catalogue.ByPCI(d.spec.PCI, device.Device); ok {
			c.Name, c.from.name = p.Model, true
		}
		if !r.place(c) {
			left = append(left, c)
		}
	}
	// Where the tool does not say which card is where, nothing tells which one it left out, unless it is just one of one.
	if nameless := slices.IndexFunc(r.Cards, func(c Card) bool { return c.PCI == "" }); len(b.cards) == 1 && byTool == 1 && nameless == 0 && len(left) == 1 {
		r.Cards[0].PCI, r.Cards[0].from.pci = left[0].PCI, true
		if r.Cards[0].Name == "" {
			r.Cards[0].Name, r.Cards[0].from.name = left[0].Name, true
		}
		return r
	}
	if placed {
		r.Cards = append(r.Cards, left...)
	}
	return r
}

// place adds what the bus says of a board to the cards that are there, and tells whether there are some. Parts of a board are
// at its place too.
func (r *Reading) place(board Card) bool {
	found := false
	for i := range r.Cards {
		c := &r.Cards[i]
		if !samePlace(c.PCI, board.PCI) {
			continue
		}
		if board.Dead == ReasonNoAnswer { // whatever its tool still says
			c.Dead = board.Dead
		}
		if c.Name == "" && board.Name != "" {
			c.Name, c.from.name = board.Name, true
		}
		found = true
	}
	return found
}

// samePlace tells whether an address is of a board. Partitions are functions of the board's address.
func samePlace(card, board string) bool {
	if card == "" {
		return false
	}
	a, _, _ := strings.Cut(card, ".")
	b, _, _ := strings.Cut(board, ".")
	return a == b
}

// mergeKernel adds the kernel's reading. It makes cards only where the tool has none; they are counted in the order in
// which the kernel lists them, as the makers' runtimes do.
func (r *Reading) mergeKernel(k Reading) {
	if len(r.Cards) == 0 && !r.NoCards {
		r.Cards = k.Cards
		for i := range r.Cards {
			r.Cards[i].Index = &i
		}
		k.Cards = nil
	}
	for _, theirs := range k.Cards {
		for i := range r.Cards {
			if r.Cards[i].same(theirs) {
				r.Cards[i].merge(theirs)
			}
		}
	}
	switch {
	case r.Driver == "":
		r.Driver, r.driverByKernel = k.Driver, true
	case k.Driver != "" && k.Driver != r.Driver:
		r.driverConflict = conflict("driver_version", r.Driver, k.Driver)
	}
}
