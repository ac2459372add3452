// Package index finds the best of many nodes for a kind of request without looking at all of them: nodes in the same
// state are judged once for each kind, and a search looks only at the states that changed since the kind was asked for
// last. What a state, a kind and a judgement are belongs to who uses it.
package index

import "slices"

// Judge says what states are worth. Equal arguments have equal judgements until Epoch changes.
type Judge[S, K comparable, V any] interface {
	// Judge says what a node in the state is worth to the kind, or why it does not fit. The node is one that is in it.
	Judge(node int, s *S, k *K) (v V, fits bool)
	// Better reports whether a node that is worth a comes before one that is worth b. Both fit.
	Better(a, b V) bool
	// Before orders nodes that are worth the same.
	Before(a, b int) bool
	// Epoch changes when judgements may have changed.
	Epoch() int
}

// Index holds nodes by number, small numbers from 0. It is not safe for concurrent use.
type Index[S, K comparable, V any] struct {
	judge    Judge[S, K, V]
	ids      map[S]int32
	states   []S
	members  []members // by state
	of       []int32   // state of each node, -1 when it is not there
	kinds    map[K]*ranking[V]
	log      []int32 // states that got a node, or one that comes earlier, in order
	logStart int     // number of the first entry of log
	alive    int     // states that have nodes
	spare    int     // states without nodes that are always kept
	most     int     // judgements that are kept
}

// members are the nodes in one state.
type members struct {
	count int
	heap  []int32 // node numbers, the first one first; some may have left
}

// ranking is what one kind knows of the states.
type ranking[V any] struct {
	seen   int // of the log
	epoch  int
	values []V
	told   []verdict // by state
	listed []int32   // by state: the node with which it is in order, -1 when it is not
	order  []entry   // a heap
}

type verdict uint8

const (
	unknown verdict = iota
	fits
	not
)

type entry struct{ node, state int32 }

// New is an index without nodes that keeps about most judgements.
func New[S, K comparable, V any](judge Judge[S, K, V], most int) *Index[S, K, V] {
	return &Index[S, K, V]{judge: judge, spare: 16 * 1024, most: most, ids: map[S]int32{}, kinds: map[K]*ranking[V]{}}
}

// Set says that the node has this state now.
func (x *Index[S, K, V]) Set(node int, s S) {
	for len(x.of) <= node {
		x.of = append(x.of, -1)
	}
	id, ok := x.ids[s]
	if !ok {
		x.compact()
		x.forget()
		id = int32(len(x.states))
		x.ids[s] = id
		x.states = append(x.states, s)
		x.members = append(x.members, members{})
	}
	if x.of[node] == id {
		return
	}
	x.Remove(node)
	x.of[node] = id
	m := &x.members[id]
	first := x.first(id)
	m.count++
	if m.count == 1 {
		x.alive++
	}
	if len(m.heap) > 2*m.count+16 { // nodes that left and came back are in it more than once
		x.tidy(id)
	}
	x.pushNode(&m.heap, int32(node))
	if first < 0 || x.judge.Before(node, int(first)) {
		x.note(id)
	}
}

// Remove says that the node is not there any more.
func (x *Index[S, K, V]) Remove(node int) {
	if node >= len(x.of) || x.of[node] < 0 {
		return
	}
	m := &x.members[x.of[node]]
	m.count--
	if m.count == 0 {
		x.alive--
		m.heap = m.heap[:0]
	}
	x.of[node] = -1
}

// first is the first node in the state, -1 when there is none.
func (x *Index[S, K, V]) first(id int32) int32 {
	m := &x.members[id]
	if m.count == 0 {
		return -1
	}
	for x.of[m.heap[0]] != id {
		x.popNode(&m.heap)
	}
	return m.heap[0]
}

// tidy makes the state's heap anew, each of its nodes in it once.
func (x *Index[S, K, V]) tidy(id int32) {
	m := &x.members[id]
	slices.SortFunc(m.heap, func(a, b int32) int {
		switch {
		case a == b:
			return 0
		case x.judge.Before(int(a), int(b)):
			return -1
		}
		return 1
	})
	m.heap = slices.DeleteFunc(slices.Compact(m.heap), func(n int32) bool { return x.of[n] != id })
}

// compact forgets states without nodes when they are most.
func (x *Index[S, K, V]) compact() {
	if len(x.states) < 2*x.alive+x.spare {
		return
	}
	var kept []int32 // old numbers
	for id := range x.states {
		if x.members[id].count > 0 {
			x.tidy(int32(id))
			kept = append(kept, int32(id))
		}
	}
	renumbered := make([]int32, len(x.states))
	clear(x.ids)
	for id, old := range kept {
		renumbered[old] = int32(id)
		x.states[id], x.members[id] = x.states[old], x.members[old]
		x.ids[x.states[id]] = int32(id)
	}
	x.states, x.members = slices.Clone(x.states[:len(kept)]), slices.Clone(x.members[:len(kept)])
	for n, old := range x.of {
		if old >= 0 {
			x.of[n] = renumbered[old]
		}
	}
	for _, r := range x.kinds {
		r.keep(kept)
	}
	x.logStart += len(x.log)
	x.log = x.log[:0]
}

// forget drops the kinds that were not asked for for longest until one more has room.
func (x *Index[S, K, V]) forget() {
	for len(x.kinds) > 0 && (len(x.kinds)+1)*len(x.states) > x.most {
		var oldest K
		first := true
		for k, r := range x.kinds {
			if first || r.seen < x.kinds[oldest].seen {
				oldest, first = k, false
			}
		}
		delete(x.kinds, oldest)
	}
}

func (x *Index[S, K, V]) note(id int32) {
	if len(x.log) > 4*x.alive+4096 {
		drop := len(x.log) / 2
		x.log = append(x.log[:0], x.log[drop:]...)
		x.logStart += drop
	}
	x.log = append(x.log, id)
}

// State is the state of a node that is there.
func (x *Index[S, K, V]) State(node int) S { return x.states[x.of[node]] }

// Choose is the best node for the kind and what it is worth.
func (x *Index[S, K, V]) Choose(k *K) (node int, v V, ok bool) {
	r := x.refresh(k)
	for len(r.order) > 0 {
		e := r.order[0]
		if r.listed[e.state] != e.node {
			x.pop(r)
			continue
		}
		n := x.first(e.state)
		if n < 0 {
			r.listed[e.state] = -1
			x.pop(r)
			continue
		}
		if n != e.node {
			r.listed[e.state] = n
			r.order[0].node = n
			x.down(r, 0)
			continue
		}
		return int(n), r.values[e.state], true
	}
	return 0, v, false
}

// Each calls yield with every state that has nodes: its first node, how many there are, and what was judged of them. Of
// those that do not fit the judgement may be changed, and is remembered so.
func (x *Index[S, K, V]) Each(k *K, yield func(first, nodes int, v *V, fit bool)) {
	r := x.refresh(k)
	for id := range x.states {
		if n := x.members[id].count; n > 0 {
			yield(int(x.first(int32(id))), n, &r.values[id], r.told[id] == fits)
		}
	}
}

func (x *Index[S, K, V]) refresh(k *K) *ranking[V] {
	r, epoch := x.kinds[*k], x.judge.Epoch()
	if r == nil {
		x.forget()
		r = &ranking[V]{seen: -1, epoch: epoch}
		x.kinds[*k] = r
	}
	if n := len(x.states) - len(r.told); n > 0 {
		r.values, r.told = append(r.values, make([]V, n)...), append(r.told, make([]verdict, n)...)
	}
	for len(r.listed) < len(x.states) {
		r.listed = append(r.listed, -1)
	}
	if r.epoch != epoch {
		r.epoch, r.seen = epoch, -1
		clear(r.told)
	}
	if r.seen < x.logStart {
		r.order = r.order[:0]
		for id := range x.states {
			r.listed[id] = -1
			if x.members[id].count > 0 {
				x.list(r, k, int32(id))
			}
		}
	} else {
		for _, id := range x.log[r.seen-x.logStart:] {
			if x.members[id].count > 0 {
				x.list(r, k, id)
			}
		}
	}
	r.seen = x.logStart + len(x.log)
	return r
}

// list puts a state into the order where it is not, or where its first node became an earlier one.
func (x *Index[S, K, V]) list(r *ranking[V], k *K, id int32) {
	first := x.first(id)
	if r.told[id] == unknown {
		v, ok := x.judge.Judge(int(first), &x.states[id], k)
		if r.values[id], r.told[id] = v, not; ok {
			r.told[id] = fits
		}
	}
	if r.told[id] == not {
		return
	}
	if at := r.listed[id]; at >= 0 && (at == first || x.judge.Before(int(at), int(first))) {
		return
	}
	r.listed[id] = first
	r.order = append(r.order, entry{first, id})
	x.up(r, len(r.order)-1)
}

// keep forgets all states but these, which get the numbers 0, 1, … in this order; what they are worth stays known.
func (r *ranking[V]) keep(states []int32) {
	var values []V
	var told []verdict
	for _, id := range states {
		if int(id) >= len(r.told) {
			break // states came in the order of their numbers: the kind knows none of the later ones
		}
		values, told = append(values, r.values[id]), append(told, r.told[id])
	}
	r.values, r.told, r.listed, r.order, r.seen = values, told, nil, nil, -1
}

func (x *Index[S, K, V]) less(r *ranking[V], a, b entry) bool {
	if a.state != b.state {
		if va, vb := r.values[a.state], r.values[b.state]; x.judge.Better(va, vb) {
			return true
		} else if x.judge.Better(vb, va) {
			return false
		}
	}
	return a.node != b.node && x.judge.Before(int(a.node), int(b.node))
}

func (x *Index[S, K, V]) up(r *ranking[V], i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !x.less(r, r.order[i], r.order[parent]) {
			return
		}
		r.order[i], r.order[parent] = r.order[parent], r.order[i]
		i = parent
	}
}

func (x *Index[S, K, V]) down(r *ranking[V], i int) {
	for {
		least := i
		for _, child := range [2]int{2*i + 1, 2*i + 2} {
			if child < len(r.order) && x.less(r, r.order[child], r.order[least]) {
				least = child
			}
		}
		if least == i {
			return
		}
		r.order[i], r.order[least] = r.order[least], r.order[i]
		i = least
	}
}

func (x *Index[S, K, V]) pop(r *ranking[V]) {
	last := len(r.order) - 1
	r.order[0] = r.order[last]
	r.order = r.order[:last]
	x.down(r, 0)
}

func (x *Index[S, K, V]) pushNode(h *[]int32, node int32) {
	*h = append(*h, node)
	for i := len(*h) - 1; i > 0; {
		parent := (i - 1) / 2
		if !x.judge.Before(int((*h)[i]), int((*h)[parent])) {
			return
		}
		(*h)[i], (*h)[parent] = (*h)[parent], (*h)[i]
		i = parent
	}
}

func (x *Index[S, K, V]) popNode(h *[]int32) {
	last := len(*h) - 1
	(*h)[0] = (*h)[last]
	*h = (*h)[:last]
	for i := 0; ; {
		least := i
		for _, child := range [2]int{2*i + 1, 2*i + 2} {
			if child < last && x.judge.Before(int((*h)[child]), int((*h)[least])) {
				least = child
			}
		}
		if least == i {
			return
		}
		(*h)[i], (*h)[least] = (*h)[least], (*h)[i]
		i = least
	}
}
