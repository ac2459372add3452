// Package sim is simulated nodes for the embedded engine: what they have, as a device plugin would offer it, and
// tasks that only pretend to run. Simulated cards for a real device plugin, and anything that touches a process, a
// container or a card, do not belong here.
package sim

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/embedded/state"
)

// Node is one simulated node. Each card is offered in its own form; an empty form is whole.
type Node struct {
	ID         string // derived from the name when empty
	Name       string
	Datacenter string // dc1 when empty
	Pool       string // default when empty
	Class      string
	CPUMHz     int // 64,000 when 0
	MemoryMiB  int // 524,288 when 0
	Cards      []accel.Card
	SliceMiB   uint64 // of shared cards; accel.DefaultSliceMiB when 0
	Auto       bool   // the forms of the cards may be switched by intent
	Meta       map[string]string
	Drivers    []string // all that jobs commonly name when nil
	// Links is how whole cards are connected, by their places in Cards, both ways; none is known when nil.
	Links map[[2]int]accel.Link
}

// Nodes makes n nodes named "sim-0001" and so on, each with perNode cards of one brand and model. UUIDs are the same at
// every call.
func Nodes(n, perNode int, vendor accel.Vendor, model string, memoryMiB uint64, form accel.Form) []Node {
	nodes := make([]Node, n)
	for i := range nodes {
		name := fmt.Sprintf("sim-%04d", i+1)
		cards := make([]accel.Card, perNode)
		for k := range cards {
			cards[k] = Card(name, k, vendor, model, memoryMiB, form)
		}
		nodes[i] = Node{Name: name, Cards: cards}
	}
	return nodes
}

// Card makes one healthy card of a node.
func Card(node string, index int, vendor accel.Vendor, model string, memoryMiB uint64, form accel.Form) accel.Card {
	sum := sha256.Sum256([]byte(node + "/" + string(vendor) + "/" + model))
	return accel.Card{
		Vendor: vendor, Model: model, RawName: model, UUID: fmt.Sprintf(accel.SimulatedPrefix+"%s-%x-%d", strings.ToUpper(string(vendor)), sum[:4], index),
		Index: index, PCIAddress: fmt.Sprintf("0000:%02x:00.0", 0x10+index), NUMANode: &numaNodes[index/4%2], MemoryMiB: &memoryMiB,
		DriverVersion: "sim-1.0", Form: form, Health: accel.Health{OK: true},
	}
}

var numaNodes = [2]int{0, 1}

// NodeID is the id of a simulated node: the same for a name at every start.
func NodeID(name string) string {
	return uuid.NewSHA1(uuid.NameSpaceOID, []byte("heteroflow/sim/"+name)).String()
}

// Drivers that a simulated node claims to have.
var drivers = []string{"heteroflow", "docker", "exec", "raw_exec", "java", "mock_driver"}

// Builder makes nodes as the API has them and shares between them what is equal.
type Builder struct {
	mu         sync.Mutex
	attributes map[string]*api.Attribute
	groups     map[string]map[string]*api.Attribute
	drivers    map[string]map[string]*api.DriverInfo
	node       map[string]string
}

// NewBuilder makes a builder.
func NewBuilder() *Builder {
	return &Builder{
		attributes: map[string]*api.Attribute{}, groups: map[string]map[string]*api.Attribute{}, drivers: map[string]map[string]*api.DriverInfo{},
		node: map[string]string{
			state.SimulatedAttribute: "true", "kernel.name": "linux", "os.name": "simulated", "cpu.arch": "amd64", "arch": "amd64",
			"nomad.version": "2.0.5", "driver.heteroflow": "1", "driver.docker": "1", "driver.exec": "1", "driver.raw_exec": "1",
			"driver.heteroflow.runtime.docker": "true", "driver.heteroflow.runtime.process": "true",
		},
	}
}

// Build makes one node.
func (b *Builder) Build(n Node) *api.Node {
	b.mu.Lock()
	defer b.mu.Unlock()
	id := n.ID
	if id == "" {
		id = NodeID(n.Name)
	}
	return &api.Node{
		ID: id, Name: n.Name, Datacenter: cmp.Or(n.Datacenter, "dc1"), NodeClass: n.Class, NodePool: cmp.Or(n.Pool, "default"),
		Attributes: b.node, Meta: n.Meta, Status: api.NodeStatusReady, SchedulingEligibility: api.NodeSchedulingEligible,
		Drivers: b.driverSet(n.Drivers),
		NodeResources: &api.NodeResources{
			Cpu:    api.NodeCpuResources{CpuShares: int64(orInt(n.CPUMHz, 64_000)), TotalCpuCores: 64},
			Memory: api.NodeMemoryResources{MemoryMB: int64(orInt(n.MemoryMiB, 524_288))}, Disk: api.NodeDiskResources{DiskMB: 4 << 20},
			Networks: network, MinDynamicPort: 20000, MaxDynamicPort: 32000, Devices: b.devices(n),
		},
		ReservedResources: &api.NodeReservedResources{},
	}
}

var network = []*api.NetworkResource{{Mode: "host", Device: "lo", CIDR: "127.0.0.1/32", IP: "127.0.0.1"}}

func orInt(n, otherwise int) int {
	if n == 0 {
		return otherwise
	}
	return n
}

func (b *Builder) driverSet(names []string) map[string]*api.DriverInfo {
	if names == nil {
		names = drivers
	}
	key := strings.Join(names, ",")
	if b.drivers[key] == nil {
		set := map[string]*api.DriverInfo{}
		for _, d := range names {
			set[d] = &api.DriverInfo{Detected: true, Healthy: true, HealthDescription: "Healthy"}
		}
		b.drivers[key] = set
	}
	return b.drivers[key]
}

// devices makes the groups of a node's cards: one for each model of whole cards, with a describing group without
// instances for each card, and one for each card in any other form.
func (b *Builder) devices(n Node) []*api.NodeDeviceResource {
	slice := n.SliceMiB
	if slice == 0 {
		slice = accel.DefaultSliceMiB
	}
	var groups, descriptors []*api.NodeDeviceResource
	whole := map[string]*api.NodeDeviceResource{}
	for i, c := range n.Cards {
		if c.Form == "" {
			c.Form = accel.Whole
		}
		if c.Form != accel.Whole {
			groups = append(groups, &api.NodeDeviceResource{
				Vendor: string(c.Vendor), Type: c.Form.DeviceType(), Name: c.GroupName(),
				Instances: slices(c, slice), Attributes: b.cardAttributes(c, slice, n.Auto),
			})
			continue
		}
		g := whole[c.DeviceID()]
		if g == nil {
			g = &api.NodeDeviceResource{Vendor: string(c.Vendor), Type: "gpu", Name: c.Model, Attributes: b.modelAttributes(c, n.Auto)}
			whole[c.DeviceID()] = g
			groups = append(groups, g)
		}
		g.Instances = append(g.Instances, &api.NodeDevice{
			ID: c.UUID, Healthy: c.Health.OK, HealthDescription: c.Health.Reason, Locality: &api.NodeDeviceLocality{PciBusID: c.PCIAddress},
		})
		descriptors = append(descriptors, &api.NodeDeviceResource{
			Vendor: string(c.Vendor), Type: accel.DescriptorType, Name: c.DescriptorName(), Attributes: b.linked(b.cardAttributes(c, memory(c), n.Auto), n, i),
		})
	}
	return append(groups, descriptors...)
}

// linked adds how a card is connected.
func (b *Builder) linked(attributes map[string]*api.Attribute, n Node, card int) map[string]*api.Attribute {
	peers := map[string]accel.Link{}
	for ends, l := range n.Links {
		for k, end := range ends {
			if end == card {
				other := n.Cards[ends[1-k]]
				peers[accel.PeerID(other.Vendor, other.UUID)] = l
			}
		}
	}
	if len(peers) == 0 {
		return attributes
	}
	out := maps.Clone(attributes)
	out[accel.AttrLinks] = b.text(accel.FormatLinks(peers))
	return out
}

// slices makes the instances of a shared card out of two blocks of memory: thousands of cards have many.
func slices(c accel.Card, sliceMiB uint64) []*api.NodeDevice {
	count := c.Slices(sliceMiB)
	block, list := make([]api.NodeDevice, count), make([]*api.NodeDevice, count)
	prefix := strings.TrimSuffix(c.SliceID(0), "0")
	text := make([]byte, 0, count*(len(prefix)+3))
	ends := make([]int, count)
	for i := range block {
		text = strconv.AppendInt(append(text, prefix...), int64(i), 10)
		ends[i] = len(text)
	}
	ids, from := string(text), 0
	for i := range block {
		block[i] = api.NodeDevice{ID: ids[from:ends[i]], Healthy: c.Health.OK, HealthDescription: c.Health.Reason}
		list[i], from = &block[i], ends[i]
	}
	return list
}

func memory(c accel.Card) uint64 {
	if c.MemoryMiB == nil {
		return 0
	}
	return *c.MemoryMiB
}

func (b *Builder) text(s string) *api.Attribute {
	a := b.attributes[s]
	if a == nil {
		a = &api.Attribute{StringVal: &s}
		b.attributes[s] = a
	}
	return a
}

func (b *Builder) mib(n uint64) *api.Attribute {
	key := fmt.Sprintf("%d MiB", n)
	a := b.attributes[key]
	if a == nil {
		a = &api.Attribute{IntVal: new(int64(n)), Unit: "MiB"}
		b.attributes[key] = a
	}
	return a
}

func (b *Builder) number(n int) *api.Attribute {
	key := fmt.Sprintf("%d", n)
	a := b.attributes[key]
	if a == nil {
		a = &api.Attribute{IntVal: new(int64(n))}
		b.attributes[key] = a
	}
	return a
}

// modelAttributes are those that all whole cards of one model on a node have in common.
func (b *Builder) modelAttributes(c accel.Card, auto bool) map[string]*api.Attribute {
	key := fmt.Sprintf("%s|%s|%d|%s|%t", c.Vendor, c.Model, memory(c), c.DriverVersion, auto)
	set := b.groups[key]
	if set == nil {
		set = b.common(c, memory(c), auto)
		b.groups[key] = set
	}
	return set
}

func (b *Builder) common(c accel.Card, unitMiB uint64, auto bool) map[string]*api.Attribute {
	set := map[string]*api.Attribute{
		accel.AttrModel: b.text(c.Model), accel.AttrDriver: b.text(c.DriverVersion), accel.AttrForm: b.text(string(c.Form)),
		accel.AttrPolicy: b.text(accel.PolicyFixed),
	}
	if auto {
		set[accel.AttrPolicy] = b.text(accel.PolicyAuto)
	}
	if c.MemoryMiB != nil {
		set[accel.AttrMemory], set[accel.AttrUnitMemory] = b.mib(*c.MemoryMiB), b.mib(unitMiB)
	}
	return set
}

func (b *Builder) cardAttributes(c accel.Card, unitMiB uint64, auto bool) map[string]*api.Attribute {
	set := b.common(c, unitMiB, auto)
	uuid := c.UUID
	set[accel.AttrUUID] = &api.Attribute{StringVal: &uuid}
	set[accel.AttrIndex] = b.number(c.Index)
	if c.PCIAddress != "" {
		set[accel.AttrPCI] = b.text(c.PCIAddress)
	}
	if c.NUMANode != nil {
		set[accel.AttrNUMA] = b.number(*c.NUMANode)
	}
	if len(c.Modes) > 0 {
		set[accel.AttrModes] = b.text(strings.Join(c.Modes, ","))
	}
	set[accel.AttrState] = b.text(accel.StateOK)
	if !c.Health.OK {
		set[accel.AttrState] = b.text(accel.StateBad)
	}
	return set
}
