package engine

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/heteroflow/heteroflow/internal/constraint"
	"github.com/heteroflow/heteroflow/placement-service/engine/index"
)

// Cluster is nodes that change one by one, for decisions that look only at what changed: Engine.DecideOn decides on it
// what Engine.Decide decides on its Snapshot. Nodes that are alike but for what names them are judged together. It is
// safe for concurrent use.
type Cluster struct {
	mu      sync.Mutex
	numbers map[string]int          // by id
	nodes   []Node                  // by number; of those that are gone, the id
	traits  []traits                // by number
	order   []int                   // numbers in the order of ids; nil when it has to be made anew
	places  []int32                 // of every number in the order of ids, also of those that are gone; nil with order
	classes interned                // of nodes
	pools   interned                // of pools
	holders interned                // sets of tenants that have something of one pool
	owned   int                     // nodes and pools that tell tenants apart
	holding map[string]map[int]bool // by tenant, the numbers of the nodes on which it has something
	named   map[string]bool         // tenants that nodes name, and those that have something on many
	watched map[string]bool         // keys of attributes that some request or plugin looked at
	auto    int                     // pools whose form can be switched
	limits  Limits                  // of load, by which nodes and pools are told apart
	catalog *Catalog                // nil when it has to be made anew
	judge   *judge
	index   *index.Index[string, string, worth]
	key     []byte // scratch
}

// interned numbers texts.
type interned map[string]uint32

func (in interned) of(text []byte) uint32 {
	n, known := in[string(text)]
	if !known {
		n = uint32(len(in))
		in[string(text)] = n
	}
	return n
}

// judgements is how many are kept, about 25 bytes each.
const judgements = 24 << 20

// NewCluster is a cluster of these nodes.
func NewCluster(nodes ...Node) *Cluster {
	c := &Cluster{watched: map[string]bool{}}
	c.reset()
	for i := range nodes {
		c.Set(nodes[i])
	}
	return c
}

// reset makes it a cluster without nodes.
func (c *Cluster) reset() {
	c.numbers, c.classes, c.pools, c.holders = map[string]int{}, interned{}, interned{}, interned{}
	c.nodes, c.traits, c.order, c.places, c.auto, c.owned, c.catalog = nil, nil, nil, nil, 0, 0, nil
	c.holding, c.named = map[string]map[int]bool{}, map[string]bool{}
	c.judge = &judge{c: c, codes: map[Code]int16{}, nodeCodes: map[uint32]Code{}, poolsSeen: map[poolOn]poolSeen{}}
	c.index = index.New[string, string, worth](c.judge, judgements)
}

// Set adds a node, or puts it in the place of the one with its id. What the node points to must not be changed
// afterwards.
func (c *Cluster) Set(n Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set(n)
}

func (c *Cluster) set(n Node) {
	at, known := c.numbers[n.ID]
	if !known {
		at = len(c.nodes)
		c.nodes, c.traits = append(c.nodes, Node{}), append(c.traits, traits{})
		c.numbers[n.ID], c.order, c.places = at, nil, nil
	}
	old := &c.nodes[at]
	if known && old.sameBut(&n) {
		c.traits[at].pools = c.poolTraits(c.traits[at].pools, old, &n)
	} else {
		c.catalog = nil
		c.traits[at] = traits{class: c.classOf(&n), pools: c.poolTraits(nil, nil, &n)}
	}
	c.auto += autoPools(&n) - autoPools(old)
	c.owned += ownedParts(&n) - ownedParts(old)
	c.hold(at, old, &n)
	c.nodes[at] = n
	c.index.Set(at, c.state(at))
}

// Remove takes a node out.
func (c *Cluster) Remove(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, known := c.numbers[id]
	if !known {
		return
	}
	c.auto -= autoPools(&c.nodes[at])
	c.owned -= ownedParts(&c.nodes[at])
	c.hold(at, &c.nodes[at], &Node{})
	c.index.Remove(at)
	c.nodes[at], c.traits[at], c.catalog, c.order, c.places = Node{ID: id}, traits{}, nil, nil, nil // the index may still order by the id
	delete(c.numbers, id)
	const spare = 1024 // a number is not given twice, since the index may still have it
	if len(c.nodes) > 2*len(c.numbers)+spare {
		left := c.snapshot().Nodes
		c.reset()
		for i := range left {
			c.set(left[i])
		}
	}
}

func autoPools(n *Node) int {
	count := 0
	for i := range n.Pools {
		if n.Pools[i].Auto {
			count++
		}
	}
	return count
}

// fewNodes is on how many nodes a tenant may have something and still be looked at on each of them by itself.
const fewNodes = 32

// hold notes which tenants have something on a node, and which it names.
func (c *Cluster) hold(at int, old, n *Node) {
	for i := range old.Pools {
		for _, h := range old.Pools[i].Holders {
			delete(c.holding[h.Tenant], at)
		}
	}
	for i := range n.Pools {
		if n.inGroup(AnyTenant) {
			break
		}
		for _, h := range n.Pools[i].Holders {
			on := c.holding[h.Tenant]
			if on == nil {
				on = map[int]bool{}
				c.holding[h.Tenant] = on
			}
			if on[at] = true; len(on) > fewNodes {
				c.named[h.Tenant] = true
			}
		}
	}
	for _, tenant := range n.Tenants {
		c.named[tenant] = true
	}
	for _, tenant := range n.Beside {
		c.named[tenant] = true
	}
}

// own are the nodes that are not to a tenant what they are to all others, in order; none for one that the index knows by
// name.
func (c *Cluster) own(tenant string) []int {
	if c.named[tenant] || len(c.holding[tenant]) == 0 {
		return nil
	}
	return slices.Sorted(maps.Keys(c.holding[tenant]))
}

// ownedParts is in how many ways the node tells tenants apart.
func ownedParts(n *Node) int {
	count := min(1, len(n.Tenants))
	if n.inGroup(AnyTenant) {
		return count // whoever is there, everybody may be beside him
	}
	for i := range n.Pools {
		count += min(1, len(n.Pools[i].Holders))
	}
	return count
}

// Snapshot is the cluster as it is now, in the order of ids.
func (c *Cluster) Snapshot() Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.snapshot()
}

func (c *Cluster) snapshot() Snapshot {
	c.sort()
	s := Snapshot{Nodes: make([]Node, len(c.order))}
	for i, at := range c.order {
		s.Nodes[i] = c.nodes[at]
	}
	return s
}

// sort puts the nodes in the order of their ids, once they are others.
func (c *Cluster) sort() {
	if c.order != nil {
		return
	}
	all := make([]int, len(c.nodes))
	for at := range all {
		all[at] = at
	}
	slices.SortStableFunc(all, func(a, b int) int { return cmp.Compare(c.nodes[a].ID, c.nodes[b].ID) })
	c.order, c.places = make([]int, 0, len(c.numbers)), make([]int32, len(all))
	for place, at := range all {
		c.places[at] = int32(place)
		if now, there := c.numbers[c.nodes[at].ID]; there && now == at {
			c.order = append(c.order, at)
		}
	}
}

// watch has nodes told apart by the attributes that the request names. Nodes have many that differ from one to the next
// and that nobody asks about. It is false where so many are asked about that hardly two nodes would be alike.
func (c *Cluster) watch(keys []string) bool {
	more := 0
	for _, key := range keys {
		if !c.watched[key] {
			more++
		}
	}
	const most = 64
	if more == 0 || len(c.watched)+more > most {
		return more == 0
	}
	for _, key := range keys {
		c.watched[key] = true
	}
	for _, at := range c.numbers {
		c.traits[at].class = c.classOf(&c.nodes[at])
		c.index.Set(at, c.state(at))
	}
	return true
}

// limit has nodes told apart by whether they are over these limits, and by nothing else of their load.
func (c *Cluster) limit(l Limits) {
	if c.limits == l {
		return
	}
	c.limits = l
	for _, at := range c.numbers {
		c.index.Set(at, c.state(at))
	}
}

// attributesOf are the keys that the constraints name. ok is false when one tells every node from all others.
func attributesOf(r *Request) (keys []string, ok bool) {
	for i := range r.Groups {
		for _, con := range r.Groups[i].Constraints {
			for _, target := range []string{con.L, con.R} {
				key, is := constraint.Key(target)
				switch {
				case !is:
				case unique(key):
					return nil, false
				default:
					keys = append(keys, key)
				}
			}
		}
	}
	return keys, true
}

// catalogNow is CatalogOf the cluster. It must be called with the lock held.
func (c *Cluster) catalogNow() Catalog {
	if c.catalog == nil {
		have := CatalogOf(c.snapshot())
		c.catalog = &have
	}
	return *c.catalog
}

// watchedKeys are in order, so that a class has one text.
func (c *Cluster) watchedKeys() []string { return slices.Sorted(maps.Keys(c.watched)) }
