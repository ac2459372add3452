package watch

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// CardFacts are the facts of one card that placement does not need but people want to see.
type CardFacts struct {
	UUID          string
	Parent        string // of a partition, the card that it is a part of
	Index         int
	PCI           string
	Driver        string
	NUMANode      *int
	MemoryMiB     *uint64 // of the card; nil when it does not report it
	Modes         []string
	Healthy       bool
	HealthReason  string
	Pool          string // device group it is offered in
	Auto          bool
	Units         int
	InstanceCards []string // ids of its instances
}

// nodeView is one node in the words of the engine, and what people see of its cards.
type nodeView struct {
	engine engine.Node
	makes  shareMakers
	cards  []CardFacts
	owner  map[string]map[string]string // group → instance id → card UUID
}

// viewNode reads a node. Device groups of vendors that are not accelerator brands are left out.
func viewNode(n *api.Node) *nodeView {
	v := &nodeView{
		engine: engine.Node{
			ID: n.ID, Name: n.Name, Datacenter: n.Datacenter, Pool: n.NodePool, Class: n.NodeClass,
			Attrs: attrs(n), Drivers: map[string]bool{}, Tenants: names(n.Meta[MetaTenants]), Beside: names(n.Meta[MetaShareTenants]),
			Ready: n.Status == api.NodeStatusReady && n.SchedulingEligibility == api.NodeSchedulingEligible && !n.Drain && n.DrainStrategy == nil,
		},
		owner: map[string]map[string]string{},
	}
	for name, d := range n.Drivers {
		v.engine.Drivers[name] = d != nil && d.Detected && d.Healthy
	}
	v.engine.Runtimes, v.makes = runtimes(n), makers(n)
	if n.NodeResources == nil {
		return v
	}
	v.engine.CPUMHz, v.engine.MemoryMiB = int(n.NodeResources.Cpu.CpuShares), int(n.NodeResources.Memory.MemoryMB)
	v.engine.DiskMiB = int(n.NodeResources.Disk.DiskMB)
	if r := n.ReservedResources; r != nil {
		v.engine.CPUMHz -= int(r.Cpu.CpuShares)
		v.engine.MemoryMiB -= int(r.Memory.MemoryMB)
		v.engine.DiskMiB -= int(r.Disk.DiskMB)
	}
	descriptors := map[string]*api.NodeDeviceResource{}
	for _, g := range n.NodeResources.Devices {
		if g != nil && g.Type == accel.DescriptorType {
			descriptors[text(g, accel.AttrUUID)] = g
		}
	}
	for _, g := range n.NodeResources.Devices {
		if g != nil && g.Type != accel.DescriptorType {
			v.addGroup(g, descriptors)
		}
	}
	slices.SortFunc(v.engine.Pools, func(a, b engine.Pool) int { return cmp.Compare(a.Group, b.Group) })
	slices.SortFunc(v.cards, func(a, b CardFacts) int {
		return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID))
	})
	return v
}

// Keys of a node's meta that say whom it is for.
const (
	MetaTenants      = "heteroflow_tenants"       // the tenants that may use it; everybody when it is not there
	MetaShareTenants = "heteroflow_share_tenants" // those that may be on one of its cards together; * for all
)

// names reads a list with commas, in order and each once.
func names(list string) []string {
	var out []string
	for name := range strings.SplitSeq(list, ",") {
		if name = strings.TrimSpace(name); name != "" {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// runtimes reads what our driver says it can run. Nomad drops an attribute that is empty, so that one which is not
// there counts as not there only beside others.
func runtimes(n *api.Node) map[string]bool {
	out := map[string]bool{}
	for _, name := range []string{"docker", "process"} {
		if val, told := n.Attributes["driver.heteroflow.runtime."+name]; told {
			out[name] = val == "true"
		}
	}
	return out
}

func attrs(n *api.Node) map[string]string {
	out := make(map[string]string, len(n.Attributes)+len(n.Meta))
	for k, val := range n.Attributes {
		out["attr."+k] = val
	}
	for k, val := range n.Meta {
		out["meta."+k] = val
	}
	return out
}

// shareMakers is what the driver of a node can make shares of cards with, by brand. A driver that does not tell is nil:
// there the modes count that the cards were seen to have.
type shareMakers map[accel.Vendor][]accel.Mode

func makers(n *api.Node) shareMakers {
	const prefix = "driver.heteroflow.share"
	if n.Attributes[prefix+"s"] == "" {
		return nil
	}
	out := shareMakers{}
	for _, v := range accel.Vendors() {
		if list := n.Attributes[prefix+"."+string(v)]; list != "" {
			out[v] = strings.Split(list, ",")
		}
	}
	return out
}

// of are the modes that hold for shares of a card. A simulated card has what it says: its shares are only counted.
func (m shareMakers) of(vendor accel.Vendor, uuid string, seen []accel.Mode) []accel.Mode {
	if m == nil || accel.IsSimulated(uuid) {
		return seen
	}
	return m[vendor]
}

func (v *nodeView) addGroup(g *api.NodeDeviceResource, descriptors map[string]*api.NodeDeviceResource) {
	vendor, err := accel.ParseVendor(g.Vendor)
	if err != nil || !accel.IsCard(g.Vendor, g.Type) {
		return
	}
	p := engine.Pool{
		Group: g.Vendor + "/" + g.Type + "/" + g.Name, Vendor: vendor, Type: g.Type, Name: g.Name,
		Model: text(g, accel.AttrModel), Form: formOf(g), Auto: text(g, accel.AttrPolicy) == accel.PolicyAuto,
		Modes: modes(g),
	}
	p.Rounding = rounding(g)
	if p.Model == "" {
		p.Model = accel.ModelName(vendor, g.Name)
	}
	if unit := memory(g, accel.AttrUnitMemory); unit != nil {
		p.UnitMiB = *unit
	} else if whole := memory(g, accel.AttrMemory); whole != nil && p.Form == accel.Whole {
		p.UnitMiB = *whole
	}
	owner := map[string]string{}
	perInstance := p.Form == accel.Whole || p.Form == accel.Partition
	var rows []string // links of each card
	if perInstance {
		for _, inst := range g.Instances {
			facts := descriptors[inst.ID]
			if facts == nil {
				facts = g
			}
			v.addCard(&p, facts, inst.ID, []*api.NodeDevice{inst}, owner)
			if p.Form == accel.Whole {
				rows = append(rows, text(facts, accel.AttrLinks))
			}
		}
		connect(&p, rows)
	} else {
		uuid := text(g, accel.AttrUUID)
		if uuid == "" {
			uuid = p.Group
		}
		v.addCard(&p, g, uuid, g.Instances, owner)
	}
	v.engine.Pools = append(v.engine.Pools, p)
	v.owner[p.Group] = owner
}

// addCard adds the card behind some instances of the pool.
func (v *nodeView) addCard(p *engine.Pool, g *api.NodeDeviceResource, uuid string, instances []*api.NodeDevice, owner map[string]string) {
	facts := CardFacts{
		UUID: uuid, Parent: text(g, accel.AttrParent), PCI: text(g, accel.AttrPCI), Driver: text(g, accel.AttrDriver), Modes: modes(g), Pool: p.Group,
		MemoryMiB: memory(g, accel.AttrMemory), Units: len(instances), Healthy: len(instances) > 0,
		Auto: p.Auto || text(g, accel.AttrPolicy) == accel.PolicyAuto,
	}
	if n := number(g, accel.AttrIndex); n != nil {
		facts.Index = *n
	}
	facts.NUMANode = number(g, accel.AttrNUMA)
	for _, inst := range instances {
		owner[inst.ID] = uuid
		if inst.Healthy {
			p.Total++
			continue
		}
		facts.Healthy = false
		facts.HealthReason = inst.HealthDescription
	}
	card := engine.Card{
		UUID: uuid, Index: facts.Index, Healthy: facts.Healthy, Units: len(instances),
		NIC: text(g, accel.AttrNIC), NICLink: text(g, accel.AttrNICLink), NUMA: facts.NUMANode,
	}
	if facts.MemoryMiB != nil {
		card.MemoryMiB = *facts.MemoryMiB
	}
	p.Cards = append(p.Cards, card)
	p.Auto = p.Auto || facts.Auto
	if len(p.Modes) == 0 {
		p.Modes = facts.Modes
	}
	p.Modes = v.makes.of(p.Vendor, uuid, p.Modes)
	v.cards = append(v.cards, facts)
}

func formOf(g *api.NodeDeviceResource) accel.Form {
	if f := accel.Form(text(g, accel.AttrForm)); f != "" {
		return f
	}
	switch g.Type { // a plugin that is not ours says no form
	case accel.Shared.DeviceType():
		return accel.Shared
	case accel.MIG.DeviceType():
		return accel.MIG
	}
	return accel.Whole
}

func modes(g *api.NodeDeviceResource) []string {
	list := text(g, accel.AttrModes)
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

// rounding is how the group says that shares of its cards are rounded. Rules that this version does not know are left out, and
// those that give every size.
func rounding(g *api.NodeDeviceResource) []accel.Rounding {
	rules, _ := accel.ParseRounding(text(g, accel.AttrRounding))
	return slices.DeleteFunc(rules, func(r accel.Rounding) bool { return len(r.Templates) == 0 && r.StepMiB <= 1 })
}

func text(g *api.NodeDeviceResource, name string) string {
	a := g.Attributes[name]
	switch {
	case a == nil:
		return ""
	case a.StringVal != nil:
		return *a.StringVal
	case a.IntVal != nil:
		return strconv.FormatInt(*a.IntVal, 10)
	}
	return ""
}

func number(g *api.NodeDeviceResource, name string) *int {
	a := g.Attributes[name]
	if a == nil {
		return nil
	}
	if a.IntVal != nil {
		n := int(*a.IntVal)
		return &n
	}
	if a.StringVal != nil {
		if n, err := strconv.Atoi(*a.StringVal); err == nil {
			return &n
		}
	}
	return nil
}

// byteUnits are the memory units of Nomad's device attributes, in bytes.
var byteUnits = map[string]float64{
	"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
	"kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
}

// memory is an attribute in MiB; nil when it is absent or its unit is not one of memory.
func memory(g *api.NodeDeviceResource, name string) *uint64 {
	a := g.Attributes[name]
	if a == nil {
		return nil
	}
	var value float64
	switch {
	case a.IntVal != nil:
		value = float64(*a.IntVal)
	case a.FloatVal != nil:
		value = *a.FloatVal
	default:
		return nil
	}
	scale, ok := byteUnits[a.Unit]
	if !ok || value <= 0 {
		return nil
	}
	mib := uint64(math.Floor(value * scale / (1 << 20)))
	return &mib
}
