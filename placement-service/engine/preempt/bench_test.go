package preempt

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// full is a cluster of nodes with 8 whole cards, full of jobs whose sizes are drawn from the list.
func full(nodes int, sizes ...int) *world {
	w := &world{}
	draw := rand.New(rand.NewPCG(7, 7))
	for i := range nodes {
		name := fmt.Sprintf("n%05d", i)
		w.node(name, 64000, whole("A100", 8))
		for left := 8; left > 0; {
			size := min(left, sizes[draw.IntN(len(sizes))])
			id := fmt.Sprintf("%s-%d", name, left)
			w.add(len(w.snapshot.Nodes)-1, take(id, name, "nvidia/gpu/A100", size, 10+draw.IntN(30)))
			left -= size
		}
	}
	return w
}

// add is runs on a node whose place is known.
func (w *world) add(node int, a Allocation) {
	n := &w.snapshot.Nodes[node]
	n.UsedCPUMHz, n.UsedMemoryMiB = n.UsedCPUMHz+a.CPUMHz, n.UsedMemoryMiB+a.MemoryMiB
	n.Pools[0].Used += a.Claims[0].Units
	w.running = append(w.running, a)
}

// crowds are clusters and jobs that ask for 48 cards.
var crowds = []struct {
	name        string
	sizes       []int
	allocations int
	cards       int
	most        float64 // evicted
}{
	{"48×1 among 1", []int{1}, 48, 1, 48},
	{"6×8 among 1", []int{1}, 6, 8, 48},
	{"12×4 among 1 and 2", []int{1, 2}, 12, 4, 48},
	{"48×1 among 1, 2 and 4", []int{1, 2, 4}, 48, 1, 48},
	{"24×2 among 3 and 5", []int{3, 5}, 24, 2, 53},
	{"6×8 among 1, 2, 4 and 8", []int{1, 2, 4, 8}, 6, 8, 48},
	{"16×3 among 2 and 4", []int{2, 4}, 16, 3, 53},
}

// TestFind_Crowds holds the evictions for 48 cards in 1,000 full nodes to 1.1 times as many.
func TestFind_Crowds(t *testing.T) {
	t.Parallel()
	for _, c := range crowds {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := full(1000, c.sizes...)
			p := Find(w.question(asks(50, c.allocations, accel.Ask{Count: c.cards})))
			if p.Refusal != nil || p.Cards > c.most || p.Cards < 48 || p.Asked != 48 {
				t.Errorf("evicts %v cards for %v, want 48 to %v for 48: %+v", p.Cards, p.Asked, c.most, p.Refusal)
			}
		})
	}
}

// BenchmarkFind is how long a plan takes, and how many cards go for 48.
func BenchmarkFind(b *testing.B) {
	for _, c := range crowds {
		b.Run(c.name, func(b *testing.B) {
			w := full(1000, c.sizes...)
			q := w.question(asks(50, c.allocations, accel.Ask{Count: c.cards}))
			var p Plan
			for b.Loop() {
				p = Find(q)
			}
			b.ReportMetric(p.Cards, "cards_evicted")
			b.ReportMetric(float64(len(p.Victims)), "allocations_evicted")
		})
	}
}
