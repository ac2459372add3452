package sim

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// source is what every fact of a simulated card is said to come from.
const source = "sim"

// cards invents the cards of a file. The error joins everything that is wrong with it.
func (f file) cards() ([]accel.Card, error) {
	var cards []accel.Card
	var problems []error
	index, ordinal := map[accel.Vendor]int{}, map[string]int{}
	for n, b := range f.Cards {
		vendor, memory, count, err := b.check()
		if err != nil {
			problems = append(problems, fmt.Errorf("card block %d: %w", n+1, err))
			continue
		}
		for range count {
			key := string(vendor) + "/" + b.Model
			c := accel.Card{
				Vendor: vendor, Model: accel.ModelName(vendor, b.Model), RawName: b.Model, UUID: f.uuid(vendor, b.Model, ordinal[key]),
				Index: index[vendor], PCIAddress: address(vendor, index[vendor]), NUMANode: b.NUMANode, MemoryMiB: memory,
				DriverVersion: b.Driver, Modes: slices.Sorted(slices.Values(b.Modes)), Form: accel.Whole,
				Health: accel.Health{OK: true}, Sources: map[string]string{accel.AttrUUID: source, accel.AttrModel: source},
			}
			for _, mode := range c.Modes {
				c.Sources[accel.SourceOfMode(mode)] = source
			}
			if c.DriverVersion == "" {
				c.DriverVersion = "sim-1.0"
			}
			cards = append(cards, c)
			index[vendor]++
			ordinal[key]++
		}
	}
	if len(f.Cards) == 0 {
		problems = append(problems, errors.New(`it has no card block: write for example card "nvidia" { model = "A100-SXM4-80GB" memory = "80GiB" }`))
	}
	return cards, errors.Join(problems...)
}

func (b cardBlock) check() (vendor accel.Vendor, memory *uint64, count int, err error) {
	if vendor, err = accel.ParseVendor(b.Vendor); err != nil {
		return "", nil, 0, err
	}
	if strings.TrimSpace(b.Model) == "" {
		return "", nil, 0, errors.New(`model is empty: write a name such as "A100-SXM4-80GB"`)
	}
	if b.Memory != "" {
		mib, err := accel.ParseMemoryMiB(b.Memory)
		if err != nil {
			return "", nil, 0, err
		}
		memory = &mib
	}
	count = 1
	if b.Count != nil {
		count = *b.Count
	}
	if count < 0 || count > 1024 {
		return "", nil, 0, fmt.Errorf("count %d is outside 0–1024", count)
	}
	return vendor, memory, count, nil
}

// uuid is the same for the same seed, node, brand, model and place among the cards of that model.
func (f file) uuid(v accel.Vendor, model string, n int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d/%s/%s/%s", f.Seed, f.Node, v, model))
	return fmt.Sprintf(accel.SimulatedPrefix+"%s-%s-%d", strings.ToUpper(string(v)), hex.EncodeToString(sum[:4]), n)
}

// address gives every card a place of its own: a PCI domain for each brand, a bus for each card.
func address(v accel.Vendor, n int) string {
	return fmt.Sprintf("%04x:%02x:%02x.0", 0x5100+slices.Index(accel.Vendors(), v), n/32, n%32)
}
