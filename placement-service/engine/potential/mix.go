package potential

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
)

// Share is one shape and how often it is asked for, relative to others.
type Share struct {
	Shape  Shape   `json:"shape"`
	Weight float64 `json:"weight"`
}

// halfLife is after how many requests an observed one counts half.
const halfLife = 20_000

// maxShapes bounds how many shapes a mix tells apart; the rarest are forgotten.
const maxShapes = 4096

// Mix is the demand as it was observed: how often each shape was asked for, old requests counting less. Its zero value
// is a mix of nothing. It is kept over restarts as JSON.
type Mix struct {
	weights  map[Shape]float64
	unit     float64 // weight of the next request
	observed int
}

// NewMix is a demand that is known, its weights in requests.
func NewMix(shares []Share) *Mix {
	m := &Mix{weights: map[Shape]float64{}, unit: 1}
	observed := 0.0
	for _, s := range shares {
		m.weights[s.Shape] += s.Weight
		observed += s.Weight
	}
	m.observed = int(observed)
	return m
}

// growth makes the weights of a half-life ago half of those of now.
var growth = math.Exp2(1.0 / halfLife)

// rescale is the weight of a request at which all are made smaller, so that none overflows.
const rescale = 1 << 40

// Observe counts one request.
func (m *Mix) Observe(p Shape) {
	if m.weights == nil {
		m.weights, m.unit = map[Shape]float64{}, 1
	}
	m.weights[p] += m.unit
	m.unit *= growth
	m.observed++
	if m.unit > rescale {
		for s := range m.weights {
			m.weights[s] /= m.unit
		}
		m.unit = 1
	}
	if len(m.weights) > maxShapes {
		for _, rare := range m.Shares()[maxShapes/2:] {
			delete(m.weights, rare.Shape)
		}
	}
}

// Observed is how many requests were counted.
func (m *Mix) Observed() int { return m.observed }

// Shares are the shapes, the most frequent first. A request of now weighs 1.
func (m *Mix) Shares() []Share {
	out := make([]Share, 0, len(m.weights))
	for shape, weight := range m.weights {
		out = append(out, Share{shape, weight / m.unit})
	}
	sortShares(out)
	return out
}

func sortShares(shares []Share) {
	slices.SortFunc(shares, func(a, b Share) int {
		return cmp.Or(cmp.Compare(b.Weight, a.Weight), compareShapes(&a.Shape, &b.Shape))
	})
}

func compareShapes(a, b *Shape) int {
	return cmp.Or(cmp.Compare(a.Cards, b.Cards), cmp.Compare(a.Milli, b.Milli), cmp.Compare(a.CPU, b.CPU),
		cmp.Compare(a.Memory, b.Memory), cmp.Compare(a.Models, b.Models))
}

// kept is a mix as it is written.
type kept struct {
	Observed int     `json:"observed"`
	Shares   []Share `json:"shares"`
}

// MarshalJSON writes the mix; equal mixes are written alike.
func (m *Mix) MarshalJSON() ([]byte, error) { return json.Marshal(kept{m.observed, m.Shares()}) }

// UnmarshalJSON reads what MarshalJSON wrote.
func (m *Mix) UnmarshalJSON(data []byte) error {
	var k kept
	if err := json.Unmarshal(data, &k); err != nil {
		return err
	}
	if k.Observed < 0 {
		return fmt.Errorf("observed is %d, not a number from 0", k.Observed)
	}
	next := Mix{weights: map[Shape]float64{}, unit: 1, observed: k.Observed}
	for _, s := range k.Shares {
		if err := s.Shape.check(); err != nil {
			return err
		}
		if !(s.Weight > 0 && s.Weight < rescale) {
			return fmt.Errorf("weight of %+v is %v, not a number above 0", s.Shape, s.Weight)
		}
		next.weights[s.Shape] += s.Weight
	}
	*m = next
	return nil
}

func (p *Shape) check() error {
	if p.CPU < 0 || p.Memory < 0 || p.Cards < 0 || p.Cards > MaxCards || p.Cards > 0 && (p.Milli < 1 || p.Milli > Whole) {
		return fmt.Errorf("%+v is no shape of a request: cpu and memory from 0, cards 0 to %d, milli 1 to %d", *p, MaxCards, Whole)
	}
	return nil
}
