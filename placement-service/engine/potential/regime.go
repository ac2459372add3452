package potential

import "math"

// Levels is the highest level of a Regime.
const Levels = 4

// memory is over how many events departures are counted.
const memory = 300

// Departures for each placement at which a cluster only fills up, and at which as many leave as come.
const few, many = 0.2, 0.8

// Regime tells from placements and departures whether a cluster fills up or churns. Its zero value fills up. It is not
// safe for concurrent use.
type Regime struct {
	placed, left float64 // of the last events, older ones counting less
	level        int
}

// NewRegime is one that has seen what has this level for its answer.
func NewRegime(level int) Regime {
	level = min(Levels, max(0, level))
	ratio := few + (many-few)*float64(level)/Levels
	if level == 0 {
		ratio = 0
	}
	placed := memory / (1 + ratio)
	return Regime{placed: placed, left: ratio * placed, level: level}
}

// Placed counts a request that found its place.
func (r *Regime) Placed() { r.count(1, 0) }

// Left counts a request that left its place.
func (r *Regime) Left() { r.count(0, 1) }

// Level is how far the cluster is from filling up, 0, to churning, Levels.
func (r *Regime) Level() int { return r.level }

func (r *Regime) count(placed, left float64) {
	const keep = 1 - 1.0/memory
	r.placed, r.left = keep*r.placed+placed, keep*r.left+left
	at := Levels * min(1, max(0, (r.left/max(1, r.placed)-few)/(many-few)))
	if math.Abs(at-float64(r.level)) >= 0.75 { // a level holds on beyond its half, so that chance does not toggle it
		r.level = int(math.Round(at))
	}
}
