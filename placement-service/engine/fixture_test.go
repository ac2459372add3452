package engine

import (
	"fmt"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// testCard is a card, or several equal whole ones, in the few words of a scenario.
type testCard struct {
	Vendor    accel.Vendor `json:"vendor"` // nvidia when left out
	Model     string       `json:"model"`
	Form      accel.Form   `json:"form"` // shared when left out
	GiB       int          `json:"gib"`  // 80 when left out
	Count     int          `json:"count"`
	Used      int          `json:"used"` // slices, or cards
	Unit      int          `json:"unit"` // MiB of a slice, 1024 when left out
	Auto      bool         `json:"auto"`
	Modes     []string     `json:"modes"`
	Partition string       `json:"partition"` // " MIG 1g.10gb"
	Rounding  string       `json:"rounding"`  // as in the attribute
	Holders   []Holder     `json:"holders"`
	Load      *Load        `json:"load"` // of every one
}

type testNode struct {
	Name       string            `json:"name"`
	Datacenter string            `json:"datacenter"`
	Pool       string            `json:"pool"`
	Offline    bool              `json:"offline"`
	CPU        int               `json:"cpu"`
	Memory     int               `json:"memory"`
	Disk       int               `json:"disk"`
	Attrs      map[string]string `json:"attrs"`
	NoDriver   bool              `json:"no_driver"`
	Runtimes   map[string]bool   `json:"runtimes"`
	Tenants    []string          `json:"tenants"`
	Beside     []string          `json:"beside"`
	Load       *Load             `json:"load"`
	Cards      []testCard        `json:"cards"`
}

// snapshotOf builds the snapshot of a few words: ids are "id-<name>", UUIDs "GPU-<node>-<card>".
func snapshotOf(nodes ...testNode) Snapshot {
	var s Snapshot
	for _, t := range nodes {
		n := Node{
			ID: "id-" + t.Name, Name: t.Name, Datacenter: or(t.Datacenter, "dc1"), Pool: t.Pool, Ready: !t.Offline,
			CPUMHz: or(t.CPU, 64000), MemoryMiB: or(t.Memory, 512<<10), DiskMiB: t.Disk, Attrs: t.Attrs,
			Drivers: map[string]bool{"heteroflow": !t.NoDriver, "docker": true}, Runtimes: t.Runtimes, Tenants: t.Tenants, Beside: t.Beside, Load: t.Load,
		}
		for _, c := range t.Cards {
			n.addCard(c)
		}
		s.Nodes = append(s.Nodes, n)
	}
	return s
}

func (n *Node) addCard(c testCard) {
	c.Vendor, c.Form, c.Model = or(c.Vendor, accel.NVIDIA), or(c.Form, accel.Shared), or(c.Model, "A100-SXM4-80GB")
	c.GiB, c.Unit, c.Count = or(c.GiB, 80), or(c.Unit, 1024), or(c.Count, 1)
	first := 0
	for i := range n.Pools {
		first += len(n.Pools[i].Cards)
	}
	p := Pool{Vendor: c.Vendor, Type: c.Form.DeviceType(), Model: c.Model, Form: c.Form, Auto: c.Auto, Modes: c.Modes, Used: c.Used, Holders: c.Holders}
	mib := uint64(c.GiB) * 1024
	uuid := func(i int) string { return fmt.Sprintf("GPU-%s-%d", n.Name, first+i) }
	switch c.Form {
	case accel.Whole, accel.Partition:
		p.Name, p.UnitMiB, p.Total = c.Model+c.Partition, mib, c.Count
		for i := range c.Count {
			card := Card{UUID: uuid(i), Index: first + i, Healthy: true, MemoryMiB: mib, Units: 1}
			if i < c.Used {
				card.UsedUnits = 1
			}
			p.Cards = append(p.Cards, card)
		}
	default:
		p.Name, p.UnitMiB = c.Model+"-"+accel.ShortID(c.Vendor, uuid(0)), uint64(c.Unit)
		p.Total = int(mib) / c.Unit
		p.Cards = []Card{{UUID: uuid(0), Index: first, Healthy: true, MemoryMiB: mib, Units: p.Total, UsedUnits: c.Used}}
	}
	for i := range p.Cards {
		p.Cards[i].Load = c.Load
	}
	rules, err := accel.ParseRounding(c.Rounding)
	if err != nil {
		panic(err) // a mistake of the test
	}
	p.Rounding = rules
	p.Group = string(p.Vendor) + "/" + p.Type + "/" + p.Name
	n.Pools = append(n.Pools, p)
}

func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// ask builds a request of one group with one task.
func ask(allocations int, a accel.Ask) Request {
	a.Count = or(a.Count, 1)
	return Request{JobID: "llm", Namespace: "default", Groups: []GroupAsk{{
		Name: "serve", Count: allocations, CPUMHz: 100, MemoryMiB: 300,
		Tasks: []TaskAsk{{Name: "vllm", Driver: "heteroflow", Ask: &a}},
	}}}
}

// book adds the plan's claims to the snapshot, as the ledger does, and fails when a claim does not fit.
func book(t interface{ Fatalf(string, ...any) }, s Snapshot, r Request, d Decision) {
	for gi, g := range d.Groups {
		for _, p := range g.Placements {
			n := nodeOf(s, p.NodeID)
			if n == nil {
				t.Fatalf("placed on unknown node %s", p.NodeID)
				return
			}
			n.UsedCPUMHz += r.Groups[gi].CPUMHz
			n.UsedMemoryMiB += r.Groups[gi].MemoryMiB
			n.UsedDiskMiB += r.Groups[gi].DiskMiB
			if n.UsedCPUMHz > n.CPUMHz || n.UsedMemoryMiB > n.MemoryMiB || n.DiskMiB > 0 && n.UsedDiskMiB > n.DiskMiB {
				t.Fatalf("node %s is over its processor or memory", n.Name)
			}
			for _, task := range p.Tasks {
				for _, c := range task.Claims {
					claim(t, n, r.Tenant, c)
				}
			}
		}
	}
}

func claim(t interface{ Fatalf(string, ...any) }, n *Node, tenant string, c Claim) {
	for i := range n.Pools {
		p := &n.Pools[i]
		if p.Group != c.Group {
			continue
		}
		if p.Used += c.Units; p.Used > p.Total {
			t.Fatalf("%s on %s holds %d of %d", p.Group, n.Name, p.Used, p.Total)
		}
		p.Hold(tenant, c.Units)
		left := c.Units
		for j := range p.Cards {
			take := min(left, p.Cards[j].Units-p.Cards[j].UsedUnits)
			p.Cards[j].UsedUnits += take
			left -= take
		}
		return
	}
	t.Fatalf("node %s has no pool %s", n.Name, c.Group)
}

func nodeOf(s Snapshot, id string) *Node {
	for i := range s.Nodes {
		if s.Nodes[i].ID == id {
			return &s.Nodes[i]
		}
	}
	return nil
}

// where lists the claims of a decision in few words: "n1 A100-…-1a2b×20".
func where(s Snapshot, d Decision) []string {
	var out []string
	for _, g := range d.Groups {
		for _, p := range g.Placements {
			words := []string{nodeOf(s, p.NodeID).Name}
			for _, task := range p.Tasks {
				for _, c := range task.Claims {
					_, rest, _ := strings.Cut(c.Group, "/")
					words = append(words, fmt.Sprintf("%s×%d", cardWord(nodeOf(s, p.NodeID), c.Group, rest), c.Units))
				}
			}
			out = append(out, strings.Join(words, " "))
		}
	}
	return out
}

// cardWord is "gpu0" for a shared card by its index, the type and name for a group of whole cards.
func cardWord(n *Node, group, rest string) string {
	for _, p := range n.Pools {
		if p.Group == group && p.Form != accel.Whole && p.Form != accel.Partition {
			return fmt.Sprintf("card%d", p.Cards[0].Index)
		}
	}
	return rest
}
