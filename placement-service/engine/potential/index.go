package potential

import (
	"math"
	"slices"
)

// Index finds the node on which a shape costs least, and of several the one with the lowest number. It keeps costs by
// shape and distinct state, so that a decision looks only at what changed since the shape was last asked for.
type Index struct {
	scorer   Scorer
	ids      map[State]int32
	states   []State
	members  []members // by state
	of       []int32   // state of each node, -1 when it is not there
	shapes   map[Shape]*ranking
	log      []int32 // states that got a node, or one with a lower number, in order
	logStart int     // number of the first entry of log
	alive    int     // states that have nodes
	spare    int     // states without nodes that are always kept
}

// members are the nodes in one state.
type members struct {
	count int
	heap  []int32 // node numbers, lowest first; some may have left
}

// maxRankings is of how many shapes costs are kept when states are forgotten.
const maxRankings = 512

// ranking is what one shape knows of the states.
type ranking struct {
	seen   int // of the log
	epoch  int
	costs  []float32 // by state; NaN where not known, +Inf where the shape does not fit
	rooms  []Card
	listed []int32 // by state: the node number with which it is in order, -1 when it is not
	order  []entry // a heap
}

type entry struct {
	cost  float32
	node  int32
	state int32
}

func (a entry) less(b entry) bool { return a.cost < b.cost || a.cost == b.cost && a.node < b.node }

// NewIndex is an index without nodes.
func NewIndex(scorer Scorer) *Index {
	return &Index{scorer: scorer, spare: 16 * 1024, ids: map[State]int32{}, shapes: map[Shape]*ranking{}}
}

// Set says that the node has this state now.
func (x *Index) Set(node int, s State) {
	for len(x.of) <= node {
		x.of = append(x.of, -1)
	}
	id, ok := x.ids[s]
	if !ok {
		x.compact()
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
	pushNode(&m.heap, int32(node))
	if first < 0 || int32(node) < first {
		x.note(id)
	}
}

// Remove says that the node is not there any more.
func (x *Index) Remove(node int) {
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

// first is the lowest node in the state, -1 when there is none.
func (x *Index) first(id int32) int32 {
	m := &x.members[id]
	if m.count == 0 {
		return -1
	}
	for x.of[m.heap[0]] != id {
		popNode(&m.heap)
	}
	return m.heap[0]
}

// tidy makes the state's heap anew, each of its nodes in it once.
func (x *Index) tidy(id int32) {
	m := &x.members[id]
	slices.Sort(m.heap)
	m.heap = slices.DeleteFunc(slices.Compact(m.heap), func(n int32) bool { return x.of[n] != id })
}

// compact forgets states without nodes when they are most, and shapes that were not asked for for longest.
func (x *Index) compact() {
	if len(x.states) < 4*x.alive+x.spare {
		return
	}
	for len(x.shapes) > maxRankings {
		var oldest Shape
		least := math.MaxInt
		for shape, r := range x.shapes {
			if r.seen < least || r.seen == least && compareShapes(&shape, &oldest) < 0 {
				oldest, least = shape, r.seen
			}
		}
		delete(x.shapes, oldest)
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
	for _, r := range x.shapes {
		r.keep(kept)
	}
	x.logStart += len(x.log)
	x.log = x.log[:0]
}

func (x *Index) note(id int32) {
	if len(x.log) > 4*x.alive+4096 {
		drop := len(x.log) / 2
		x.log = append(x.log[:0], x.log[drop:]...)
		x.logStart += drop
	}
	x.log = append(x.log, id)
}

// State is the state of the node.
func (x *Index) State(node int) State { return x.states[x.of[node]] }

// Choose is the node where the shape costs least, and the card for State.Place.
func (x *Index) Choose(p *Shape) (node int, room Card, ok bool) {
	r := x.refresh(p)
	for len(r.order) > 0 {
		e := r.order[0]
		if r.listed[e.state] != e.node {
			r.pop()
			continue
		}
		n := x.first(e.state)
		if n < 0 {
			r.listed[e.state] = -1
			r.pop()
			continue
		}
		if n != e.node {
			r.listed[e.state] = n
			r.order[0].node = n
			r.down(0)
			continue
		}
		return int(n), r.rooms[e.state], true
	}
	return 0, 0, false
}

func (x *Index) refresh(p *Shape) *ranking {
	r := x.shapes[*p]
	epoch := x.scorer.Epoch()
	if r == nil {
		r = &ranking{seen: -1, epoch: epoch}
		x.shapes[*p] = r
	}
	for len(r.costs) < len(x.states) {
		r.costs, r.rooms = append(r.costs, float32(math.NaN())), append(r.rooms, 0)
	}
	for len(r.listed) < len(x.states) {
		r.listed = append(r.listed, -1)
	}
	if r.epoch != epoch {
		r.epoch, r.seen = epoch, -1
		for i := range r.costs {
			r.costs[i] = float32(math.NaN())
		}
	}
	if r.seen < x.logStart {
		r.order = r.order[:0]
		for id := range x.states {
			r.listed[id] = -1
			if x.members[id].count > 0 {
				x.list(r, p, int32(id))
			}
		}
	} else {
		for _, id := range x.log[r.seen-x.logStart:] {
			if x.members[id].count > 0 {
				x.list(r, p, id)
			}
		}
	}
	r.seen = x.logStart + len(x.log)
	return r
}

// list puts a state into the order where it is not, or where its lowest node became a lower one.
func (x *Index) list(r *ranking, p *Shape, id int32) {
	cost := r.costs[id]
	if cost != cost {
		c, room, ok := x.scorer.Cost(&x.states[id], p)
		if !ok {
			c = float32(math.Inf(1))
		}
		cost = c
		r.costs[id], r.rooms[id] = cost, room
	}
	if math.IsInf(float64(cost), 1) {
		return
	}
	first := x.first(id)
	if at := r.listed[id]; at >= 0 && at <= first {
		return
	}
	r.listed[id] = first
	r.order = append(r.order, entry{cost, first, id})
	r.up(len(r.order) - 1)
}

// keep forgets all states but these, which get the numbers 0, 1, … in this order; what they cost stays known.
func (r *ranking) keep(states []int32) {
	var costs []float32
	var rooms []Card
	for _, id := range states {
		if int(id) >= len(r.costs) {
			break // states came in the order of their numbers: the shape knows none of the later ones
		}
		costs, rooms = append(costs, r.costs[id]), append(rooms, r.rooms[id])
	}
	r.costs, r.rooms, r.listed, r.order, r.seen = costs, rooms, nil, nil, -1
}

func (r *ranking) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !r.order[i].less(r.order[parent]) {
			return
		}
		r.order[i], r.order[parent] = r.order[parent], r.order[i]
		i = parent
	}
}

func (r *ranking) down(i int) {
	for {
		least := i
		for _, child := range [2]int{2*i + 1, 2*i + 2} {
			if child < len(r.order) && r.order[child].less(r.order[least]) {
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

func (r *ranking) pop() {
	last := len(r.order) - 1
	r.order[0] = r.order[last]
	r.order = r.order[:last]
	r.down(0)
}

func pushNode(h *[]int32, node int32) {
	*h = append(*h, node)
	for i := len(*h) - 1; i > 0; {
		parent := (i - 1) / 2
		if (*h)[parent] <= (*h)[i] {
			return
		}
		(*h)[i], (*h)[parent] = (*h)[parent], (*h)[i]
		i = parent
	}
}

func popNode(h *[]int32) {
	last := len(*h) - 1
	(*h)[0] = (*h)[last]
	*h = (*h)[:last]
	for i := 0; ; {
		least := i
		for _, child := range [2]int{2*i + 1, 2*i + 2} {
			if child < last && (*h)[child] < (*h)[least] {
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
