package potential

import "math"

// BestFit places where least processor and card are left, on the fullest card that has room. Source: as for FGD.
type BestFit struct{}

// Epoch never changes.
func (BestFit) Epoch() int { return 0 }

// Cost is the negative of the published score, a whole number from 0 to 100.
func (BestFit) Cost(s *State, p *Shape) (cost float32, room Card, ok bool) {
	s.rooms(p, func(c Card) {
		if ok {
			return
		}
		left := 0
		for _, c := range s.Cards {
			left += c.Milli()
		}
		cpu, cards := float64(s.CPU-p.CPU)/128000, float64(left-p.Demand())/8000
		cost, room, ok = float32(-math.Trunc(100*(1-cpu/2-cards/2))), c, true
	})
	return cost, room, ok
}
