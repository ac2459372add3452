package watch

import (
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/store"
)

// setNode takes a node in and reports whether anything that placement looks at changed: most updates of a node are
// about its allocations.
func (w *World) setNode(n *api.Node, now time.Time) bool {
	view := viewNode(n)
	w.mu.Lock()
	defer w.mu.Unlock()
	if old := w.nodes[n.ID]; old != nil && reflect.DeepEqual(old, view) {
		w.asOf = now
		return false
	}
	if w.nodes[n.ID] == nil {
		at, _ := slices.BinarySearch(w.order, n.ID)
		w.order = slices.Insert(w.order, at, n.ID)
	}
	w.shareTexts(view)
	w.nodes[n.ID], w.catalog = view, nil
	w.applyLoad(n.ID)
	w.recount(n.ID)
	w.touch(now)
	return true
}

// shareTexts lets equal models and forms be one text in memory. They are few, and a decision compares them for every
// pool of the cluster: equal pointers spare it reading the text of each.
func (w *World) shareTexts(view *nodeView) {
	for i := range view.engine.Pools {
		p := &view.engine.Pools[i]
		p.Model, p.Form = w.shared(p.Model), accel.Form(w.shared(string(p.Form)))
	}
}

func (w *World) shared(text string) string {
	if have, ok := w.texts[text]; ok {
		return have
	}
	w.texts[text] = text
	return text
}

func poolsOf(id string, view *nodeView) []store.Pool {
	pools := make([]store.Pool, 0, len(view.engine.Pools))
	for _, p := range view.engine.Pools {
		pools = append(pools, store.Pool{NodeID: id, Group: p.Group, Capacity: p.Total, UnitMiB: p.UnitMiB})
	}
	return pools
}

// dropNodes forgets the nodes that keep does not hold and returns their ids.
func (w *World) dropNodes(keep map[string]bool, now time.Time) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var gone []string
	w.order = slices.DeleteFunc(w.order, func(id string) bool {
		if keep[id] {
			return false
		}
		gone = append(gone, id)
		delete(w.nodes, id)
		delete(w.usage, id)
		delete(w.loads, id)
		w.follow.stale[id] = true
		return true
	})
	if len(gone) > 0 {
		w.catalog = nil
		w.touch(now)
	}
	return gone
}

// setAllocs replaces all allocations and returns the jobs whose holdings changed.
func (w *World) setAllocs(list []*Alloc, now time.Time) []JobKey {
	w.mu.Lock()
	defer w.mu.Unlock()
	next := make(map[string]*Alloc, len(list))
	for _, a := range list {
		if old := w.allocs[a.ID]; old != nil && old.modify > a.modify {
			a = old // an event ran ahead of the list
		}
		next[a.ID] = a
	}
	touched := map[JobKey]bool{}
	for id, a := range next {
		a.hear(w.allocs[id], now)
		if holdingChanged(w.allocs[id], a) || w.allocs[id].failed() != a.failed() {
			touched[a.Job] = true
			if a.holds() {
				w.unpin(a.Job, a.NodeID)
			}
		}
	}
	for id, old := range w.allocs {
		if next[id] == nil && old.Live() && len(old.Devices) > 0 {
			touched[old.Job] = true
		}
	}
	w.allocs = next
	clear(w.jobs)
	clear(w.byNode)
	clear(w.failed)
	for _, a := range next {
		w.index(a)
	}
	clear(w.usage)
	for _, id := range w.order {
		w.recount(id)
	}
	w.touch(now)
	return slices.Collect(maps.Keys(touched))
}

// setAlloc takes one allocation in. It reports whether what its job holds changed.
func (w *World) setAlloc(a *Alloc, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	old := w.allocs[a.ID]
	if old != nil && old.modify > a.modify {
		return false
	}
	if old != nil && len(a.Devices) == 0 && a.CPUMHz == 0 { // an event without resources
		a.Devices, a.CPUMHz, a.MemoryMiB, a.DiskMiB = old.Devices, old.CPUMHz, old.MemoryMiB, old.DiskMiB
	}
	w.allocs[a.ID] = a
	switch had, has := old.holds(), a.holds(); {
	case has && !had:
		w.placed++
	case had && !has:
		w.left++
	}
	a.hear(old, now)
	changed := holdingChanged(old, a)
	w.index(a)
	if a.holds() && changed {
		w.unpin(a.Job, a.NodeID)
	}
	if old == nil || changed || old.Live() != a.Live() {
		w.recount(a.NodeID)
	}
	w.touch(now)
	return changed || old.failed() != a.failed()
}

// holds reports whether the allocation, which may be nil, holds devices.
func (a *Alloc) holds() bool { return a != nil && a.Live() && len(a.Devices) > 0 }

// holdingChanged reports whether the devices held changed.
func holdingChanged(old, now *Alloc) bool {
	var was, is []Device
	if old != nil && old.Live() {
		was = old.Devices
	}
	if now.Live() {
		is = now.Devices
	}
	return !slices.EqualFunc(was, is, func(a, b Device) bool {
		return a.Task == b.Task && a.Group == b.Group && slices.Equal(a.IDs, b.IDs)
	})
}

// hear notes when it was first heard that an allocation failed.
func (a *Alloc) hear(old *Alloc, now time.Time) {
	switch {
	case !a.failed():
	case old.failed():
		a.heard = old.heard
	default:
		a.heard = now
	}
}

func (w *World) index(a *Alloc) {
	w.noteFailed(a)
	if a.Live() {
		put(w.jobs, a.Job, a)
		put(w.byNode, a.NodeID, a)
		return
	}
	drop(w.jobs, a.Job, a)
	drop(w.byNode, a.NodeID, a)
}

func put[K comparable](m map[K]map[string]*Alloc, key K, a *Alloc) {
	if m[key] == nil {
		m[key] = map[string]*Alloc{}
	}
	m[key][a.ID] = a
}

func drop[K comparable](m map[K]map[string]*Alloc, key K, a *Alloc) {
	delete(m[key], a.ID)
	if len(m[key]) == 0 {
		delete(m, key)
	}
}

// recount sums up what live allocations hold on a node.
func (w *World) recount(nodeID string) {
	use := &nodeUsage{cards: map[string]int{}, units: map[string]int{}}
	for _, a := range w.byNode[nodeID] {
		use.cpuMHz += a.CPUMHz
		use.memoryMiB += a.MemoryMiB
		use.diskMiB += a.DiskMiB
		for _, d := range a.Devices {
			use.units[d.Group] += len(d.IDs)
			for _, id := range d.IDs {
				use.cards[w.cardOf(nodeID, d.Group, id)]++
			}
		}
	}
	w.usage[nodeID] = use
	w.follow.stale[nodeID] = true
}

func (w *World) touch(now time.Time) {
	w.asOf = now
	if !w.isReady[nodesPart] || !w.isReady[allocsPart] {
		return
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

// loaded notes that a part was read whole. found tells that it had been lost.
func (w *World) loaded(part int, now time.Time) (found bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	found = w.lost[part]
	w.isReady[part], w.lost[part] = true, false
	w.asOf = now
	if w.isReady[nodesPart] && w.isReady[allocsPart] {
		select {
		case <-w.ready:
		default:
			close(w.ready)
			close(w.changed)
			w.changed = make(chan struct{})
		}
	}
	return found
}

// heard notes that Nomad answered, with nothing new. found tells that it had been silent for long.
func (w *World) heard(now time.Time) (found bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	found = now.Sub(w.asOf) > silence
	w.asOf = now
	return found
}

// allocOf reads an allocation as it comes in an event.
func allocOf(a *api.Allocation) *Alloc {
	out := &Alloc{
		ID: a.ID, Job: JobKey{a.Namespace, a.JobID}, Group: a.TaskGroup, Index: indexOf(a.Name), NodeID: a.NodeID,
		Client: a.ClientStatus, Desired: a.DesiredStatus, Started: startOf(a.TaskStates), Followup: a.FollowupEvalID, Next: a.NextAllocation, modify: a.ModifyIndex,
	}
	out.take(a.AllocatedResources)
	return out
}

// allocOfStub reads an allocation as it comes in a list.
func allocOfStub(a *api.AllocationListStub) *Alloc {
	out := &Alloc{
		ID: a.ID, Job: JobKey{a.Namespace, a.JobID}, Group: a.TaskGroup, Index: indexOf(a.Name), NodeID: a.NodeID,
		Client: a.ClientStatus, Desired: a.DesiredStatus, Started: startOf(a.TaskStates), Followup: a.FollowupEvalID, Next: a.NextAllocation, modify: a.ModifyIndex,
	}
	out.take(a.AllocatedResources)
	return out
}

// indexOf is the number at the end of an allocation's name: train.workers[3].
func indexOf(name string) int {
	at := strings.LastIndexByte(name, '[')
	n, err := strconv.Atoi(strings.TrimSuffix(name[at+1:], "]"))
	if at < 0 || err != nil {
		return 0
	}
	return n
}

// startOf is when the first task of an allocation started.
func startOf(tasks map[string]*api.TaskState) time.Time {
	var first time.Time
	for _, t := range tasks {
		if t != nil && !t.StartedAt.IsZero() && (first.IsZero() || t.StartedAt.Before(first)) {
			first = t.StartedAt
		}
	}
	return first
}

func (a *Alloc) take(r *api.AllocatedResources) {
	if r == nil {
		return
	}
	a.DiskMiB = int(r.Shared.DiskMB)
	for _, task := range slices.Sorted(maps.Keys(r.Tasks)) {
		res := r.Tasks[task]
		if res == nil {
			continue
		}
		a.CPUMHz += int(res.Cpu.CpuShares)
		a.MemoryMiB += int(res.Memory.MemoryMB)
		for _, d := range res.Devices {
			if d == nil {
				continue
			}
			if !accel.IsCard(d.Vendor, d.Type) {
				continue // another kind of device
			}
			a.Devices = append(a.Devices, Device{Task: task, Group: d.Vendor + "/" + d.Type + "/" + d.Name, IDs: slices.Sorted(slices.Values(d.DeviceIDs))})
		}
	}
}
