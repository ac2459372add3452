package openb

import (
	"container/heap"

	"github.com/heteroflow/heteroflow/placement-service/engine/potential"
)

// scored places by a scorer alone.
type scored struct {
	index *potential.Index
	heard listener
	nodes []room // by rank
}

// room is the cards of a node by name, which a state forgets.
type room struct {
	models []int
	free   []int // thousandths of each card
}

func (c *Cluster) scored(ranks []int, scorer potential.Scorer) *scored {
	on := &scored{index: potential.NewIndex(scorer), heard: listening(scorer), nodes: make([]room, len(c.Nodes))}
	for i, s := range c.Nodes {
		on.index.Set(ranks[i], s)
		at := &on.nodes[ranks[i]]
		for _, card := range s.Cards {
			if card != 0 {
				at.models = append(at.models, card.Model())
				at.free = append(at.free, card.Milli())
			}
		}
	}
	return on
}

func (on *scored) place(p *potential.Shape) (end func()) {
	node, least, ok := on.index.Choose(p)
	if !ok {
		return nil
	}
	at, before := &on.nodes[node], on.index.State(node)
	var took []int // numbers of cards
	if p.Cards > 0 {
		took = at.take(before.Taken(p, least), int(p.Milli))
	}
	on.index.Set(node, before.Place(p, least))
	on.heard.Placed()
	return func() {
		for _, i := range took {
			at.free[i] += int(p.Milli)
		}
		now := on.index.State(node)
		on.index.Set(node, at.state(int(now.CPU+p.CPU), int(now.Memory+p.Memory)))
		on.heard.Left()
	}
}

// take books as much on cards with this room and gives their numbers.
func (r *room) take(cards []potential.Card, milli int) []int {
	took := make([]int, 0, len(cards))
	left := uint64(0) // cards that were taken, as bits
	for _, c := range cards {
		for i := range r.free {
			if r.models[i] == c.Model() && r.free[i] == c.Milli() && left>>i&1 == 0 {
				left |= 1 << i
				took = append(took, i)
				break
			}
		}
	}
	for _, i := range took {
		r.free[i] -= milli
	}
	return took
}

func (r *room) state(cpu, memory int) potential.State {
	var cards []potential.Card
	for i := range r.free {
		cards = append(cards, potential.MakeCard(r.models[i], r.free[i]))
	}
	return potential.MakeState(cpu, memory, cards)
}

// departure is a pod that runs until a time.
type departure struct {
	at     float64
	demand int // thousandths of a card
	end    func()
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
