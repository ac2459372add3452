package scheduler

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// portUse hands out ports of one node to one allocation.
type portUse struct {
	node  *api.Node
	taken map[int]bool // by others
	own   map[int]bool
	rand  *rand.Rand
}

// assign gives a network its ports and adds it to the shared resources; the answer says why there are none.
func (p *portUse) assign(want *api.NetworkResource, out *api.AllocatedSharedResources) string {
	got := &api.NetworkResource{Mode: want.Mode, MBits: want.MBits, DNS: want.DNS, Hostname: want.Hostname}
	if got.Mode == "" {
		got.Mode = "host"
	}
	host := p.hostIP()
	if got.Mode == "host" || got.Mode == "bridge" || got.Mode == "" {
		got.IP = host
	}
	if host == "" && len(want.ReservedPorts)+len(want.DynamicPorts) > 0 {
		return "network: no networks available"
	}
	for _, port := range want.ReservedPorts {
		if p.taken[port.Value] || p.own[port.Value] {
			return fmt.Sprintf("network: reserved port collision %s=%d", port.Label, port.Value)
		}
		p.own[port.Value] = true
		got.ReservedPorts = append(got.ReservedPorts, port)
		out.Ports = append(out.Ports, api.PortMapping{Label: port.Label, Value: port.Value, To: target(port, port.Value), HostIP: host})
	}
	for _, port := range want.DynamicPorts {
		number := p.dynamic()
		if number == 0 {
			return "network: dynamic port selection failed"
		}
		p.own[number] = true
		port.Value = number
		port.To = target(port, number)
		got.DynamicPorts = append(got.DynamicPorts, port)
		out.Ports = append(out.Ports, api.PortMapping{Label: port.Label, Value: number, To: port.To, HostIP: host})
	}
	out.Networks = append(out.Networks, got)
	return ""
}

// target is the port inside the task's network: −1 asks for the same number as outside.
func target(p api.Port, value int) int {
	if p.To == -1 {
		return value
	}
	return p.To
}

func (p *portUse) hostIP() string {
	for _, n := range p.node.NodeResources.Networks {
		if n.IP != "" {
			return n.IP
		}
	}
	return ""
}

// dynamic picks a free port, first by chance and then in order; 0 when there is none.
func (p *portUse) dynamic() int {
	first, last := firstDynamicPort, lastDynamicPort
	if r := p.node.NodeResources; r.MinDynamicPort > 0 && r.MaxDynamicPort >= r.MinDynamicPort {
		first, last = r.MinDynamicPort, r.MaxDynamicPort
	}
	start := p.rand.IntN(last - first + 1)
	for i := range last - first + 1 {
		port := first + (start+i)%(last-first+1)
		if !p.taken[port] && !p.own[port] {
			return port
		}
	}
	return 0
}

// parsePorts reads a list such as "22,80,8000-8010"; what is no port is left out.
func parsePorts(list string) []int {
	var ports []int
	for part := range strings.SplitSeq(list, ",") {
		from, to, isRange := strings.Cut(strings.TrimSpace(part), "-")
		first, err := strconv.Atoi(from)
		if err != nil {
			continue
		}
		last := first
		if isRange {
			if last, err = strconv.Atoi(to); err != nil {
				continue
			}
		}
		for p := first; p <= last && p <= 65535; p++ {
			ports = append(ports, p)
		}
	}
	return ports
}
