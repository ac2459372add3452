package engine

import (
	"github.com/heteroflow/heteroflow/internal/accel"
)

// Snapshot is the cluster at one moment, as the ledger and Nomad know it. Decide never changes it. To decide anew
// for a job that runs already, leave out what that job uses.
type Snapshot struct {
	Nodes []Node `json:"nodes"`
}

// Node is one machine. Used values are what is taken already, by allocations or by reservations.
type Node struct {
	ID         string `json:"id"`
	Name       string `json:"name"`
	Datacenter string `json:"datacenter"`
	Pool       string `json:"pool,omitempty"` // node pool; empty means "default"
	Class      string `json:"class,omitempty"`
	// Attrs holds what constraints may name, by the key inside ${…}: "attr.kernel.name", "meta.rack". The
	// node.* keys are taken from the fields of this struct and need not be here.
	Attrs         map[string]string `json:"attrs,omitempty"`
	Ready         bool              `json:"ready"` // ready, eligible and not draining
	CPUMHz        int               `json:"cpu_mhz"`
	MemoryMiB     int               `json:"memory_mib"`
	DiskMiB       int               `json:"disk_mib,omitempty"` // for ephemeral disks; 0 when the node does not say
	UsedCPUMHz    int               `json:"used_cpu_mhz,omitempty"`
	UsedMemoryMiB int               `json:"used_memory_mib,omitempty"`
	UsedDiskMiB   int               `json:"used_disk_mib,omitempty"`
	Load          *Load             `json:"load,omitempty"` // nil when not known
	Pools         []Pool            `json:"pools,omitempty"`
	Drivers       map[string]bool   `json:"drivers,omitempty"` // detected and healthy task drivers
	// Runtimes are those that our driver says it has. A driver that says nothing of any leaves it empty, and the node
	// is then taken to have them all.
	Runtimes map[string]bool `json:"runtimes,omitempty"`
	// Tenants are those that may use the node; everybody when empty.
	Tenants []string `json:"tenants,omitempty"`
	// Beside are the tenants that may be on one of its cards together: its sharing group. AnyTenant in it stands for all;
	// when empty a card has one tenant at a time.
	Beside []string `json:"beside,omitempty"`
}

// AnyTenant is every tenant, in Node.Beside.
const AnyTenant = "*"

// Pool is one device group of a node: instances of equal size that one device block can take together. For a
// shared card it is the card and its slices, for whole cards all cards of one model.
type Pool struct {
	Group   string       `json:"group"` // vendor/type/name, the Nomad device id
	Vendor  accel.Vendor `json:"vendor"`
	Type    string       `json:"type"` // second part of the group
	Name    string       `json:"name"` // third part of the group
	Model   string       `json:"model"`
	Form    accel.Form   `json:"form"`
	Auto    bool         `json:"auto,omitempty"` // the form may be switched by intent while the card is empty
	UnitMiB uint64       `json:"unit_mib"`       // memory of one instance; 0 when unknown
	Total   int          `json:"total"`          // healthy instances
	Used    int          `json:"used,omitempty"`
	Modes   []string     `json:"modes,omitempty"` // probed sharing modes
	// Rounding is what shares of the card become by those of its modes that do not give every size.
	Rounding []accel.Rounding `json:"rounding,omitempty"`
	Cards    []Card           `json:"cards,omitempty"` // the cards behind the pool; one for a shared card
	// Holders are the tenants to which the used instances belong, sorted; empty when that is not known.
	Holders []Holder `json:"holders,omitempty"`
}

// Holder is what one tenant has of a pool.
type Holder struct {
	Tenant string `json:"tenant"`
	Units  int    `json:"units"`
}

// Card is one card behind a pool.
type Card struct {
	UUID      string `json:"uuid"`
	Index     int    `json:"index,omitempty"`
	Healthy   bool   `json:"healthy"`
	MemoryMiB uint64 `json:"memory_mib,omitempty"` // of the whole card; 0 takes Units × UnitMiB of its pool
	Units     int    `json:"units"`
	UsedUnits int    `json:"used_units,omitempty"`
	Fixed     bool   `json:"fixed,omitempty"` // its form stays, though that of its pool may be switched
	// Links is how it is connected to the cards of its pool, see LinkRow; empty when that is not known.
	Links   string `json:"links,omitempty"`
	NIC     string `json:"nic,omitempty"`      // nearest network card, such as mlx5_0
	NICLink string `json:"nic_link,omitempty"` // how it is connected to it, as accel.Link writes it
	NUMA    *int   `json:"numa,omitempty"`     // nil when not known
	Load    *Load  `json:"load,omitempty"`     // nil when not known
}

// Free is the number of instances that nobody has taken, never negative.
func (p *Pool) Free() int { return max(0, p.Total-p.Used) }

// FreeMiB is the memory one ask could take from the pool's card; for whole cards the memory of one free card.
func (p *Pool) FreeMiB() uint64 {
	if p.Form == accel.Whole || p.Form == accel.Partition {
		if p.Free() == 0 {
			return 0
		}
		return p.UnitMiB
	}
	return uint64(p.Free()) * p.UnitMiB
}

// CardMiB is the memory of one card, or of one partition, of the pool.
func (p *Pool) CardMiB() uint64 {
	if p.Form == accel.Whole || p.Form == accel.Partition {
		return p.UnitMiB
	}
	units := p.Total
	for _, c := range p.Cards {
		units = max(units, c.Units)
	}
	return uint64(units) * p.UnitMiB
}

// value is what a ${…} target of a node constraint resolves to, by the key inside it.
func (n *Node) value(key string) (string, bool) {
	switch key {
	case "node.unique.id":
		return n.ID, true
	case "node.unique.name":
		return n.Name, true
	case "node.datacenter":
		return n.Datacenter, true
	case "node.class":
		return n.Class, true
	case "node.pool":
		return n.pool(), true
	}
	v, ok := n.Attrs[key]
	return v, ok
}

func (n *Node) pool() string {
	if n.Pool == "" {
		return "default"
	}
	return n.Pool
}
