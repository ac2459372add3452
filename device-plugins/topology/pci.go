package topology

import (
	"fmt"

	"github.com/heteroflow/heteroflow/device-plugins/hostfs"
	"github.com/heteroflow/heteroflow/internal/accel"
)

// device is a card or a network card on the PCI bus.
type device struct {
	id   string
	path hostfs.PCIPath
	numa *int
}

// FromBus reads the kernel's PCI tree: the cards given, by UUID, the RDMA devices, the PCIe switches that connect them,
// and NUMA nodes. It knows nothing of the makers' own links. A card whose place is not known has no links. What could be
// read is returned beside an error.
func FromBus(files hostfs.FS, cards []accel.Card) (Graph, error) {
	var g Graph
	var devices []device
	add := func(v Vertex, address string) {
		d := device{id: v.ID, path: files.PCIPath(address), numa: v.NUMA}
		g.AddVertex(v)
		g.addNUMA(d)
		devices = append(devices, d)
	}
	for _, c := range cards {
		v := Vertex{ID: c.UUID, Kind: Card, NUMA: c.NUMANode}
		if v.NUMA == nil && c.PCIAddress != "" {
			v.NUMA = files.NUMANode(c.PCIAddress)
		}
		add(v, c.PCIAddress)
	}
	nics, err := files.RDMADevices()
	if err != nil {
		err = fmt.Errorf("read rdma devices: %w", err)
	}
	for _, n := range nics {
		add(Vertex{ID: n.Name, Kind: NIC, Name: n.Name, NUMA: files.NUMANode(n.Address)}, n.Address)
	}
	for i, a := range devices {
		for _, b := range devices[i+1:] {
			if kind := distance(a, b); kind != "" {
				g.AddEdge(Edge{A: a.id, B: b.id, Link: accel.Link{Kind: kind}})
			}
		}
	}
	g.addSwitches(devices)
	return g, err
}

func (g *Graph) addNUMA(d device) {
	if d.numa == nil {
		return
	}
	node := fmt.Sprintf("numa%d", *d.numa)
	g.AddVertex(Vertex{ID: node, Kind: NUMA})
	g.AddEdge(Edge{A: d.id, B: node, Link: accel.Link{Kind: accel.LinkNode}})
}

// addSwitches adds the switches that have several of the devices right below them. A switch is named by its upstream
// port: the last bridge above a device is the port for it, the one before that leads to the switch.
func (g *Graph) addSwitches(devices []device) {
	below := map[string][]device{}
	for _, d := range devices {
		if n := len(d.path.Bridges); n >= 2 {
			port := d.path.Bridges[n-2]
			below[port] = append(below[port], d)
		}
	}
	for port, members := range below {
		if len(members) < 2 {
			continue
		}
		g.AddVertex(Vertex{ID: port, Kind: Switch, NUMA: members[0].numa})
		for _, d := range members {
			g.AddEdge(Edge{A: d.id, B: port, Link: accel.Link{Kind: accel.LinkPIX}})
		}
	}
}

// distance is the level at which the ways of two devices meet, in the words of nvidia-smi; empty when not known.
func distance(a, b device) accel.LinkKind {
	switch {
	case a.path.Root == "" || b.path.Root == "" || a.path.Address == b.path.Address:
		return ""
	case a.path.Root == b.path.Root:
		return meeting(a.path.Bridges, b.path.Bridges)
	case a.numa == nil || b.numa == nil:
		return ""
	case *a.numa == *b.numa:
		return accel.LinkNode
	}
	return accel.LinkSystem
}

func meeting(a, b []string) accel.LinkKind {
	shared := 0
	for shared < min(len(a), len(b)) && a[shared] == b[shared] {
		shared++
	}
	switch {
	case shared == 0:
		return accel.LinkPHB
	case len(a)-shared <= 1 && len(b)-shared <= 1: // each has its own port of the switch, at most
		return accel.LinkPIX
	}
	return accel.LinkPXB
}
