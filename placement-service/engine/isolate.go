package engine

import (
	"fmt"
	"math"
	"sync/atomic"
)

// Fault is a plugin that panicked in a decision. One that scores is left out of that decision; one that filters has
// the request refused, since nobody knows what it would have kept out.
type Fault struct {
	Plugin string `json:"plugin"`
	Text   string `json:"text"`
}

// Cost is what a plugin took so far. One call in timedOneIn is timed and stands for the others.
type Cost struct {
	Plugin string
	Calls  int64
	Nanos  int64
}

const timedOneIn = 64

// meter is a plugin of an engine with what it took.
type meter struct {
	Plugin
	calls, nanos atomic.Int64
}

// Costs lists the plugins in the order in which they are asked. All is zero without Config.Now.
func (e *Engine) Costs() []Cost {
	out := make([]Cost, 0, len(e.plugins))
	for _, m := range e.plugins {
		out = append(out, Cost{Plugin: m.Name(), Calls: m.calls.Load() * timedOneIn, Nanos: m.nanos.Load() * timedOneIn})
	}
	return out
}

// turnTo notes which plugin is asked, and when if this call is to be timed.
func (w *work) turnTo(m *meter) {
	w.asking = m
	if w.calls++; w.calls%timedOneIn == 0 && w.e.now != nil {
		w.timing, w.began = true, w.e.now()
	}
}

// answered notes that it has answered.
func (w *work) answered() {
	if w.timing {
		w.timing = false
		w.asking.calls.Add(1)
		w.asking.nanos.Add(w.e.now() - w.began)
	}
	w.asking = nil
}

func (w *work) filterBy(f *filterer, c *Candidate) Code {
	w.turnTo(f.meter)
	code := f.Filter(c)
	w.answered()
	return code
}

func (w *work) roomBy(r *roomer, c *Candidate) Code {
	w.turnTo(r.meter)
	code := r.Room(c)
	w.answered()
	return code
}

// scoreBy keeps a score within 0–100; what is no number is worth nothing.
func (w *work) scoreBy(s *scorer, c *Candidate) float64 {
	w.turnTo(s.meter)
	score := s.Score(c)
	w.answered()
	if math.IsNaN(score) {
		return 0
	}
	return min(100, max(0, score))
}

// isolated runs do. A panic in a plugin comes back as the plugin and its fault; any other is the engine's own and goes
// on.
func (w *work) isolated(do func() Decision) (d Decision, broken *meter, fault Fault) {
	w.asking, w.timing = nil, false
	defer func() {
		if w.asking == nil {
			return
		}
		if p := recover(); p != nil {
			broken, fault = w.asking, Fault{Plugin: w.asking.Name(), Text: fmt.Sprint(p)}
		}
	}()
	d = do()
	return d, nil, Fault{}
}

// refusedBy is the decision when a plugin that filters is broken.
func refusedBy(f Fault) Decision {
	return Decision{Refusal: &Refusal{Code: CodePluginFailed, Sentence: fmt.Sprintf(
		"plugin %s failed and nothing is placed without it: %s; mend it, or switch it off: PUT /api/v1/plugins/%s {\"enabled\": false}",
		f.Plugin, f.Text, f.Plugin)}}
}

// without is the engine without one plugin's scores.
func (e *Engine) without(m *meter) *Engine {
	out := e.clone()
	out.scorers = out.scorers[:0]
	for _, s := range e.scorers {
		if s.meter != m {
			out.scorers = append(out.scorers, s)
		}
	}
	return out
}
