package potential

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
)

const (
	// Requests come mixed: so many sequences of so many requests fill a node. More of them change nothing that matters.
	sequences      = 16
	sequenceLength = 36
	// Requests without cards can go to nodes without cards, or between others where processors are left over; at their
	// full number they would hide what cards are worth.
	cardlessShare = 0.2
)

// deck is a fixed set of sequences of requests. They are the same for all nodes and decisions, so that potentials
// differ by what nodes have and not by luck.
type deck struct {
	sequences [][]Shape
	byModel   [MaxModels][][]drawn
}

// drawn is a request that some model accepts, and the least that it or a later one of its sequence asks for.
type drawn struct {
	Shape
	leastMilli int16
	leastCPU   int32
}

// newDeck draws requests in proportion to the demand, heaviest first.
func newDeck(demand []Share) *deck {
	weight := func(d *Share) float64 {
		if d.Shape.Cards == 0 {
			return cardlessShare * d.Weight
		}
		return d.Weight
	}
	sum := 0.0
	for i := range demand {
		sum += weight(&demand[i])
	}
	var pack []Shape
	owed := 0.0
	for i := range demand {
		owed += weight(&demand[i]) / sum * sequences * sequenceLength
		for ; owed >= 0.5; owed-- {
			pack = append(pack, demand[i].Shape)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	r.Shuffle(len(pack), func(i, j int) { pack[i], pack[j] = pack[j], pack[i] })
	d := &deck{}
	for i := range sequences {
		d.sequences = append(d.sequences, pack[i*len(pack)/sequences:(i+1)*len(pack)/sequences])
	}
	return d
}

// fill is how much card the node takes of a sequence that comes to it alone, first come first served, in thousandths
// of a card; the mean over the sequences.
func (d *deck) fill(s *State) float64 {
	set := s.models()
	switch {
	case set == 0:
		return 0
	case set&(set-1) != 0:
		return d.fillMixed(s)
	}
	model := bits.TrailingZeros64(set)
	if d.byModel[model] == nil {
		d.byModel[model] = d.acceptedBy(model)
	}
	var free [MaxCards]int16
	cards := 0
	for cards < MaxCards && s.Cards[cards] != 0 {
		free[cards] = int16(s.Cards[cards].Milli())
		cards++
	}
	total := 0
	for _, sequence := range d.byModel[model] {
		total += fillBy(sequence, free, cards, s.CPU, s.Memory)
	}
	return float64(total) / sequences
}

// fillMixed is fill for a node with cards of several models.
func (d *deck) fillMixed(s *State) float64 {
	total := 0
	for _, sequence := range d.sequences {
		now := *s
		for i := range sequence {
			p := &sequence[i]
			if room, ok := now.fullest(p); ok {
				now = now.Place(p, room)
				total += p.Demand()
			}
		}
	}
	return float64(total) / sequences
}

// acceptedBy are the sequences without what the model does not serve.
func (d *deck) acceptedBy(model int) [][]drawn {
	out := make([][]drawn, sequences)
	for i, sequence := range d.sequences {
		for _, p := range sequence {
			if p.Cards == 0 || p.accepts(model) {
				out[i] = append(out[i], drawn{Shape: p})
			}
		}
		leastMilli, leastCPU := int16(math.MaxInt16), int32(math.MaxInt32)
		for j := range slices.Backward(out[i]) {
			p := &out[i][j]
			if p.Cards > 0 {
				leastMilli, leastCPU = min(leastMilli, p.Milli), min(leastCPU, p.CPU)
			}
			p.leastMilli, p.leastCPU = leastMilli, leastCPU
		}
	}
	return out
}

// fillBy places a sequence on cards of one model, free in descending order, each request on the fullest cards that
// have room, and gives how much card that took.
func fillBy(sequence []drawn, free [MaxCards]int16, cards int, cpu, memory int32) int {
	total := 0
	for i := range sequence {
		p := &sequence[i]
		if cards == 0 || free[0] < p.leastMilli || cpu < p.leastCPU {
			break
		}
		if p.CPU > cpu || p.Memory > memory {
			continue
		}
		if p.Cards > 0 {
			last := cards - 1
			for last >= 0 && free[last] < p.Milli {
				last--
			}
			first := last + 1 - int(p.Cards)
			if first < 0 {
				continue
			}
			if p.Milli == Whole {
				copy(free[first:], free[last+1:cards])
				cards -= int(p.Cards)
			} else {
				for j := last; j >= first; j-- {
					cards = lower(&free, cards, j, free[j]-p.Milli)
				}
			}
			total += p.Demand()
		}
		cpu -= p.CPU
		memory -= p.Memory
	}
	return total
}

// lower gives the card at index i less room, keeps the order, and gives the number of cards that have any.
func lower(free *[MaxCards]int16, cards, i int, room int16) int {
	for ; i+1 < cards && free[i+1] > room; i++ {
		free[i] = free[i+1]
	}
	free[i] = room
	if room == 0 {
		return i
	}
	return cards
}
