package openb

import (
	"container/heap"

	"github.com/heteroflow/heteroflow/placement-service/engine/potential"
)

// rooms are the cards of every node by name, which a state forgets.
type rooms struct {
	nodes []room
}

type room struct {
	state  potential.State
	models []int
	free   []int // thousandths of each card
}

func newRooms(x *potential.Index, nodes int) *rooms {
	r := &rooms{nodes: make([]room, nodes)}
	for n := range r.nodes {
		at := &r.nodes[n]
		at.state = x.State(n)
		for _, c := range at.state.Cards {
			if c != 0 {
				at.models = append(at.models, c.Model())
				at.free = append(at.free, c.Milli())
			}
		}
	}
	return r
}

// take books the pod and notes its cards in d.
func (r *rooms) take(d *departure, p *potential.Shape, least potential.Card) potential.State {
	at := &r.nodes[d.node]
	if p.Cards > 0 {
		for _, c := range at.state.Taken(p, least) {
			for i := range at.free {
				if at.models[i] == c.Model() && at.free[i] == c.Milli() && d.cards>>i&1 == 0 {
					d.cards |= 1 << i
					at.free[i] -= int(p.Milli)
					break
				}
			}
		}
	}
	at.state = at.state.Place(p, least)
	return at.state
}

// release gives back what the pod took.
func (r *rooms) release(d departure, p *potential.Shape) potential.State {
	at := &r.nodes[d.node]
	var cards []potential.Card
	for i := range at.free {
		if d.cards>>i&1 != 0 {
			at.free[i] += int(p.Milli)
		}
		cards = append(cards, potential.MakeCard(at.models[i], at.free[i]))
	}
	at.state = potential.MakeState(int(at.state.CPU+p.CPU), int(at.state.Memory+p.Memory), cards)
	return at.state
}

// departure is a pod that runs until a time.
type departure struct {
	at    float64
	pod   int
	node  int
	cards uint64 // that it took, as bits
}

type departures []departure

func (d departures) Len() int           { return len(d) }
func (d departures) Less(i, j int) bool { return d[i].at < d[j].at }
func (d departures) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *departures) Push(x any)        { *d = append(*d, x.(departure)) }
func (d *departures) Pop() any {
	last := len(*d) - 1
	x := (*d)[last]
	*d = (*d)[:last]
	return x
}
func (d *departures) push(x departure) { heap.Push(d, x) }
func (d *departures) pop() departure   { return heap.Pop(d).(departure) }
