package scheduler

import (
	"slices"
	"strconv"

	"github.com/hashicorp/nomad/api"
)

// Dynamic ports come from this range, both ends included, unless the node says otherwise.
const (
	firstDynamicPort = 20000
	lastDynamicPort  = 32000
)

// usage is what is taken on one node.
type usage struct {
	node              *api.Node
	cpu, memory, disk int64
	cores             map[uint16]bool
	ports             map[int]bool
	devices           map[string]map[string]bool // device group → instance
}

func newUsage(n *api.Node) *usage {
	u := &usage{node: n, cores: map[uint16]bool{}, ports: map[int]bool{}, devices: map[string]map[string]bool{}}
	if r := n.ReservedResources; r != nil {
		u.cpu, u.memory, u.disk = int64(r.Cpu.CpuShares), int64(r.Memory.MemoryMB), int64(r.Disk.DiskMB)
		for _, p := range parsePorts(r.Networks.ReservedHostPorts) {
			u.ports[p] = true
		}
	}
	return u
}

// take counts one allocation.
func (u *usage) take(a *api.Allocation) {
	r := a.AllocatedResources
	if r == nil {
		return
	}
	u.disk += r.Shared.DiskMB
	for _, p := range r.Shared.Ports {
		u.ports[p.Value] = true
	}
	for _, t := range r.Tasks {
		u.cpu += t.Cpu.CpuShares
		u.memory += t.Memory.MemoryMB
		for _, c := range t.Cpu.ReservedCores {
			u.cores[c] = true
		}
		for _, network := range t.Networks {
			for _, p := range slices.Concat(network.ReservedPorts, network.DynamicPorts) {
				u.ports[p.Value] = true
			}
		}
		for _, d := range t.Devices {
			u.hold(d)
		}
	}
}

func (u *usage) hold(d *api.AllocatedDeviceResource) {
	group := d.Vendor + "/" + d.Type + "/" + d.Name
	if u.devices[group] == nil {
		u.devices[group] = map[string]bool{}
	}
	for _, id := range d.DeviceIDs {
		u.devices[group][id] = true
	}
}

// offer is the share of a node that an allocation would get.
type offer struct {
	resources         *api.AllocatedResources
	cpu, memory, disk int64
	deviceAffinity    bool
	deviceScore       float64
}

// fit finds a share for a group, or the dimension in which there is none.
func (u *usage) fit(r *run, g *api.TaskGroup) (*offer, string) {
	o := &offer{resources: &api.AllocatedResources{Tasks: map[string]*api.AllocatedTaskResources{}}}
	if g.EphemeralDisk != nil {
		o.disk = int64(value(g.EphemeralDisk.SizeMB))
	}
	o.resources.Shared.DiskMB = o.disk
	used := portUse{node: u.node, taken: u.ports, own: map[int]bool{}, rand: r.Rand}
	for _, network := range g.Networks {
		if why := used.assign(network, &o.resources.Shared); why != "" {
			return nil, why
		}
	}
	devices := deviceUse{node: u.node, taken: u.devices, own: map[string]map[string]bool{}, rand: r.Rand}
	for _, t := range g.Tasks {
		share, why := u.fitTask(t, o, &used, &devices)
		if why != "" {
			return nil, why
		}
		o.resources.Tasks[t.Name] = share
	}
	o.deviceAffinity, o.deviceScore = devices.weighed, devices.score()
	n := u.node.NodeResources
	switch {
	case u.cpu+o.cpu > n.Cpu.CpuShares:
		return nil, "cpu"
	case u.memory+o.memory > n.Memory.MemoryMB:
		return nil, "memory"
	case u.disk+o.disk > n.Disk.DiskMB:
		return nil, "disk"
	}
	return o, ""
}

func (u *usage) fitTask(t *api.Task, o *offer, ports *portUse, devices *deviceUse) (*api.AllocatedTaskResources, string) {
	share := &api.AllocatedTaskResources{}
	want := t.Resources
	if want == nil {
		want = api.DefaultResources()
	}
	share.Cpu.CpuShares = int64(value(want.CPU))
	share.Memory.MemoryMB, share.Memory.MemoryMaxMB = int64(value(want.MemoryMB)), int64(value(want.MemoryMaxMB))
	if cores := value(want.Cores); cores > 0 {
		picked := u.pickCores(cores, o)
		if picked == nil {
			return nil, "cores"
		}
		share.Cpu.ReservedCores = picked
		total := max(1, int64(u.node.NodeResources.Cpu.TotalCpuCores))
		share.Cpu.CpuShares = u.node.NodeResources.Cpu.CpuShares / total * int64(cores)
	}
	o.cpu += share.Cpu.CpuShares
	o.memory += share.Memory.MemoryMB
	for _, network := range want.Networks {
		shared := api.AllocatedSharedResources{}
		if why := ports.assign(network, &shared); why != "" {
			return nil, why
		}
		share.Networks = append(share.Networks, shared.Networks...)
	}
	for _, d := range want.Devices {
		got := devices.assign(d)
		if got == nil {
			return nil, "devices: no devices match request"
		}
		share.Devices = append(share.Devices, got)
	}
	return share, ""
}

func (u *usage) pickCores(n int, o *offer) []uint16 {
	mine := map[uint16]bool{}
	for _, t := range o.resources.Tasks {
		for _, c := range t.Cpu.ReservedCores {
			mine[c] = true
		}
	}
	var picked []uint16
	for _, c := range u.node.NodeResources.Cpu.ReservableCpuCores {
		if len(picked) < n && !u.cores[c] && !mine[c] {
			picked = append(picked, c)
		}
	}
	if len(picked) < n {
		return nil
	}
	return picked
}

func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0
	}
	return n
}
