package potential

// Whole is the room of a card that nobody uses, in thousandths of the card.
const Whole = 1000

// MaxCards is how many cards of a node are told apart. Of a node with more, those with most room are seen.
const MaxCards = 16

// MaxModels is how many card models are told apart; their numbers are 0 to MaxModels-1.
const MaxModels = 64

// Card is the room left on one card: its model and 1 to Whole thousandths. A card without room is the zero Card.
type Card uint16

// MakeCard is a card of the model with that much room, 0 to Whole thousandths of the card.
func MakeCard(model, milli int) Card {
	if milli <= 0 {
		return 0
	}
	return Card(model<<10 | min(milli, Whole))
}

// Milli is the room in thousandths of the card.
func (c Card) Milli() int { return int(c & 1023) }

// Model is the number of the card's model. It says nothing when there is no room.
func (c Card) Model() int { return int(c >> 10) }

// State is what is free on a node. States are compared with ==: Cards are in descending order, so that nodes on which
// the same can be placed have the same state.
type State struct {
	CPU    int32 // thousandths of a core
	Memory int32 // MiB
	Cards  [MaxCards]Card
}

// MakeState is the state of a node with these cards, in any order.
func MakeState(cpuMilli, memoryMiB int, cards []Card) State {
	s := State{CPU: int32(cpuMilli), Memory: int32(memoryMiB)}
	for _, c := range cards {
		s.Add(c)
	}
	return s
}

// Add puts a card at its place in the order. The one with least room is forgotten where there are too many.
func (s *State) Add(c Card) {
	for i := range s.Cards {
		if c > s.Cards[i] {
			c, s.Cards[i] = s.Cards[i], c
		}
	}
}

// Shape is what a request asks of one node. Requests of equal shape are placed alike.
type Shape struct {
	CPU    int32  `json:"cpu_milli"`        // thousandths of a core
	Memory int32  `json:"memory_mib"`       // MiB
	Cards  int16  `json:"cards,omitempty"`  // distinct cards of one model; 0 for a request that asks for none
	Milli  int16  `json:"milli,omitempty"`  // of each card, 1 to Whole
	Models uint64 `json:"models,omitempty"` // accepted models as bits 1<<number; 0 accepts any
}

// Demand is how much card the shape asks for, in thousandths of a card.
func (p *Shape) Demand() int { return int(p.Cards) * int(p.Milli) }

// accepts reports whether the shape may use cards of the model.
func (p *Shape) accepts(model int) bool { return p.Models == 0 || p.Models>>model&1 != 0 }

// rooms calls yield with each card of the node that can be the one with least room among those that the shape takes,
// each different one once, those with least room first. For a shape without cards it is the zero Card.
func (s *State) rooms(p *Shape, yield func(Card)) {
	if p.CPU > s.CPU || p.Memory > s.Memory {
		return
	}
	if p.Cards == 0 {
		yield(0)
		return
	}
	for i := MaxCards - 1; i >= int(p.Cards)-1; i-- {
		c := s.Cards[i]
		if c.Milli() < int(p.Milli) || i+1 < MaxCards && s.Cards[i+1] == c || !p.accepts(c.Model()) {
			continue
		}
		if s.Cards[i+1-int(p.Cards)].Model() == c.Model() {
			yield(c)
		}
	}
}

// fullest is the room with least to spare, as rooms says it first.
func (s *State) fullest(p *Shape) (room Card, ok bool) {
	s.rooms(p, func(c Card) {
		if !ok {
			room, ok = c, true
		}
	})
	return room, ok
}

// roomWith is the card with least room of those that the shape takes when it takes c: c itself, or where fewer of its
// model have as much, the one with least room among those with most.
func (s *State) roomWith(p *Shape, c Card) (room Card, ok bool) {
	if p.CPU > s.CPU || p.Memory > s.Memory || c == 0 || p.Cards < 1 || !p.accepts(c.Model()) {
		return 0, false
	}
	first, last := -1, -1
	for i, have := range s.Cards {
		if first < 0 && have != 0 && have.Model() == c.Model() {
			first = i
		}
		if have == c {
			last = i
		}
	}
	if last < 0 {
		return 0, false // it has least room of more than MaxCards
	}
	if last = max(last, first+int(p.Cards)-1); last >= MaxCards {
		return 0, false
	}
	room = s.Cards[last]
	return room, room != 0 && room.Model() == c.Model() && room.Milli() >= int(p.Milli)
}

// Fits reports whether the shape can be placed on a node in this state.
func (s *State) Fits(p *Shape) bool {
	_, ok := s.fullest(p)
	return ok
}

// Taken are the cards that the shape takes from the node when the one of them with least room is room.
func (s *State) Taken(p *Shape, room Card) []Card {
	last := 0
	for i, c := range s.Cards {
		if c == room {
			last = i
		}
	}
	return s.Cards[last+1-int(p.Cards) : last+1]
}

// Place is the state after the shape took its cards, of which the one with least room is room.
func (s *State) Place(p *Shape, room Card) State {
	after := *s
	after.CPU -= p.CPU
	after.Memory -= p.Memory
	if p.Cards == 0 {
		return after
	}
	last := MaxCards - 1
	for s.Cards[last] != room {
		last--
	}
	first := last + 1 - int(p.Cards)
	copy(after.Cards[first:], s.Cards[last+1:])
	clear(after.Cards[MaxCards-int(p.Cards):])
	if p.Milli < Whole {
		for _, c := range s.Cards[first : last+1] {
			after.Add(MakeCard(c.Model(), c.Milli()-int(p.Milli)))
		}
	}
	return after
}

// models is the set of models of which the node has room, as bits.
func (s *State) models() uint64 {
	var set uint64
	for _, c := range s.Cards {
		if c == 0 {
			break
		}
		set |= 1 << c.Model()
	}
	return set
}

// slots is how many requests of the shape the node could take if no others came.
func (s *State) slots(p *Shape) int {
	if p.Cards == 0 || p.CPU > s.CPU || p.Memory > s.Memory {
		return 0
	}
	n, cards, model := 0, 0, -1
	for _, c := range s.Cards {
		if c == 0 {
			break
		}
		if c.Model() != model {
			n, cards, model = n+cards/int(p.Cards), 0, c.Model()
		}
		if p.accepts(model) {
			cards += c.Milli() / int(p.Milli)
		}
	}
	n += cards / int(p.Cards)
	if p.CPU > 0 {
		n = min(n, int(s.CPU/p.CPU))
	}
	if p.Memory > 0 {
		n = min(n, int(s.Memory/p.Memory))
	}
	return n
}
