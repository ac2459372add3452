package preempt

import (
	"container/heap"
)

const (
	// fewUnits is up to how many units all cheaper sets are looked at.
	fewUnits = 16
	// mostLooks bounds that.
	mostLooks = 4096
)

// smaller goes through the sets that cost less than this one, the cheapest first, and returns the first with which the request fits; the set itself when there is none.
func (s *search) smaller(set []int) []int {
	limit := s.cost(set)
	open := &sets{{}}
	for looks := 0; open.Len() > 0 && looks < mostLooks; looks++ {
		next := heap.Pop(open).(candidate)
		if next.cost >= limit {
			break
		}
		if len(next.units) > 0 && s.fits(s.q.Snapshot.Nodes, next.units) {
			return next.units
		}
		s.grow(open, next)
	}
	return set
}

// candidate is a set of units in ascending order.
type candidate struct {
	units []int
	cost  int64
}

// sets is a heap of them by cost.
type sets []candidate

func (h sets) Len() int           { return len(h) }
func (h sets) Less(i, j int) bool { return h[i].cost < h[j].cost }
func (h sets) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *sets) Push(x any)        { *h = append(*h, x.(candidate)) }
func (h *sets) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// grow adds the next sets after one: with the unit behind its last, and with that in place of its last. Units are in the
// order of their cost, so that neither is cheaper, and every set comes from exactly one other.
func (s *search) grow(open *sets, from candidate) {
	n := len(from.units)
	next := 0
	if n > 0 {
		next = from.units[n-1] + 1
	}
	if next >= len(s.units) {
		return
	}
	with := append(append([]int{}, from.units...), next)
	heap.Push(open, candidate{with, from.cost + s.units[next].cost})
	if n > 0 {
		instead := append(append([]int{}, from.units[:n-1]...), next)
		heap.Push(open, candidate{instead, from.cost - s.units[next-1].cost + s.units[next].cost})
	}
}
