package brand

import (
	"fmt"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// dispute notes what the kernel says differently of a card that the tool lists. Readings of one tool are not compared:
// its forms of output differ in how they round and name things.
func (c *Card) dispute(kernel Card) {
	if c.ID != "" && kernel.from.id && kernel.ID != "" && c.ID != kernel.ID {
		c.conflicts = append(c.conflicts, conflict(accel.AttrUUID, c.ID, kernel.ID))
	}
	if c.PCI != "" && kernel.from.pci && kernel.PCI != "" && !samePlace(c.PCI, kernel.PCI) {
		c.conflicts = append(c.conflicts, conflict(accel.AttrPCI, c.PCI, kernel.PCI))
	}
	if c.MemoryMiB != nil && kernel.from.memory && kernel.MemoryMiB != nil && !alike(*c.MemoryMiB, *kernel.MemoryMiB) {
		c.conflicts = append(c.conflicts, conflict(accel.AttrMemory, fmt.Sprintf("%d MiB", *c.MemoryMiB), fmt.Sprintf("%d MiB", *kernel.MemoryMiB)))
	}
}

// alike tells whether two sizes may be one: what the firmware keeps for itself some count and some do not.
func alike(a, b uint64) bool { return max(a, b)-min(a, b) <= max(a, b)/16 }

func conflict(fact, tool, kernel string) string {
	return fmt.Sprintf("%s: the tool says %s, the kernel %s", fact, tool, kernel)
}
