package preempt

import (
	"cmp"
	"math"
	"slices"

	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// price is a plugin that has the engine choose where least has to be evicted. It is asked on the cluster without all
// that may be, and knows what is really free.
type price struct {
	pools map[place]*poolPrice
	nodes map[string]*nodePrice
	most  float64 // cost of all there is
}

var _ engine.ScorePlugin = (*price)(nil)

// priceWeight drowns every other score but where two places cost the same.
const priceWeight = 1e12

// impossible is the cost of more than can be had.
const impossible = math.MaxInt64 / 4

func (p *price) Name() string { return "eviction_price" }

// Score is 100 where nothing has to be evicted.
func (p *price) Score(c *engine.Candidate) float64 {
	pool, node := p.pools[place{c.Node.ID, c.Pool.Group}], p.nodes[c.Node.ID]
	if pool == nil || node == nil {
		return 0
	}
	taken := pool.empty - c.FreeUnits
	cost := pool.costOf(taken+c.Units) - pool.costOf(taken)
	beside := [3]int{c.Group.CPUMHz * c.Allocations, c.Group.MemoryMiB * c.Allocations, c.Group.DiskMiB * c.Allocations}
	for i, free := range [3]int{c.FreeCPUMHz, c.FreeMemoryMiB, c.FreeDiskMiB} {
		side := &node.beside[i]
		taken := side.empty - free
		cost = max(cost, side.costOf(taken+beside[i])-side.costOf(taken))
	}
	return 100 * (1 - min(1, float64(cost)/p.most))
}

// piece is what one unit gives back of one thing.
type piece struct {
	unit   int
	amount int
	cost   int64
}

// poolPrice is what instances of a pool cost.
type poolPrice struct {
	free   int // without evicting anything
	empty  int // with everything evicted
	pieces []piece
	table  [][]int64 // least cost of so many instances with the first pieces; made when first asked for
}

// costOf is the least cost at which so many instances of the pool are free.
func (p *poolPrice) costOf(units int) int64 {
	need := units - p.free
	if need <= 0 {
		return 0
	}
	if p.table == nil {
		p.table = leastCost(p.pieces)
	}
	last := p.table[len(p.table)-1]
	if need >= len(last) {
		return impossible
	}
	return last[need]
}

// leastCost tells for each number of the first pieces, and each amount, what that amount costs at least.
func leastCost(pieces []piece) [][]int64 {
	sum := 0
	for _, p := range pieces {
		sum += p.amount
	}
	table := make([][]int64, len(pieces)+1)
	for i := range table {
		table[i] = make([]int64, sum+1)
	}
	for need := 1; need <= sum; need++ {
		table[0][need] = impossible
	}
	for i, p := range pieces {
		for need := 1; need <= sum; need++ {
			table[i+1][need] = min(table[i][need], p.cost+table[i][max(0, need-p.amount)])
		}
	}
	return table
}

// cheapest are the units whose pieces give the amount for the least cost; all of them when it is more than there is.
func cheapest(pieces []piece, need int) []int {
	table := leastCost(pieces)
	need = min(need, len(table[0])-1)
	var out []int
	for i := len(pieces) - 1; i >= 0 && need > 0; i-- {
		if table[i+1][need] < table[i][need] {
			out = append(out, pieces[i].unit)
			need = max(0, need-pieces[i].amount)
		}
	}
	return out
}

// nodePrice is what room beside the cards costs: processor, main memory and disk.
type nodePrice struct{ beside [3]sidePrice }

// sidePrice is cheap and rough: pieces in the order of their cost for each of what they give.
type sidePrice struct {
	free, empty int
	pieces      []piece
}

func (s *sidePrice) sort() {
	slices.SortStableFunc(s.pieces, func(a, b piece) int {
		return cmp.Compare(float64(a.cost)/float64(a.amount), float64(b.cost)/float64(b.amount))
	})
}

func (s *sidePrice) costOf(amount int) int64 {
	need, cost := amount-s.free, int64(0)
	for i := 0; need > 0 && i < len(s.pieces); i++ {
		p := &s.pieces[i]
		part := min(1, float64(need)/float64(p.amount))
		cost += int64(part * float64(p.cost))
		need -= p.amount
	}
	return cost
}
