package flight

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// Replayed is one entry decided again.
type Replayed struct {
	Entry
	Now engine.Decision
}

// Replay decides an entry again. Settings in change take the place of those that were in force, by name.
func Replay(e Entry, change []engine.PluginSetting) Replayed {
	plugins := slices.Clone(e.Plugins)
	for _, c := range change {
		if at := slices.IndexFunc(plugins, func(p engine.PluginSetting) bool { return p.Name == c.Name }); at >= 0 {
			plugins[at] = c
		} else {
			plugins = append(plugins, c)
		}
	}
	now := engine.New(engine.Config{Plugins: plugins, Learnt: e.Learnt, Level: e.Level})
	return Replayed{e, now.Decide(e.Snapshot, e.Request)}
}

// Outcome is what became of a decision that was taken again.
type Outcome string

// The outcomes.
const (
	Same   Outcome = "same"   // to the last bit
	Wins   Outcome = "wins"   // it would have been placed, and was not
	Loses  Outcome = "loses"  // it would not have been placed, and was
	Moves  Outcome = "moves"  // it would have been placed elsewhere
	Reason Outcome = "reason" // it would have waited, too, with other words
	Scores Outcome = "scores" // it would have been placed there, too, by other scores
)

// Outcome compares.
func (r Replayed) Outcome() Outcome {
	was, now := r.Decision, r.Now
	switch {
	case bytes.Equal(text(was), text(now)):
		return Same
	case !was.Placed && now.Placed:
		return Wins
	case was.Placed && !now.Placed:
		return Loses
	case !was.Placed:
		return Reason
	case bytes.Equal(text(was.Groups), text(now.Groups)):
		return Scores
	}
	return Moves
}

// text is what two values are compared by: as they are written.
func text(v any) []byte {
	out, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("encode plain values: %v", err))
	}
	return out
}

// Words says in a few words what a decision was.
func Words(d engine.Decision) string {
	if !d.Placed {
		return string(d.Refusal.Code)
	}
	var nodes []string
	for _, g := range d.Groups {
		for _, p := range g.Placements {
			nodes = append(nodes, p.NodeID)
		}
	}
	if len(nodes) > 3 {
		nodes = append(nodes[:3], fmt.Sprintf("and %d more", len(nodes)-3))
	}
	return "on " + strings.Join(nodes, ", ")
}
