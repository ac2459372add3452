// Package watch keeps the truth: it follows Nomad's nodes, allocations, evaluations and jobs, holds them as the
// snapshot that placement decides on, settles the ledger by them, and tells the queue and the submitter what
// changed. Deciding, writing jobs and answering users do not belong here.
package watch

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// JobKey names a job in Nomad.
type JobKey struct{ Namespace, ID string }

// PoolKey names a device group of a node.
type PoolKey struct{ NodeID, Group string }

// Taken is how many units are taken, by node and device group. Pools of which nothing is taken are left out. Beside each
// group it has under HeldBy what each tenant holds of it, where the ledger knows.
type Taken map[string]map[string]int

// HeldBy is the key under which Taken has what a tenant holds of a device group.
func HeldBy(group, tenant string) string { return group + heldMark + tenant }

// heldMark is in no name of a group: Nomad and the ledger refuse it.
const heldMark = "\x00"

// holdersIn are the holders of the groups of a node, sorted; nil where nobody is known.
func holdersIn(here map[string]int) map[string][]engine.Holder {
	var out map[string][]engine.Holder
	for key, units := range here {
		group, tenant, is := strings.Cut(key, heldMark)
		if !is || units <= 0 {
			continue
		}
		if out == nil {
			out = map[string][]engine.Holder{}
		}
		out[group] = append(out[group], engine.Holder{Tenant: tenant, Units: units})
	}
	for _, list := range out {
		slices.SortFunc(list, func(a, b engine.Holder) int { return strings.Compare(a.Tenant, b.Tenant) })
	}
	return out
}

// Alloc is what placement knows of one allocation.
type Alloc struct {
	ID        string
	Job       JobKey
	Group     string // task group
	Index     int    // in its group, which is in Nomad's name for it
	NodeID    string
	Client    string    // client status
	Desired   string    // desired status
	Started   time.Time // of its first task; zero when none runs yet
	CPUMHz    int
	MemoryMiB int
	DiskMiB   int
	Devices   []Device
	Followup  string    // the evaluation that will replace it, where it failed and Nomad lets some time pass
	Next      string    // its replacement
	heard     time.Time // when it was first heard that it failed
	modify    uint64
}

// Device is what one task of an allocation holds of one device group.
type Device struct {
	Task  string
	Group string // vendor/type/name
	IDs   []string
}

// Live reports whether the allocation still holds its resources.
func (a *Alloc) Live() bool {
	switch a.Client {
	case api.AllocClientStatusComplete, api.AllocClientStatusFailed, api.AllocClientStatusLost:
		return false
	}
	return true
}

// Stays reports whether Nomad has not told the allocation to stop.
func (a *Alloc) Stays() bool { return a.Desired == api.AllocDesiredStatusRun }

// Claims is what the allocation holds, in the words of the ledger.
func (a *Alloc) Claims() []store.Claim {
	var out []store.Claim
	for _, d := range a.Devices {
		out = append(out, store.Claim{
			NodeID: a.NodeID, Group: d.Group, Units: len(d.IDs), TaskGroup: a.Group, Task: d.Task, AllocID: a.ID,
		})
	}
	return out
}

// World is the cluster as Nomad tells it. It is safe for concurrent use.
type World struct {
	mu      sync.RWMutex
	nodes   map[string]*nodeView
	order   []string // node ids, sorted
	allocs  map[string]*Alloc
	jobs    map[JobKey]map[string]*Alloc // live allocations by job
	byNode  map[string]map[string]*Alloc // live allocations by node
	failed  map[JobKey]map[string]bool   // failed allocations that may be replaced, by job
	usage   map[string]*nodeUsage
	texts   map[string]string // models and forms of pools, by themselves
	catalog *engine.Catalog   // nil when a node changed
	asOf    time.Time
	ready   chan struct{}
	isReady [parts]bool
	lost    [parts]bool // cannot be followed since it was read last
	changed chan struct{}
	// Of allocations with devices, since this process began to follow them:
	placed, left int64
	follow       followed
	loads        map[string]*reading // by node, where an engine looks at them
	pins         pinned
}

// nodeUsage is what live allocations hold on one node.
type nodeUsage struct {
	cpuMHz, memoryMiB, diskMiB int
	cards                      map[string]int // card UUID → units
	units                      map[string]int // device group → units
}

// NewWorld makes an empty world.
func NewWorld() *World {
	return &World{
		nodes: map[string]*nodeView{}, allocs: map[string]*Alloc{}, jobs: map[JobKey]map[string]*Alloc{},
		byNode: map[string]map[string]*Alloc{}, failed: map[JobKey]map[string]bool{}, usage: map[string]*nodeUsage{}, texts: map[string]string{},
		loads: map[string]*reading{},
		ready: make(chan struct{}), changed: make(chan struct{}), follow: newFollowed(),
		pins: pinned{jobs: map[JobKey]pinsOf{}, cards: map[pin]int{}},
	}
}

// Ready is closed once nodes and allocations were read for the first time.
func (w *World) Ready() <-chan struct{} { return w.ready }

// IsReady reports whether Ready is closed.
func (w *World) IsReady() bool {
	select {
	case <-w.ready:
		return true
	default:
		return false
	}
}

// Changed is closed at the next change; ask again for the one after.
func (w *World) Changed() <-chan struct{} {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.changed
}

// Traffic is how many allocations with devices were seen to begin and to end.
func (w *World) Traffic() (placed, left int64) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.placed, w.left
}

// AsOf is when Nomad was last heard from.
func (w *World) AsOf() time.Time {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.asOf
}

// Snapshot is the cluster for the engine. taken is what the ledger holds of each pool, reservations included;
// nil takes what the allocations hold.
func (w *World) Snapshot(taken Taken) engine.Snapshot {
	w.mu.RLock()
	defer w.mu.RUnlock()
	s := engine.Snapshot{Nodes: make([]engine.Node, 0, len(w.order))}
	for _, id := range w.order {
		s.Nodes = append(s.Nodes, w.engineNode(id, taken))
	}
	return s
}

func (w *World) engineNode(id string, taken Taken) engine.Node {
	n := w.nodeTaken(id, taken)
	w.pinnedOn(&n)
	return n
}

func (w *World) nodeTaken(id string, taken Taken) engine.Node {
	n := w.withLoad(w.nodes[id].engine)
	use, here := w.usage[id], taken[id]
	if len(here) == 0 && (use == nil || len(use.units) == 0) {
		if use != nil {
			n.UsedCPUMHz, n.UsedMemoryMiB, n.UsedDiskMiB = use.cpuMHz, use.memoryMiB, use.diskMiB
		}
		return n // nothing is taken of its cards: the pools are as they are, and Decide does not change them
	}
	if use != nil {
		n.UsedCPUMHz, n.UsedMemoryMiB, n.UsedDiskMiB = use.cpuMHz, use.memoryMiB, use.diskMiB
	}
	pools := make([]engine.Pool, len(n.Pools))
	copy(pools, n.Pools)
	holders := holdersIn(here)
	for i := range pools {
		p := &pools[i]
		if taken != nil {
			p.Used, p.Holders = here[p.Group], holders[p.Group]
		}
		if use == nil {
			continue
		}
		if taken == nil {
			p.Used = use.units[p.Group]
		}
		if use.units[p.Group] > 0 {
			cards := make([]engine.Card, len(p.Cards))
			copy(cards, p.Cards)
			for j := range cards {
				cards[j].UsedUnits = use.cards[cards[j].UUID]
			}
			p.Cards = cards
		}
	}
	n.Pools = pools
	return n
}

// Alone reports whether a tenant's share of a pool has to be alone on its card, and beside which other tenants it may be
// all the same.
func (w *World) Alone(nodeID, group, tenant string) (beside []string, alone bool) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	v := w.nodes[nodeID]
	if v == nil {
		return nil, false
	}
	for i := range v.engine.Pools {
		if p := &v.engine.Pools[i]; p.Group == group {
			return v.engine.Alone(p, tenant)
		}
	}
	return nil, false
}

// LiveAllocs are the live allocations of a job.
func (w *World) LiveAllocs(job JobKey) []*Alloc {
	w.mu.RLock()
	defer w.mu.RUnlock()
	out := make([]*Alloc, 0, len(w.jobs[job]))
	for _, a := range w.jobs[job] {
		out = append(out, a)
	}
	return out
}

// JobsWithDevices are the jobs whose live allocations hold devices.
func (w *World) JobsWithDevices() []JobKey {
	w.mu.RLock()
	defer w.mu.RUnlock()
	var out []JobKey
	for key, allocs := range w.jobs {
		for _, a := range allocs {
			if len(a.Devices) > 0 {
				out = append(out, key)
				break
			}
		}
	}
	return out
}

// NodeName is the name of a node, or its id when it is not known.
func (w *World) NodeName(id string) string {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if v := w.nodes[id]; v != nil {
		return v.engine.Name
	}
	return id
}

// CardView is one card with its node, its pool and who uses it.
type CardView struct {
	CardFacts
	NodeID, NodeName string
	NodeReady        bool
	In               engine.Pool // the pool it is offered in
	UsedUnits        int
	Uses             []CardUse
}

// CardUse is what one task holds of a card.
type CardUse struct {
	Alloc *Alloc
	Task  string
	Units int
}

// Cards lists every card of every node.
func (w *World) Cards() []CardView {
	w.mu.RLock()
	defer w.mu.RUnlock()
	uses := map[string][]CardUse{}
	for _, a := range w.allocs {
		if a.Live() {
			w.addUses(a, uses)
		}
	}
	var out []CardView
	for _, id := range w.order {
		v := w.nodes[id]
		pools := map[string]engine.Pool{}
		for _, p := range v.engine.Pools {
			pools[p.Group] = p
		}
		for _, c := range v.cards {
			view := CardView{CardFacts: c, NodeID: id, NodeName: v.engine.Name, NodeReady: v.engine.Ready, In: pools[c.Pool], Uses: uses[id+"/"+c.UUID]}
			for _, u := range view.Uses {
				view.UsedUnits += u.Units
			}
			out = append(out, view)
		}
	}
	return out
}

func (w *World) addUses(a *Alloc, uses map[string][]CardUse) {
	for _, d := range a.Devices {
		units := map[string]int{}
		for _, id := range d.IDs {
			units[w.cardOf(a.NodeID, d.Group, id)]++
		}
		for card, n := range units {
			key := a.NodeID + "/" + card
			uses[key] = append(uses[key], CardUse{Alloc: a, Task: d.Task, Units: n})
		}
	}
}

// cardOf is the card behind an instance; the instance itself when the node does not offer it any more.
func (w *World) cardOf(nodeID, group, instance string) string {
	if v := w.nodes[nodeID]; v != nil {
		if card, ok := v.owner[group][instance]; ok {
			return card
		}
	}
	return instance
}

// Catalog is what the cluster has, used or not.
func (w *World) Catalog() engine.Catalog {
	w.mu.RLock()
	have := w.catalog
	w.mu.RUnlock()
	if have != nil {
		return *have
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.catalog == nil {
		var s engine.Snapshot
		for _, id := range w.order {
			s.Nodes = append(s.Nodes, w.nodes[id].engine)
		}
		c := engine.CatalogOf(s)
		w.catalog = &c
	}
	return *w.catalog
}

// JobOf is the job of an allocation.
func (w *World) JobOf(allocID string) (JobKey, bool) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if a := w.allocs[allocID]; a != nil {
		return a.Job, true
	}
	return JobKey{}, false
}

// CardsOf are the cards behind instances of a device group, sorted, each once.
func (w *World) CardsOf(nodeID, group string, instances []string) []string {
	w.mu.RLock()
	defer w.mu.RUnlock()
	var out []string
	for _, id := range instances {
		if card := w.cardOf(nodeID, group, id); !slices.Contains(out, card) {
			out = append(out, card)
		}
	}
	slices.Sort(out)
	return out
}

// Pool is one device group of a node.
func (w *World) Pool(nodeID, group string) (engine.Pool, bool) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if v := w.nodes[nodeID]; v != nil {
		for _, p := range v.engine.Pools {
			if p.Group == group {
				return p, true
			}
		}
	}
	return engine.Pool{}, false
}

// find is an allocation, live or not; nil when it was never heard of.
func (w *World) find(allocID string) *Alloc {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.allocs[allocID]
}
