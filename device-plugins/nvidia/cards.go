package nvidia

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/device-plugins/hostfs"
	"github.com/heteroflow/heteroflow/internal/accel"
)

// probes are what the machine shows besides the cards: mode → where.
type probes map[accel.Mode]string

// identity is the UUID, or for a card whose UUID no reading gave, its place. It starts with a letter, as identities
// must.
func (g gpu) identity() string {
	switch {
	case g.uuid != "":
		return g.uuid
	case g.pci != "":
		return "PCI-" + g.pci
	case g.index != nil:
		return "INDEX-" + strconv.Itoa(*g.index)
	}
	return ""
}

// cards turns a reading into cards, ordered by index. A board with partitions is withdrawn in favour of them.
func (r report) cards(source string, files hostfs.FS, found probes) []accel.Card {
	gpus := slices.Clone(r.gpus)
	slices.SortStableFunc(gpus, func(a, b gpu) int {
		return cmp.Or(cmp.Compare(a.order(), b.order()), cmp.Compare(a.pci, b.pci))
	})
	cards := []accel.Card{}
	taken := map[string]bool{"": true}
	for _, g := range gpus {
		if taken[g.identity()] {
			continue // the second with all the same is one that was printed twice
		}
		taken[g.identity()] = true
		if r.conflict != "" {
			g.conflicts = append(g.conflicts, r.conflict)
		}
		c := g.card(r.driver, source, found)
		if c.PCIAddress != "" {
			c.NUMANode = files.NUMANode(c.PCIAddress)
		}
		if c.NUMANode != nil {
			c.Sources[accel.AttrNUMA] = "sysfs"
		}
		if len(g.migs) > 0 {
			c.Form = accel.Divided
		}
		cards = append(cards, c)
		for _, m := range g.migs {
			cards = append(cards, m.card(g, c))
		}
	}
	return cards
}

func (g gpu) order() int {
	if g.index == nil {
		return 1 << 20
	}
	return *g.index
}

func (g gpu) card(driver, source string, found probes) accel.Card {
	c := accel.Card{
		Vendor: accel.NVIDIA, Model: accel.ModelName(accel.NVIDIA, g.name), RawName: g.name, UUID: g.identity(),
		PCIAddress: g.pci, MemoryMiB: g.memory, DriverVersion: driver, Form: accel.Whole,
		Health: accel.Health{OK: g.dead == "", Reason: g.dead}, Sources: map[string]string{}, Conflicts: g.conflicts,
	}
	switch {
	case g.index != nil:
		c.Index = *g.index
	case g.minor != nil:
		c.Index = *g.minor
	default:
		c.Index = -1 // the core does not show it
	}
	modes := maps.Clone(found)
	if g.migMode != nil {
		if modes == nil {
			modes = probes{}
		}
		modes[accel.ModeMIG] = source
		if *g.migMode && len(g.migs) == 0 {
			c.Form = accel.MIG
		}
	}
	c.Modes = slices.Sorted(maps.Keys(modes))
	for mode, where := range modes {
		c.Sources[accel.SourceOfMode(mode)] = where
	}
	for field, has := range map[string]bool{
		accel.AttrUUID: g.uuid != "", accel.AttrModel: g.name != "", accel.AttrPCI: g.pci != "",
		accel.AttrMemory: g.memory != nil, accel.AttrDriver: driver != "",
	} {
		if has {
			c.Sources[field] = source
		}
	}
	if g.nameByPCI {
		c.Sources[accel.AttrModel] = "sysfs"
	}
	return c
}

// card is one partition as a card of its own: the board's facts, its own identity, memory and model.
func (m mig) card(board gpu, of accel.Card) accel.Card {
	c := of
	c.Form, c.Parent = accel.Partition, of.UUID
	c.Model = of.Model + " MIG " + m.name()
	c.RawName = of.RawName + " MIG " + m.name()
	c.UUID = m.identity(board)
	c.MemoryMiB = m.memory
	c.Modes = nil
	c.Sources = maps.Clone(of.Sources)
	maps.DeleteFunc(c.Sources, func(field, _ string) bool {
		return field == accel.AttrMemory && m.memory == nil || strings.HasPrefix(field, accel.AttrModes+"/")
	})
	return c
}

// name is the profile, or where only the table was read, which does not print it, the size.
func (m mig) name() string {
	switch {
	case m.profile != "":
		return m.profile
	case m.memory != nil:
		return fmt.Sprintf("%dMiB", *m.memory)
	}
	return "unknown"
}

// identity is the UUID, or the older way to name a partition: MIG-<board>/<GPU instance>/<compute instance>.
func (m mig) identity(board gpu) string {
	switch {
	case m.uuid != "":
		return m.uuid
	case m.gi != nil && m.ci != nil:
		return fmt.Sprintf("MIG-%s/%d/%d", board.identity(), *m.gi, *m.ci)
	}
	return fmt.Sprintf("MIG-%s/device%d", board.identity(), m.device)
}
