package engine

import (
	"github.com/heteroflow/heteroflow/internal/accel"
)

// binpack fills cards before it opens new ones, and nodes before it opens new ones.
type binpack struct{ anybody }

var _ ScorePlugin = binpack{}

func (binpack) Name() string { return "binpack" }

// cardShare is how much of the score the card decides. The node decides between cards that are equally full.
const cardShare = 0.99

func (binpack) Score(c *Candidate) float64 {
	return 100 * (cardShare*fullness(c) + (1-cardShare)*nodeFullness(c))
}

// fullness is 1 when the ask uses up what the pool has left, and falls with what it leaves over: relative to the card
// for slices, by the number of cards for whole ones, where two left of eight are worth no less than two left of two.
func fullness(c *Candidate) float64 {
	left := float64(c.FreeUnits - c.Units)
	if c.Pool.Form == accel.Whole || c.Pool.Form == accel.Partition {
		return 1 / (1 + left)
	}
	return 1 - left/float64(max(1, c.Pool.Total))
}

// nodeFullness is the part of the node's card memory that is taken with the ask.
func nodeFullness(c *Candidate) float64 {
	if c.NodeTotalMiB == 0 {
		return 0
	}
	return min(1, float64(c.NodeUsedMiB+uint64(c.Units)*c.Pool.UnitMiB)/float64(c.NodeTotalMiB))
}

// spread puts allocations of a job on different nodes, and on the emptiest node and card.
type spread struct{ anybody }

var _ ScorePlugin = spread{}

func (spread) Name() string { return "spread" }

func (spread) Score(c *Candidate) float64 {
	empty := 0.5*(1-nodeFullness(c)) + 0.5*(1-fullness(c))
	return (50 + 50*empty) / float64(1+c.Here)
}
