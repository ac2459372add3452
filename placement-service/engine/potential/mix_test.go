package potential

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMix_OldRequestsCountLess(t *testing.T) {
	t.Parallel()
	old, young := Shape{CPU: 1000, Cards: 1, Milli: 500}, Shape{CPU: 1000, Cards: 1, Milli: 600}
	var m Mix
	for range 1000 {
		m.Observe(old)
	}
	for range halfLife {
		m.Observe(young)
	}
	shares := m.Shares()
	if shares[0].Shape != young || shares[1].Shape != old || math.Abs(shares[1].Weight-492) > 2 {
		t.Errorf("shares are %+v, want the old 1000 to count 492", shares)
	}
}

func TestMix_WeightsDoNotOverflow(t *testing.T) {
	t.Parallel()
	var m Mix
	for range 45 * halfLife {
		m.Observe(Shape{CPU: 1, Cards: 1, Milli: 500})
	}
	last := Shape{CPU: 2, Cards: 1, Milli: 500}
	m.Observe(last)
	shares := m.Shares()
	if w := shares[0].Weight; math.Abs(w-halfLife/math.Ln2) > 10 {
		t.Errorf("what came all the time weighs %v, want %v", w, halfLife/math.Ln2)
	}
	if w := shares[1].Weight; math.Abs(w-1) > 0.001 {
		t.Errorf("the newest weighs %v, want 1", w)
	}
}

func TestMix_ForgetsTheRarest(t *testing.T) {
	t.Parallel()
	var m Mix
	often := Shape{CPU: 1, Cards: 1, Milli: 500}
	for i := range 3 * maxShapes {
		m.Observe(often)
		m.Observe(Shape{CPU: int32(2 + i), Cards: 1, Milli: 500})
	}
	shares := m.Shares()
	if n := len(shares); n > maxShapes || n < maxShapes/2 {
		t.Errorf("%d shapes", n)
	}
	if shares[0].Shape != often {
		t.Errorf("%+v is the most frequent, want %+v", shares[0].Shape, often)
	}
}

func TestMix_SurvivesARestart(t *testing.T) {
	t.Parallel()
	var m, again Mix
	for i := range 500 {
		m.Observe(Shape{CPU: int32(i % 7 * 1000), Memory: 5, Cards: int16(i % 3), Milli: int16(1000 * min(1, i%3)), Models: uint64(i % 2)})
	}
	text, err := json.Marshal(&m)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &again); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(m.Shares(), again.Shares()); diff != "" || again.Observed() != 500 {
		t.Errorf("observed %d, shares (-want +got):\n%s", again.Observed(), diff)
	}
}

func TestMix_RefusesWhatIsNoDemand(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"negative count":  `{"observed":-1}`,
		"negative weight": `{"observed":1,"shares":[{"shape":{"cards":1,"milli":500},"weight":-1}]}`,
		"half a card":     `{"observed":1,"shares":[{"shape":{"cards":1,"milli":0},"weight":1}]}`,
		"too many cards":  `{"observed":1,"shares":[{"shape":{"cards":17,"milli":1000},"weight":1}]}`,
		"no JSON":         `x`,
	} {
		var m Mix
		if err := json.Unmarshal([]byte(text), &m); err == nil {
			t.Errorf("%s is read as %+v", name, m)
		}
	}
}

func FuzzMix(f *testing.F) {
	f.Add([]byte(`{"observed":2,"shares":[{"shape":{"cpu_milli":1000,"memory_mib":5,"cards":1,"milli":500,"models":3},"weight":2}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var m, again Mix
		if json.Unmarshal(text, &m) != nil {
			return
		}
		written, err := json.Marshal(&m)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(written, &again); err != nil {
			t.Fatalf("%s is not read back: %v", written, err)
		}
		p := NewPolicy()
		p.Learn(&m, []Supply{{MakeState(1000, 1000, []Card{MakeCard(1, Whole)}), 3}})
		s := MakeState(1000, 1000, []Card{MakeCard(1, Whole)})
		if cost, _, ok := p.Cost(&s, &Shape{Cards: 1, Milli: 500}); !ok || cost != cost {
			t.Errorf("cost %v %v", cost, ok)
		}
	})
}
