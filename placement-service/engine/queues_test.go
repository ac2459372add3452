package engine

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// campaign is many jobs that wait in many queues for one cluster, on a virtual clock: in each tick jobs end, and the
// queues are asked, the one that uses least first, for their first job, until nothing more fits. A queue has at most so
// many cards at a time.
type campaign struct {
	e       *Engine
	c       *Cluster
	nodes   map[string]*Node
	waiting [][]waitingJob // by queue
	uses    []int          // cards, by queue
	ends    map[int][]runningJob
	now     int
	done    int
	tries   int
}

type waitingJob struct {
	r     Request
	kind  int // of the same kind all fit or none does
	cards int
	lasts int
}

type runningJob struct {
	queue, cards int
	r            Request
	d            Decision
}

const quotaCards = 24 // of each queue

func newCampaign(jobs, queues, nodes int) *campaign {
	rng := rand.New(rand.NewPCG(7, 8))
	p := &campaign{e: New(Config{}), nodes: map[string]*Node{}, ends: map[int][]runningJob{}, uses: make([]int, queues), waiting: make([][]waitingJob, queues)}
	var all []testNode
	for i := range nodes {
		n := testNode{Name: fmt.Sprintf("n%04d", i), Beside: []string{AnyTenant}}
		if i%2 == 0 {
			n.Cards = slices.Repeat([]testCard{{}}, 8)
		} else {
			n.Cards = []testCard{{Form: accel.Whole, Count: 8}}
		}
		all = append(all, n)
	}
	s := snapshotOf(all...)
	p.c = NewCluster(s.Nodes...)
	for i := range s.Nodes {
		p.nodes[s.Nodes[i].ID] = &s.Nodes[i]
	}
	asks := []accel.Ask{{MemoryMiB: 4 << 10}, {MemoryMiB: 10 << 10}, {MemoryMiB: 20 << 10}, {MemoryMiB: 40 << 10}, {Count: 1}, {Count: 2}, {Count: 4}, {Count: 8}}
	for i := range jobs {
		queue, kind := i%queues, rng.IntN(len(asks))
		r := ask(1, asks[kind])
		r.JobID, r.Tenant = fmt.Sprint("j", i), fmt.Sprint("t", queue)
		p.waiting[queue] = append(p.waiting[queue], waitingJob{r: r, kind: kind, cards: max(1, asks[kind].Count), lasts: 1 + rng.IntN(100)})
	}
	return p
}

// tick lets jobs end and others start. It is false when nothing is left.
func (p *campaign) tick(t testing.TB) bool {
	p.now++
	for _, j := range p.ends[p.now] {
		p.book(t, j.r, j.d, -1)
		p.uses[j.queue] -= j.cards
		p.done++
	}
	delete(p.ends, p.now)
	order := make([]int, 0, len(p.waiting))
	for q := range p.waiting {
		if len(p.waiting[q]) > 0 {
			order = append(order, q)
		}
	}
	refused := map[int]bool{}
	for again := true; again; {
		again = false
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(p.uses[a], p.uses[b]) })
		for _, q := range order {
			if len(p.waiting[q]) == 0 {
				continue
			}
			first := p.waiting[q][0]
			if refused[first.kind] || p.uses[q]+first.cards > quotaCards {
				continue
			}
			p.tries++
			d := p.e.DecideOn(p.c, first.r)
			if !d.Placed {
				refused[first.kind] = true
				continue
			}
			p.book(t, first.r, d, 1)
			p.uses[q] += first.cards
			p.ends[p.now+first.lasts] = append(p.ends[p.now+first.lasts], runningJob{q, first.cards, first.r, d})
			p.waiting[q] = p.waiting[q][1:]
			again = true
		}
	}
	return len(order) > 0 || len(p.ends) > 0
}

// book takes what a decision takes, or gives it back.
func (p *campaign) book(t testing.TB, r Request, d Decision, times int) {
	for _, place := range d.Groups[0].Placements {
		n := p.nodes[place.NodeID]
		n.Pools = slices.Clone(n.Pools) // the cluster has the old ones
		n.UsedCPUMHz += times * r.Groups[0].CPUMHz
		n.UsedMemoryMiB += times * r.Groups[0].MemoryMiB
		for _, c := range place.Tasks[0].Claims {
			pool := poolOf(n, c.Group)
			if pool.Used += times * c.Units; pool.Used < 0 || pool.Used > pool.Total {
				t.Fatalf("%s of %s has %d of %d", c.Group, n.Name, pool.Used, pool.Total)
			}
			pool.Hold(r.Tenant, times*c.Units)
			if len(pool.Cards) == 1 {
				pool.Cards = []Card{pool.Cards[0]}
				pool.Cards[0].UsedUnits = pool.Used
			}
		}
		p.c.Set(*n)
	}
}

// TestCampaign is a small one: every job runs once, and nothing is left over.
func TestCampaign(t *testing.T) {
	t.Parallel()
	p := newCampaign(800, 40, 10)
	for p.tick(t) {
	}
	if p.done != 800 {
		t.Errorf("%d of 800 jobs ended", p.done)
	}
	for _, n := range p.c.Snapshot().Nodes {
		for _, pool := range n.Pools {
			if pool.Used != 0 || len(pool.Holders) != 0 {
				t.Errorf("%s of %s has %d taken, by %v", pool.Group, n.Name, pool.Used, pool.Holders)
			}
		}
	}
}

// BenchmarkQueues takes 50,000 jobs of 1,000 queues through 1,000 nodes of 8 cards; Kueue publishes 1,179 s for as many.
func BenchmarkQueues(b *testing.B) {
	for b.Loop() {
		p := newCampaign(50000, 1000, 1000)
		for p.tick(b) {
		}
		if p.done != 50000 {
			b.Fatalf("%d jobs ended", p.done)
		}
		b.ReportMetric(float64(p.tries), "decisions")
		b.ReportMetric(float64(p.now), "ticks")
	}
}
