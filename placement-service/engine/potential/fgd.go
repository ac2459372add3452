package potential

import "math"

// FGD is fragmentation gradient descent as published: it places where the card that typical requests cannot use grows
// least. Source: Q. Weng et al., USENIX ATC 2023, and the simulator of its authors.
type FGD struct {
	typical []Share
	known   map[State]float64
}

// typicalShare is the part of the demand that is typical: its most frequent requests, until they make up as much.
const typicalShare = 0.95

// NewFGD is FGD for this demand.
func NewFGD(demand []Share) *FGD {
	merged := map[Shape]float64{}
	total := 0.0
	for _, d := range demand {
		d.Shape.Memory = 0
		merged[d.Shape] += d.Weight
		total += d.Weight
	}
	var all []Share
	for shape, weight := range merged {
		all = append(all, Share{shape, weight})
	}
	sortShares(all)
	taken, sum := 0, 0.0
	for taken < len(all) && sum < typicalShare*total {
		sum += all[taken].Weight
		taken++
	}
	all = all[:taken]
	for i := range all {
		all[i].Weight /= sum
	}
	return &FGD{typical: all, known: map[State]float64{}}
}

// Epoch never changes.
func (f *FGD) Epoch() int { return 0 }

// Cost is the negative of the published score, a whole number from 0 to 100.
func (f *FGD) Cost(s *State, p *Shape) (cost float32, room Card, ok bool) {
	before := f.remembered(s)
	s.rooms(p, func(c Card) {
		after := s.Place(p, c)
		score := math.Trunc(100 / (1 + math.Exp((f.remembered(&after)-before)/1000)))
		if !ok || float32(-score) < cost {
			cost, room, ok = float32(-score), c, true
		}
	})
	return cost, room, ok
}

// remembered is wasted, worked out once for each state.
func (f *FGD) remembered(s *State) float64 {
	key := *s
	key.Memory = 0
	w, ok := f.known[key]
	if !ok {
		if len(f.known) >= maxRemembered {
			clear(f.known)
		}
		w = f.wasted(s)
		f.known[key] = w
	}
	return w
}

// wasted is the room that a typical request cannot use, on average, in thousandths of a card.
func (f *FGD) wasted(s *State) float64 {
	room := 0
	for _, c := range s.Cards {
		room += c.Milli()
	}
	w := float64(room)
	for i := range f.typical {
		t := &f.typical[i]
		w -= t.Weight * float64(usable(s, &t.Shape))
	}
	return w
}

// usable is the room on cards that have enough of it for the shape, 0 when the shape does not fit.
func usable(s *State, p *Shape) int {
	if p.Cards == 0 || p.CPU > s.CPU {
		return 0
	}
	cards, room := 0, 0
	for _, c := range s.Cards {
		if c.Milli() >= int(p.Milli) && p.accepts(c.Model()) {
			cards++
			room += c.Milli()
		}
	}
	if cards < int(p.Cards) {
		return 0
	}
	return room
}
