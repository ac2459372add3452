package engine

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/heteroflow/heteroflow/internal/accel"
)

type brokenFilter struct{}

func (brokenFilter) Name() string           { return "broken_filter" }
func (brokenFilter) Filter(*Candidate) Code { panic("no table") }

type brokenRoom struct{}

func (brokenRoom) Name() string         { return "broken_room" }
func (brokenRoom) Room(*Candidate) Code { panic("no table") }

type scoring func(*Candidate) float64

func (scoring) Name() string                 { return "scoring" }
func (s scoring) Score(c *Candidate) float64 { return s(c) }

func TestDecide_BrokenScorerIsLeftOut(t *testing.T) {
	t.Parallel()
	s := snapshotOf(testNode{Name: "n1", Cards: []testCard{{}, {}}})
	r := ask(1, accel.Ask{MemoryMiB: 1024})
	base := New(Config{})
	calls := 0
	broken := base.With(scoring(func(*Candidate) float64 {
		if calls++; calls > 1 {
			panic("third of one")
		}
		return 1
	}), 5)
	want, got := base.Decide(s, r), broken.Decide(s, r)
	if !slices.Equal(where(s, got), where(s, want)) {
		t.Errorf("placed at %v, without the plugin at %v", where(s, got), where(s, want))
	}
	if want := []Fault{{Plugin: "scoring", Text: "third of one"}}; !slices.Equal(got.Faults, want) {
		t.Errorf("faults %v, want %v", got.Faults, want)
	}
	if len(got.Scores) != 1 || len(got.Scores[0].Plugins) != 1 {
		t.Errorf("scores %v", got.Scores)
	}
}

func TestDecide_BrokenFilterRefuses(t *testing.T) {
	t.Parallel()
	s := snapshotOf(testNode{Name: "n1", Cards: []testCard{{}}})
	for name, p := range map[string]Plugin{"broken_filter": brokenFilter{}, "broken_room": brokenRoom{}} {
		d := New(Config{}).With(p, 0).Decide(s, ask(1, accel.Ask{MemoryMiB: 1024}))
		if d.Placed || d.Refusal.Code != CodePluginFailed || d.Refusal.Never || !strings.Contains(d.Refusal.Sentence, name) || len(d.Faults) != 1 {
			t.Errorf("%s: %+v, faults %v", name, d.Refusal, d.Faults)
		}
	}
}

// A panic that no plugin made is a mistake of the engine, which nobody is to hide.
func TestIsolated_OnlyPlugins(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("the engine's own panic is hidden")
		}
	}()
	w := &work{e: New(Config{})}
	w.isolated(func() Decision {
		w.scoreBy(&w.e.scorers[0], &Candidate{Pool: &Pool{}, Task: &TaskAsk{Ask: &accel.Ask{}}})
		panic("own")
	})
}

func TestScores_StayWithinTheirRange(t *testing.T) {
	t.Parallel()
	s := snapshotOf(testNode{Name: "n1", Cards: []testCard{{}}})
	for given, want := range map[float64]float64{-3: 0, 50: 50, 1e9: 100, math.Inf(1): 100, math.NaN(): 0} {
		d := New(Config{}).With(scoring(func(*Candidate) float64 { return given }), 1).Decide(s, ask(1, accel.Ask{MemoryMiB: 1024}))
		if got := d.Scores[0].Plugins["scoring"]; got != want {
			t.Errorf("score %v counts as %v, want %v", given, got, want)
		}
	}
}

func TestCosts_TimesOneCallInMany(t *testing.T) {
	t.Parallel()
	var now int64
	e := New(Config{Now: func() int64 { now += 1000; return now }})
	s := crowded(200, 8)
	for range 3 {
		e.Decide(s, ask(1, accel.Ask{MemoryMiB: 1024}))
	}
	for _, c := range e.Costs() {
		if strings.Contains("nvlink topology rdma", c.Plugin) {
			if c.Calls != 0 {
				t.Errorf("%s was asked about shares", c.Plugin)
			}
			continue
		}
		if c.Calls == 0 || c.Nanos != c.Calls*1000 {
			t.Errorf("%s: %d calls took %d ns, want a microsecond each", c.Plugin, c.Calls, c.Nanos)
		}
	}
	if n := len(e.Costs()); n != 7 {
		t.Errorf("%d plugins, want the seven that are on by default", n)
	}
}
