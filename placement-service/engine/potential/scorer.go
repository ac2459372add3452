package potential

// Scorer says what it costs to place a shape on a node.
type Scorer interface {
	// Cost is lowest for the best node; room is the card that State.Place takes. Where ok is false the shape does not
	// fit. Equal arguments have equal costs until Epoch changes.
	Cost(s *State, p *Shape) (cost float32, room Card, ok bool)
	// Epoch changes when costs may have changed.
	Epoch() int
}
