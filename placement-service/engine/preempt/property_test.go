package preempt

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// drawWorld fills a small cluster with jobs of all kinds.
func drawWorld(t *rapid.T, most int) *world {
	w := &world{}
	for i := range rapid.IntRange(1, 3).Draw(t, "nodes") {
		name := fmt.Sprintf("n%d", i)
		cpu := rapid.SampledFrom([]int{400, 64000, 64000}).Draw(t, "cpu")
		var pools []engine.Pool
		if rapid.Bool().Draw(t, "whole") {
			pools = append(pools, whole("A100", rapid.IntRange(1, 4).Draw(t, "cards")))
		} else {
			for j := range rapid.IntRange(1, 3).Draw(t, "shared cards") {
				pools = append(pools, shared(fmt.Sprintf("c%d%d", i, j), 8))
			}
		}
		w.node(name, cpu, pools...)
	}
	n := rapid.IntRange(0, most).Draw(t, "running")
	for i := range n {
		drawRunning(t, w, fmt.Sprintf("a%02d", i))
	}
	return w
}

// drawRunning starts an allocation where there is room, if there is.
func drawRunning(t *rapid.T, w *world, id string) {
	node := &w.snapshot.Nodes[rapid.IntRange(0, len(w.snapshot.Nodes)-1).Draw(t, "node")]
	pool := &node.Pools[rapid.IntRange(0, len(node.Pools)-1).Draw(t, "pool")]
	free := pool.Free()
	if free == 0 || node.CPUMHz-node.UsedCPUMHz < 100 {
		return
	}
	a := take(id, node.ID, pool.Group, min(free, rapid.SampledFrom([]int{1, 1, 2, 3, 4, 8}).Draw(t, "units")), rapid.SampledFrom([]int{10, 20, 30, 60}).Draw(t, "priority"))
	a.Tenant = rapid.SampledFrom([]string{"x", "y"}).Draw(t, "tenant")
	a.Gold = rapid.IntRange(0, 19).Draw(t, "gold") == 0
	a.StartedAt = now - int64(rapid.SampledFrom([]int{100, 3600, 86400}).Draw(t, "age"))
	if gang := rapid.IntRange(0, 6).Draw(t, "gang"); gang < 2 {
		a.Job, a.Whole, a.Priority, a.Gold, a.Tenant = fmt.Sprintf("gang%d", gang), true, 10*(1+gang), false, "x"
	}
	w.runs(a)
}

func drawRequest(t *rapid.T) engine.Request {
	a := accel.Ask{Count: rapid.SampledFrom([]int{1, 1, 2, 3}).Draw(t, "count")}
	if rapid.Bool().Draw(t, "share") {
		a.MemoryMiB = uint64(1024 * rapid.IntRange(1, 8).Draw(t, "gib"))
	}
	r := asks(rapid.SampledFrom([]int{25, 50}).Draw(t, "priority"), rapid.SampledFrom([]int{1, 1, 2, 3}).Draw(t, "allocations"), a)
	r.DistinctHosts = rapid.IntRange(0, 5).Draw(t, "distinct") == 0
	return r
}

// cheapestCards is by trial of every set of units how many thousandths of cards have to go at least; -1 when none helps.
func cheapestCards(q Question) int64 {
	why := q.judge()
	cards := perCard(q.Snapshot)
	units := q.unitsOf(why, cards)
	best := int64(-1)
	for set := range 1 << len(units) {
		var gone []Allocation
		var milli int64
		for u := range units {
			if set>>u&1 == 1 {
				milli += units[u].milli
				for _, m := range units[u].members {
					gone = append(gone, q.Running[m])
				}
			}
		}
		if (best < 0 || milli < best) && q.Engine.Fits(Without(q.Snapshot, gone), q.Request) {
			best = milli
		}
	}
	return best
}

// TestFind_IsTheSmallest holds plans against every set there is.
func TestFind_IsTheSmallest(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		q := drawWorld(t, 9).question(drawRequest(t))
		p, best := Find(q), cheapestCards(q)
		if (p.Refusal == nil) != (best >= 0) {
			t.Fatalf("refusal is %+v, and %d thousandths of cards suffice", p.Refusal, best)
		}
		if p.Refusal == nil && p.Cards*1000 > float64(best)*1.1+1e-6 {
			t.Fatalf("evicts %v of %v cards, %d thousandths suffice", p.Victims, p.Cards, best)
		}
	})
}

// TestProposals_AreNearTheSmallest holds what is proposed in clusters too large for looking at every set: it is that
// part alone, on clusters that are not.
func TestProposals_AreNearTheSmallest(t *testing.T) {
	t.Parallel()
	var proposed, smallest, worst float64
	rapid.Check(t, func(t *rapid.T) {
		q := drawWorld(t, 11).question(drawRequest(t))
		best := cheapestCards(q)
		if best <= 0 {
			return
		}
		s := newSearch(&q, q.judge())
		least := int64(math.MaxInt64)
		for _, set := range s.proposals() {
			if !s.fits(q.Snapshot.Nodes, set) {
				continue
			}
			var milli int64
			for _, u := range s.thin(q.Snapshot.Nodes, set, q.Request) {
				milli += s.units[u].milli
			}
			least = min(least, milli)
		}
		if least == math.MaxInt64 {
			t.Fatalf("%d thousandths of cards suffice, and nothing is proposed", best)
		}
		proposed, smallest = proposed+float64(least), smallest+float64(best)
		worst = max(worst, float64(least)/float64(best))
	})
	t.Logf("proposed %.3f of the smallest on average, %.2f at worst", proposed/smallest, worst)
	if proposed > 1.05*smallest {
		t.Errorf("proposals take %.3f of the smallest, want at most 1.05", proposed/smallest)
	}
}

// TestFind_Properties holds every plan against the rules.
func TestFind_Properties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, 24)
		q := w.question(drawRequest(t))
		if rapid.Bool().Draw(t, "budget") {
			q.Policy.Budget = float64(rapid.IntRange(1, 4).Draw(t, "cards"))
			q.Lost = map[string]float64{"x": float64(rapid.IntRange(0, 2).Draw(t, "lost"))}
		}
		before := fmt.Sprintf("%+v", q.Snapshot)
		p := Find(q)
		if fmt.Sprintf("%+v", q.Snapshot) != before {
			t.Fatal("the snapshot was changed")
		}
		if p.Refusal != nil {
			if len(p.Victims) > 0 || p.Refusal.Sentence == "" || p.Refusal.Code == "" {
				t.Fatalf("a refusal evicts nothing and says why: %+v", p)
			}
			return
		}
		left, gone := without(w.running, p.Victims)
		if d := q.Engine.Decide(Without(q.Snapshot, gone), q.Request); !d.Placed {
			t.Fatalf("the request does not fit without %v: %s", p.Victims, d.Refusal.Sentence)
		}
		checkRules(t, q, left, gone)
		checkNeeded(t, q, gone)
	})
}

func checkRules(t *rapid.T, q Question, left, gone []Allocation) {
	lost := map[string]float64{}
	cards := perCard(q.Snapshot)
	for _, a := range gone {
		switch {
		case a.Priority >= q.Request.Priority:
			t.Fatalf("%s of priority %d goes for one of %d", a.ID, a.Priority, q.Request.Priority)
		case a.Gold:
			t.Fatalf("%s is gold", a.ID)
		case q.Now-a.StartedAt < q.Policy.MinRuntime:
			t.Fatalf("%s has run for %d s", a.ID, q.Now-a.StartedAt)
		}
		for _, b := range left {
			if a.Whole && b.Job == a.Job {
				t.Fatalf("%s goes and %s of its gang stays", a.ID, b.ID)
			}
		}
		lost[a.Tenant] += float64(milliOf(a.NodeID, a.Claims, cards)) / 1000
	}
	for tenant, n := range lost {
		if q.Policy.Budget > 0 && n+q.Lost[tenant] > q.Policy.Budget+1e-6 {
			t.Fatalf("tenant %s loses %v cards after %v, and may lose %v", tenant, n, q.Lost[tenant], q.Policy.Budget)
		}
	}
}

// checkNeeded puts each victim back, alone or with its gang, and sees that the request does not fit then.
func checkNeeded(t *rapid.T, q Question, gone []Allocation) {
	for _, back := range gone {
		var others []Allocation
		for _, a := range gone {
			if a.ID != back.ID && !(a.Whole && a.Job == back.Job) {
				others = append(others, a)
			}
		}
		if q.Engine.Fits(Without(q.Snapshot, others), q.Request) {
			t.Fatalf("%s could stay", back.ID)
		}
	}
}

// TestFind_EndsWithoutArrivals plays a cluster in which whatever can start starts, with or without evictions, until
// nothing happens. Evictions rearrange what runs towards higher priority: they cannot go on for ever.
func TestFind_EndsWithoutArrivals(t *testing.T) {
	t.Parallel()
	all := 0
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, 16)
		for i := range w.running { // every job is one allocation here, so that it can wait and start again
			w.running[i].Job, w.running[i].Whole = w.running[i].ID, false
		}
		g := &game{w: w, clock: now}
		for i := range rapid.IntRange(1, 6).Draw(t, "waiting") {
			r := drawRequest(t)
			r.Groups[0].Count = 1
			r.JobID = fmt.Sprintf("w%d", i)
			r.Priority = rapid.SampledFrom([]int{10, 20, 30, 50, 60}).Draw(t, "of priority")
			g.waiting = append(g.waiting, r)
		}
		evictions := 0
		for step := 0; ; step++ {
			if step > 2000 {
				t.Fatalf("still going on after %d evictions", evictions)
			}
			g.clock += int64(rapid.SampledFrom([]int{1, 700, 4000}).Draw(t, "seconds"))
			before := g.ranks()
			started, evicted := g.step(t)
			if evicted > 0 {
				evictions, all = evictions+1, all+1
				if after := g.ranks(); slices.Compare(after, before) <= 0 {
					t.Fatalf("an eviction did not raise what runs: %v, then %v", before, after)
				}
			}
			if !started && g.settled() {
				return
			}
		}
	})
	t.Logf("%d evictions", all)
	if all == 0 {
		t.Error("nothing was evicted")
	}
}

// game is a cluster with a queue.
type game struct {
	w       *world
	waiting []engine.Request
	clock   int64
}

// settled reports whether time alone will not help anybody: no rule that time lifts keeps anything.
func (g *game) settled() bool {
	for _, a := range g.w.running {
		if g.clock-a.StartedAt < 600 || a.EvictedAt != 0 && g.clock-a.EvictedAt < 1800 {
			return false
		}
	}
	return true
}

// ranks is how many thousandths of cards are held at each priority, the highest first.
func (g *game) ranks() []int64 {
	out := make([]int64, 101)
	cards := perCard(g.w.snapshot)
	for _, a := range g.w.running {
		out[100-a.Priority] += milliOf(a.NodeID, a.Claims, cards)
	}
	return out
}

// step starts the first waiting job that can, by priority.
func (g *game) step(t *rapid.T) (started bool, evicted int) {
	slices.SortStableFunc(g.waiting, func(a, b engine.Request) int { return cmp.Compare(b.Priority, a.Priority) })
	for i, r := range g.waiting {
		q := g.w.question(r)
		q.Now = g.clock
		p := Find(q)
		if p.Refusal != nil {
			continue
		}
		left, gone := without(g.w.running, p.Victims)
		g.w.snapshot, g.w.running = Without(g.w.snapshot, gone), left
		g.waiting = slices.Delete(g.waiting, i, i+1)
		for _, a := range gone {
			g.waiting = append(g.waiting, again(a))
		}
		g.start(t, r, p.Decision)
		return true, len(gone)
	}
	return false, 0
}

// again is the request of an allocation that was evicted, of the kind of pool that it held.
func again(a Allocation) engine.Request {
	ask := accel.Ask{Count: 1, MemoryMiB: 1024 * uint64(a.Claims[0].Units)}
	if a.Claims[0].Group == "nvidia/gpu/A100" {
		ask = accel.Ask{Count: a.Claims[0].Units}
	}
	r := asks(a.Priority, 1, ask)
	r.JobID = a.Job
	return r
}

func (g *game) start(t *rapid.T, r engine.Request, d engine.Decision) {
	if !d.Placed {
		t.Fatalf("%s was said to fit: %+v", r.JobID, d.Refusal)
	}
	place := d.Groups[0].Placements[0]
	a := Allocation{ID: r.JobID, Job: r.JobID, Priority: r.Priority, NodeID: place.NodeID, CPUMHz: 100, MemoryMiB: 100, StartedAt: g.clock}
	for _, task := range place.Tasks {
		a.Claims = append(a.Claims, task.Claims...)
	}
	g.w.runs(a)
}
