package engine

import (
	"encoding/binary"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// traits are what a node is like, apart from what is taken of it and from what names it.
type traits struct {
	class uint32
	pools []uint32 // in the order of the node's pools
}

// unique reports whether an attribute tells a node from all others by its name, as Nomad has it.
func unique(key string) bool {
	return strings.HasPrefix(key, "node.unique.") || strings.HasPrefix(key, "attr.unique.") || strings.HasPrefix(key, "meta.unique.")
}

// text adds a text to a key so that no two lists of texts make the same key.
func text(key []byte, s string) []byte {
	return append(binary.AppendUvarint(key, uint64(len(s))), s...)
}

func truth(key []byte, is bool) []byte {
	if is {
		return append(key, 1)
	}
	return append(key, 0)
}

// classOf numbers what a node is like but for its pools.
func (c *Cluster) classOf(n *Node) uint32 {
	key := c.key[:0]
	for _, s := range []string{n.Datacenter, n.Pool, n.Class} {
		key = text(key, s)
	}
	key = truth(texts(texts(key, n.Tenants), n.Beside), n.Ready)
	for _, amount := range []int{n.CPUMHz, n.MemoryMiB, n.DiskMiB} {
		key = binary.AppendVarint(key, int64(amount))
	}
	for _, attribute := range c.watchedKeys() {
		value, there := n.value(attribute)
		key = text(truth(text(key, attribute), there), value)
	}
	for _, set := range []map[string]bool{n.Drivers, n.Runtimes} {
		key = binary.AppendUvarint(key, uint64(len(set)))
		for _, name := range slices.Sorted(maps.Keys(set)) {
			key = truth(text(key, name), set[name])
		}
	}
	c.key = key
	return c.classes.of(key)
}

// sameBut reports whether two nodes are of one class by what can be seen at a glance. It may say no for two that are.
func (n *Node) sameBut(o *Node) bool {
	return n.Datacenter == o.Datacenter && n.Pool == o.Pool && n.Class == o.Class && n.Ready == o.Ready &&
		n.CPUMHz == o.CPUMHz && n.MemoryMiB == o.MemoryMiB && n.DiskMiB == o.DiskMiB && len(n.Pools) == len(o.Pools) &&
		slices.Equal(n.Tenants, o.Tenants) && slices.Equal(n.Beside, o.Beside) && sameMap(n.Attrs, o.Attrs) && sameMap(n.Drivers, o.Drivers) && sameMap(n.Runtimes, o.Runtimes)
}

func sameMap[V comparable](a, b map[string]V) bool {
	return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer() || maps.Equal(a, b)
}

// poolTraits numbers what the pools of a node are like. Numbers of the old node are taken over where the pool is as it
// was.
func (c *Cluster) poolTraits(had []uint32, old, n *Node) []uint32 {
	out := had
	for i := range n.Pools {
		switch p := &n.Pools[i]; {
		case i < len(had) && p.sameBut(&old.Pools[i]):
		case i < len(had):
			out[i] = c.poolClass(p)
		default:
			out = append(out, c.poolClass(p))
		}
	}
	return out
}

// sameBut reports whether two pools are of one class by what can be seen at a glance.
func (p *Pool) sameBut(o *Pool) bool {
	return p.Group == o.Group && p.Model == o.Model && p.Vendor == o.Vendor && p.Form == o.Form && p.Auto == o.Auto && p.UnitMiB == o.UnitMiB &&
		p.Total == o.Total && len(p.Cards) == len(o.Cards) && sameSlice(p.Modes, o.Modes) && sameSlice(p.Rounding, o.Rounding) &&
		slices.EqualFunc(p.Cards, o.Cards, func(a, b Card) bool {
			return a.Healthy == b.Healthy && a.MemoryMiB == b.MemoryMiB && a.Units == b.Units && a.Fixed == b.Fixed &&
				a.Links == b.Links && a.NICLink == b.NICLink && sameNumber(a.NUMA, b.NUMA)
		})
}

func sameSlice[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// poolClass numbers what a pool is like. The names of shared cards have the card's id in them and are left out.
func (c *Cluster) poolClass(p *Pool) uint32 {
	key := c.key[:0]
	for _, s := range []string{string(p.Vendor), p.Type, p.Model, string(p.Form)} {
		key = text(key, s)
	}
	if p.wholes() {
		key = text(key, p.Name)
	}
	key = truth(key, p.Auto)
	key = binary.AppendUvarint(key, p.UnitMiB)
	key = binary.AppendVarint(key, int64(p.Total))
	key = binary.AppendUvarint(key, uint64(len(p.Modes)))
	for _, m := range p.Modes {
		key = text(key, m)
	}
	key = text(key, fmt.Sprintf("%#v", p.Rounding))
	cards := make([]string, len(p.Cards))
	for i := range p.Cards {
		card := &p.Cards[i]
		one := truth(truth(nil, card.Healthy), card.Fixed)
		one = binary.AppendVarint(binary.AppendUvarint(one, card.MemoryMiB), int64(card.Units))
		cards[i] = string(one)
	}
	if p.linked() {
		key = p.linkText(append(key, 1)) // by their places: it matters which of them are taken
	} else {
		slices.Sort(cards)
	}
	for _, card := range cards {
		key = text(key, card)
	}
	c.key = key
	return c.pools.of(key)
}

// state is the node's traits and what is taken of it, pools in an order that does not depend on their names.
func (c *Cluster) state(at int) string {
	n := &c.nodes[at]
	key := binary.AppendUvarint(c.key[:0], uint64(c.traits[at].class))
	for _, used := range []int{n.UsedCPUMHz, n.UsedMemoryMiB, n.UsedDiskMiB} {
		key = binary.AppendVarint(key, int64(used))
	}
	type pool struct {
		class uint32
		used  int
		cards uint64 // a sum that tells how the cards are taken
		held  uint32 // by which tenants
		hot   bool   // its card is over a limit of load
	}
	limited := c.limits != Limits{}
	if limited {
		key = truth(key, c.limits.node(n))
	}
	var few [16]pool
	all := few[:0]
	for i := range n.Pools {
		one := pool{class: c.traits[at].pools[i], used: n.Pools[i].Used, held: c.heldBy(n, &n.Pools[i])}
		if limited {
			one.hot = c.limits.card(&n.Pools[i])
		}
		linked := n.Pools[i].linked()
		for j := range n.Pools[i].Cards {
			used := uint64(n.Pools[i].Cards[j].UsedUnits)
			if linked {
				used |= uint64(j+1) << 32
			}
			one.cards += mixed(used)
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b pool) int {
		switch {
		case a.class != b.class:
			return int(a.class) - int(b.class)
		case a.used != b.used:
			return a.used - b.used
		case a.cards < b.cards:
			return -1
		case a.cards > b.cards:
			return 1
		case a.hot != b.hot:
			if a.hot {
				return 1
			}
			return -1
		}
		return int(a.held) - int(b.held)
	})
	for _, p := range all {
		key = binary.AppendUvarint(key, uint64(p.class))
		key = binary.AppendVarint(key, int64(p.used))
		key = binary.LittleEndian.AppendUint64(key, p.cards)
		key = binary.AppendUvarint(key, uint64(p.held))
		if limited {
			key = truth(key, p.hot)
		}
	}
	c.key = key
	return string(key)
}

// heldBy numbers the tenants that have something of the pool, not how much each has; 0 for none, and where it does not matter.
func (c *Cluster) heldBy(n *Node, p *Pool) uint32 {
	if len(p.Holders) == 0 || p.wholes() || n.inGroup(AnyTenant) {
		return 0
	}
	var few [64]byte
	key := few[:0]
	for i := range p.Holders {
		key = text(key, p.Holders[i].Tenant)
	}
	return c.holders.of(key) + 1
}

// mixed spreads the bits of a number, so that sums of different numbers differ.
func mixed(x uint64) uint64 {
	x *= 0x9e3779b97f4a7c15
	x ^= x >> 29
	x *= 0xbf58476d1ce4e5b9
	return x ^ x>>32
}
