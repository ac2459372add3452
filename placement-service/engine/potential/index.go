package potential

import "github.com/heteroflow/heteroflow/placement-service/engine/index"

// Index finds the node on which a shape costs least, and of several the one with the lowest number.
type Index struct {
	*index.Index[State, Shape, place]
}

// place is what a shape costs on a node, and the card for State.Place.
type place struct {
	cost float32
	room Card
}

// judgements is how many costs are kept, about 25 bytes each.
const judgements = 16 << 20

// NewIndex is an index without nodes.
func NewIndex(scorer Scorer) *Index {
	return &Index{index.New[State, Shape, place](judge{scorer}, judgements)}
}

// Choose is the node where the shape costs least, and the card for State.Place.
func (x *Index) Choose(p *Shape) (node int, room Card, ok bool) {
	node, at, ok := x.Index.Choose(p)
	return node, at.room, ok
}

// judge has a scorer say what states are worth.
type judge struct{ Scorer }

func (j judge) Judge(_ int, s *State, p *Shape) (place, bool) {
	cost, room, ok := j.Cost(s, p)
	return place{cost, room}, ok
}

func (judge) Better(a, b place) bool { return a.cost < b.cost }

func (judge) Before(a, b int) bool { return a < b }
