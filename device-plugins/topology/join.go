package topology

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
)

var labelIndex = regexp.MustCompile(`^[A-Z]+(\d+)$`)

// Join names what a tool's matrix shows, cards by UUID and network cards by their RDMA devices, and adds what the PCI
// tree knows besides. A card is known by the tool's index or by its PCI address. Where the tool says no more than PCIe,
// the tree tells the level.
func Join(matrix, bus *Graph, cards []accel.Card) Graph {
	names := map[string]string{}
	for _, v := range matrix.Vertices() {
		if v.Kind == NIC {
			names[v.ID] = v.Name
			continue
		}
		for _, c := range cards {
			if c.Form != accel.Partition && names[v.ID] == "" && v.shows(c) {
				names[v.ID] = c.UUID
			}
		}
	}
	out := matrix.Rename(names)
	for ends, e := range out.edges {
		if _, known := bus.edges[ends]; known && e.Link.Kind == accel.LinkPCIe {
			delete(out.edges, ends)
		}
	}
	out.Add(bus)
	return out
}

func (v Vertex) shows(c accel.Card) bool {
	if found := labelIndex.FindStringSubmatch(v.ID); found != nil {
		return found[1] == strconv.Itoa(c.Index)
	}
	return c.PCIAddress != "" && strings.EqualFold(v.ID, c.PCIAddress)
}
