package potential

import "math"

// setting is how much each part of the potential counts.
type setting struct {
	usable  float64 // part of FGD's usable room in the potential, the rest is fill
	slots   float64 // of the prices of places for several cards
	named   float64 // of a model's load by requests that name it, on every thousandth taken from it
	quantum float64 // costs are whole multiples of it; nearly equal ones leave the choice to the number of the node
}

// While a cluster fills up, the best use of each node is what counts. Once requests leave about as fast as they come,
// room for the rarer ones must be kept together: packing in the fixed order of nodes does that, and places where much
// is asked for are dear.
var (
	filling  = setting{usable: 0, slots: 0.1, named: 0.5, quantum: 0}
	churning = setting{usable: 0.5, slots: 2, named: 1.5, quantum: 20}
)

const (
	learntFrom = 30 // requests from which a mix says more than best fit does
	// maxRemembered is of how many states a scorer remembers what it worked out, about 100 bytes each.
	maxRemembered = 1_000_000
)

// features are the parts of a state's potential.
type features struct{ fill, usable, slots float32 }

// Policy is our scorer: a potential by the observed demand, its parts weighted by how fast requests leave. It is best
// fit until it knows the demand. It is not safe for concurrent use.
type Policy struct {
	epoch  int
	fgd    *FGD // nil while the demand is not known
	deck   *deck
	prices []Share
	loads  [MaxModels]float64
	known  map[State]features
	regime Regime
	level  int
	now    setting
}

// NewPolicy knows no demand.
func NewPolicy() *Policy { return &Policy{now: filling} }

// Learn takes the demand and the nodes as they are when empty. It takes a few milliseconds and makes every cost new.
func (l *Policy) Learn(mix *Mix, supply []Supply) {
	if mix.Observed() < learntFrom {
		l.LearnShares(nil, nil)
		return
	}
	l.LearnShares(mix.Shares(), supply)
}

// LearnShares is Learn for a demand of which enough was observed. It is not known when nobody asks for cards.
func (l *Policy) LearnShares(demand []Share, supply []Supply) {
	l.epoch++
	l.known = map[State]features{}
	if len(fullLoad(demand, 1)) == 0 {
		l.fgd = nil
		return
	}
	l.fgd, l.deck = NewFGD(demand), newDeck(demand)
	l.prices, l.loads = slotPrices(demand, supply), namedLoads(demand, supply)
}

// Knows reports whether there is a demand to score by.
func (l *Policy) Knows() bool { return l.fgd != nil }

// Placed counts a request that found its place.
func (l *Policy) Placed() { l.regime.Placed(); l.SetLevel(l.regime.Level()) }

// Left counts a request that left its place.
func (l *Policy) Left() { l.regime.Left(); l.SetLevel(l.regime.Level()) }

// SetLevel weighs the parts for a level of Regime. What was worked out of states stays known.
func (l *Policy) SetLevel(level int) {
	if level == l.level {
		return
	}
	l.level = level
	l.epoch++
	t := float64(level) / Levels
	mixed := func(a, b float64) float64 { return a + t*(b-a) }
	l.now = setting{
		usable: mixed(filling.usable, churning.usable), slots: mixed(filling.slots, churning.slots),
		named: mixed(filling.named, churning.named), quantum: mixed(filling.quantum, churning.quantum),
	}
}

// Epoch changes when costs did.
func (l *Policy) Epoch() int { return l.epoch }

// Cost is by how much the potential of the node drops, in thousandths of a card, and what the card's model is sought.
func (l *Policy) Cost(s *State, p *Shape) (cost float32, room Card, ok bool) {
	if l.fgd == nil {
		return BestFit{}.Cost(s, p)
	}
	before := l.value(s)
	least := math.Inf(1)
	s.rooms(p, func(c Card) {
		if drop := l.drop(before, s, p, c); drop < least {
			least, room, ok = drop, c, true
		}
	})
	return float32(least), room, ok
}

// CostOn is Cost where the shape has to take this card. Of a shape of several cards it is the one with least room; where
// fewer have as much, those with most room are taken. It is 0 while the demand is not known.
func (l *Policy) CostOn(s *State, p *Shape, c Card) (cost float32, ok bool) {
	return l.CostFrom(l.Value(s), s, p, c)
}

// Value is the potential of a node, in thousandths of a card; 0 while the demand is not known.
func (l *Policy) Value(s *State) float64 {
	if l.fgd == nil {
		return 0
	}
	return l.value(s)
}

// CostFrom is CostOn where the Value of the state is known.
func (l *Policy) CostFrom(before float64, s *State, p *Shape, c Card) (cost float32, ok bool) {
	room, ok := s.roomWith(p, c)
	if !ok || l.fgd == nil {
		return 0, ok
	}
	return float32(l.drop(before, s, p, room)), true
}

// drop is the cost when room is the card with least room that the shape takes.
func (l *Policy) drop(before float64, s *State, p *Shape, room Card) float64 {
	after := s.Place(p, room)
	drop := before - l.value(&after)
	if p.Cards > 0 {
		drop += l.now.named * l.loads[room.Model()] * float64(p.Demand())
	}
	if l.now.quantum > 0 {
		drop = math.Floor(drop/l.now.quantum) * l.now.quantum
	}
	return drop
}

// value is the potential of a node, in thousandths of a card.
func (l *Policy) value(s *State) float64 {
	f, ok := l.known[*s]
	if !ok {
		f = l.features(s)
		if len(l.known) >= maxRemembered {
			clear(l.known)
		}
		l.known[*s] = f
	}
	return (1-l.now.usable)*float64(f.fill) + l.now.usable*float64(f.usable) + l.now.slots*float64(f.slots)
}

func (l *Policy) features(s *State) features {
	if s.Cards[0] == 0 {
		return features{}
	}
	room, slots := 0, 0.0
	for _, c := range s.Cards {
		room += c.Milli()
	}
	for i := range l.prices {
		slots += l.prices[i].Weight * float64(s.slots(&l.prices[i].Shape))
	}
	return features{float32(l.deck.fill(s)), float32(float64(room) - l.fgd.wasted(s)), float32(slots)}
}
