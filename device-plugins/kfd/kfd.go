// Package kfd reads the kernel's topology of cards that are driven by KFD: identity, place, device node and memory, of
// each partition too. It knows no product name. What a brand's tool says of the same cards does not belong here.
package kfd

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/hostfs"
	"github.com/heteroflow/heteroflow/device-plugins/toolout"
	"github.com/heteroflow/heteroflow/internal/accel"
)

const nodes = "sys/class/kfd/kfd/topology/nodes"

// ID is the form in which a maker's unique number names a card; empty for 0, which is none.
func ID(unique uint64) string {
	if unique == 0 {
		return ""
	}
	return fmt.Sprintf("%016x", unique)
}

// Cards lists the cards of a PCI vendor in the order of the nodes. Cards that share a unique number are the parts of one
// board, and their place is the board's.
func Cards(files hostfs.FS, vendor string) []brand.Card {
	cards := read(files, vendor)
	boards := map[string]int{}
	for _, c := range cards {
		boards[c.ID]++
	}
	for i := range cards {
		c := &cards[i]
		if c.ID == "" || boards[c.ID] < 2 {
			if mode, err := files.Text("sys/bus/pci/devices", c.PCI, "current_compute_partition"); err == nil && mode != "" {
				c.Mode(accel.ModeCPX, "sysfs") // it is in one part now, and could be in more
			}
			continue
		}
		board, function, _ := strings.Cut(c.PCI, ".")
		c.PCI, c.Part, c.Partition = board+".0", function, "partition"
		if mode, err := files.Text("sys/bus/pci/devices", c.PCI, "current_compute_partition"); err == nil {
			c.Partition = cmp.Or(mode, c.Partition)
		}
		if c.MemoryUsedMiB != nil { // the same figure is shown with each part of a board
			c.MemoryUsedMiB = nil
		}
	}
	return cards
}

// read reads the topology as it is. Nodes without vector units are processors.
func read(files hostfs.FS, vendor string) []brand.Card {
	var cards []brand.Card
	names, err := files.Names(nodes)
	if err != nil {
		return cards
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
	for _, name := range names {
		p := properties(files, nodes, name, "properties")
		if p["simd_count"] == 0 || fmt.Sprintf("%04x", p["vendor_id"]) != vendor {
			continue
		}
		at := p["location_id"]
		c := brand.Card{ID: ID(p["unique_id"]), PCI: fmt.Sprintf("%04x:%02x:%02x.%x", p["domain"], at>>8&0xff, at>>3&0x1f, at&7)}
		if minor := p["drm_render_minor"]; minor > 0 && minor < 1<<20 {
			n := int(minor)
			c.Minor = &n
		}
		if size := properties(files, nodes, name, "mem_banks/0/properties")["size_in_bytes"]; size > 0 {
			c.MemoryMiB = toolout.MiB(strconv.FormatUint(size, 10), "B")
		}
		if used, err := files.Text(nodes, name, "mem_banks/0/used_memory"); err == nil {
			c.MemoryUsedMiB = toolout.MiB(used, "B")
			if n, _, ok := toolout.Quantity(used); ok {
				c.Fact("board_used_mib", strconv.FormatFloat(n/(1<<20), 'f', 1, 64))
			}
		}
		c.Fact("node_id", name)
		c.Fact("device_id", fmt.Sprintf("0x%04x", p["device_id"]))
		if perCU := p["simd_per_cu"]; perCU > 0 {
			c.Fact("compute_units", strconv.FormatUint(p["simd_count"]/perCU, 10))
		}
		cards = append(cards, c)
	}
	return cards
}

// properties reads lines of a name and a number. What is no number is left out.
func properties(files hostfs.FS, path ...string) map[string]uint64 {
	values := map[string]uint64{}
	body, err := files.Text(path...)
	if err != nil {
		return values
	}
	for line := range strings.Lines(body) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseUint(value, 10, 64); err == nil {
			values[name] = n
		}
	}
	return values
}
