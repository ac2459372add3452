package engine

import (
	"math"
	"sync"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/placement-service/engine/potential"
)

// Learnt is a demand ready to score by. It remembers what it worked out of the states of nodes, which several engines
// may use together. It is safe for concurrent use.
type Learnt struct {
	demand  Demand
	numbers map[modelName]int

	mu       sync.Mutex
	policies map[uint64]*potential.Policy // by the memory of a card, MiB
}

// Learn makes a demand ready; nil when it says too little to score by.
func Learn(d Demand) *Learnt {
	if d.Observed < learntFrom || len(d.Models) == 0 {
		return nil
	}
	return &Learnt{demand: d, numbers: numbered(d.Models), policies: map[uint64]*potential.Policy{}}
}

// Demand is what was learnt, not to be changed; nil for nothing.
func (l *Learnt) Demand() *Demand {
	if l == nil {
		return nil
	}
	return &l.demand
}

// model is the number of the model of the pool's cards, and the memory of one. Models that the demand does not know
// share a number.
func (l *Learnt) model(p *Pool) (number int, cardMiB uint64) {
	if n, known := l.numbers[p.modelName()]; known {
		return n, l.demand.Models[n].MemoryMiB
	}
	return len(l.demand.Models), p.CardMiB()
}

// value is the potential of a state, remembered while several cards of a node are scored.
type value struct {
	known     bool
	cardMiB   uint64 // the size of cards by which it is
	potential float64
}

// modelSeen is the model that was looked up last: the pools of a node are mostly of one.
type modelSeen struct {
	known   bool
	name    modelName
	number  int
	cardMiB uint64
}

// modelAfter is model where the one before may be known.
func (l *Learnt) modelAfter(last *modelSeen, p *Pool) (number int, cardMiB uint64) {
	name := p.modelName()
	if last.known && last.name == name {
		return last.number, last.cardMiB
	}
	number, cardMiB = l.model(p)
	*last = modelSeen{number < len(l.demand.Models), name, number, cardMiB} // of others the size is each pool's own
	return number, cardMiB
}

// cost is by how much the potential of the node drops, in MiB of card. ok is false where the shape cannot be placed.
func (l *Learnt) cost(s *potential.State, before *value, p *potential.Shape, c potential.Card, cardMiB uint64, level int) (mib float64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	policy := l.policies[cardMiB]
	if policy == nil {
		policy = potential.NewPolicy() // it costs nothing to use cards of a size for which nobody asks
		policy.LearnShares(potential.NewMix(l.demand.shares(cardMiB)).Shares(), l.demand.supply())
		l.policies[cardMiB] = policy
	}
	policy.SetLevel(level)
	if !before.known || before.cardMiB != cardMiB {
		*before = value{true, cardMiB, policy.Value(s)}
	}
	cost, ok := policy.CostFrom(before.potential, s, p, c)
	return float64(cost) / potential.Whole * float64(orUnknown(cardMiB)), ok
}

// orUnknown takes a card whose memory nobody knows for one of middling size.
func orUnknown(mib uint64) uint64 {
	if mib == 0 {
		return middlingMiB
	}
	return mib
}

const middlingMiB = 64 << 10

// roomOf is a card of the pool with what is left of it when so many of its instances are free. Of whole cards it is any
// one of them.
func (l *Learnt) roomOf(last *modelSeen, p *Pool, free int) potential.Card {
	if free <= 0 || p.Total <= 0 {
		return 0
	}
	number, _ := l.modelAfter(last, p)
	if p.wholes() {
		return potential.MakeCard(number, potential.Whole)
	}
	return potential.MakeCard(number, thousandths(free, p.Total))
}

// thousandths is the part of a card that some of its instances are, rounded down.
func thousandths(units, total int) int { return units * potential.Whole / total }

// wholes reports whether every instance of the pool is a card.
func (p *Pool) wholes() bool { return p.Form == accel.Whole || p.Form == accel.Partition }

// stateOf is what is free on a node, processor in MHz: a thousandth of a core is taken for one MHz, since only the
// ratio of what is asked for to what there is matters. free gives the free instances of each pool.
func (l *Learnt) stateOf(last *modelSeen, n *Node, cpuMHz, memoryMiB int, free func(pool int) int) potential.State {
	s := potential.MakeState(cpuMHz, memoryMiB, nil)
	for i := range n.Pools {
		p := &n.Pools[i]
		count := free(i)
		c := l.roomOf(last, p, count)
		switch {
		case c == 0:
		case p.wholes():
			for range min(count, potential.MaxCards) {
				s.Add(c)
			}
		default:
			s.Add(c)
		}
	}
	return s
}

// state is what is free on the candidate's node, what the allocation under trial takes left out, and what is known of it.
func (c *Candidate) state(l *Learnt) (*potential.State, *value) {
	if c.work != nil {
		return c.work.state(l, c.node)
	}
	s := l.stateOf(&modelSeen{}, c.Node, c.FreeCPUMHz, c.FreeMemoryMiB, func(pool int) int {
		if p := &c.Node.Pools[pool]; p != c.Pool {
			return p.Free()
		}
		return c.FreeUnits
	})
	return &s, &value{}
}

func (c *Candidate) model() *modelSeen {
	if c.work == nil {
		return &modelSeen{}
	}
	return &c.work.model
}

// before is how many instances of the pool are free, what the allocation under trial takes left out.
func (c *Candidate) before() int {
	if c.work == nil {
		return c.FreeUnits
	}
	return c.work.freeBefore(c.node, c.pool)
}

func (w *work) state(l *Learnt, n int) (*potential.State, *value) {
	if !w.stated[n] {
		w.stated[n], w.values[n] = true, value{}
		node := &w.snap.Nodes[n]
		w.states[n] = l.stateOf(&w.model, node, node.CPUMHz-node.UsedCPUMHz-w.cpu[n], node.MemoryMiB-node.UsedMemoryMiB-w.memory[n],
			func(pool int) int { return w.freeBefore(n, w.first[n]+pool) })
	}
	return &w.states[n], &w.values[n]
}

// freeBefore is free before the picks under trial.
func (w *work) freeBefore(node, p int) int {
	free := w.free(node, p)
	for i, picked := range w.picks[:w.trialled] {
		if picked == p {
			free += w.trying[i].option.units
		}
	}
	return free
}

// potentialScore places where the potential of the node drops least: what it could still take of the demand. It is best
// fit while nothing is learnt.
type potentialScore struct {
	anybody
	learnt *Learnt // nil for nothing
	level  int     // of potential.Regime
}

var _ ScorePlugin = potentialScore{}

func (potentialScore) Name() string { return "potential" }

// Score falls strictly with the cost, so that of two places the cheaper one has the higher score: 50·(1 − x/(1 + |x|)),
// where x is by how much the potential drops, in cards of 64 GiB. It is 50 where the potential stays as it is.
func (p potentialScore) Score(c *Candidate) float64 {
	if p.learnt == nil {
		return binpack{}.Score(c)
	}
	return p.learnt.score(c, p.level)
}

func (l *Learnt) score(c *Candidate, level int) float64 {
	last := c.model()
	shape, room, ok := l.shape(last, c)
	if !ok {
		return 0
	}
	_, cardMiB := l.modelAfter(last, c.Pool)
	state, before := c.state(l)
	cost, ok := l.cost(state, before, &shape, room, cardMiB, level)
	if !ok {
		return 0
	}
	return worthAt(cost)
}

// worthAt is the score at a cost, MiB of card.
func worthAt(cost float64) float64 {
	x := cost / middlingMiB
	return 50 * (1 - x/(1+math.Abs(x)))
}

// shape is what the candidate's task asks of the node, for all allocations that must be there, and the card of the pool
// that it would take with what is free of it before the task took any.
func (l *Learnt) shape(last *modelSeen, c *Candidate) (p potential.Shape, room potential.Card, ok bool) {
	free := c.before()
	room = l.roomOf(last, c.Pool, free)
	if room == 0 || c.Units > free {
		return p, room, false
	}
	times := max(1, c.Allocations)
	tasks := max(1, c.Group.asking())
	p = potential.Shape{CPU: int32(c.Group.CPUMHz / tasks * times), Memory: int32(c.Group.MemoryMiB / tasks * times), Cards: int16(c.Task.Ask.Count), Milli: potential.Whole}
	if c.Pool.wholes() {
		p.Cards = int16(min(c.Units, math.MaxInt16))
		return p, room, true
	}
	p.Milli = int16(max(1, room.Milli()-thousandths(free-c.Units, c.Pool.Total)))
	return p, room, true
}
