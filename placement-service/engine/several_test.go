package engine

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// TestDecideSeveral_IsDecide: on a larger cluster that fills up, several allocations and groups go where a look at every
// node sends them, and nodes that were taken out of the index to find them are back afterwards.
func TestDecideSeveral_IsDecide(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 4))
	e, c := New(Config{Learnt: learntSome()}), NewCluster(crowdedNodes(rng, 60)...)
	few, placed := 0, 0
	for step := range 400 {
		r := ask(1+rng.IntN(8), accel.Ask{MemoryMiB: uint64(1+rng.IntN(20)) << 10})
		if rng.IntN(3) == 0 {
			r.Groups[0].Tasks[0].Ask.MemoryMiB = 0
		}
		r.Groups[0].DistinctHosts = rng.IntN(4) == 0
		if rng.IntN(3) == 0 {
			second := ask(1+rng.IntN(3), accel.Ask{MemoryMiB: uint64(1+rng.IntN(30)) << 10}).Groups[0]
			second.Name = "other"
			r.Groups = append(r.Groups, second)
		}
		s := c.Snapshot()
		want := e.Decide(s, r)
		if _, ok := e.decideSeveral(c, &r); ok {
			few++
		}
		if diff := cmp.Diff(want, e.DecideOn(c, r)); diff != "" {
			t.Fatalf("step %d (-of the snapshot +of the cluster)\n%s", step, diff)
		}
		single := ask(1, accel.Ask{MemoryMiB: uint64(1+rng.IntN(20)) << 10})
		if diff := cmp.Diff(e.Decide(s, single), e.DecideOn(c, single)); diff != "" {
			t.Fatalf("step %d, one allocation after several (-of the snapshot +of the cluster)\n%s", step, diff)
		}
		if !want.Placed {
			continue
		}
		placed++
		after := clone(s)
		book(t, after, r, want)
		for _, g := range want.Groups {
			for _, id := range g.Nodes {
				c.Set(*nodeOf(after, id))
			}
		}
	}
	if few < placed*9/10 {
		t.Errorf("of %d placed requests only %d were decided among the best nodes", placed, few)
	}
}

// crowdedNodes are partly used nodes, half of them shared and half whole.
func crowdedNodes(rng *rand.Rand, nodes int) []Node {
	var all []testNode
	for i := range nodes {
		n := testNode{Name: fmt.Sprintf("node-%04d", i)}
		if i%2 == 0 {
			for range 4 {
				n.Cards = append(n.Cards, testCard{Used: rng.IntN(70)})
			}
		} else {
			n.Cards = []testCard{{Form: accel.Whole, Count: 8, Used: rng.IntN(6)}}
		}
		all = append(all, n)
	}
	return snapshotOf(all...).Nodes
}

// BenchmarkDecideSeveral decides for groups of several allocations, and books each before the next: by a look at every node
// and among the best, in one run, so that their ratio stands whatever the machine does.
func BenchmarkDecideSeveral(b *testing.B) {
	for _, nodes := range []int{1000, 10000} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			e := New(Config{})
			for name, decide := range map[string]func(*Cluster, Request) Decision{
				"all":  func(c *Cluster, r Request) Decision { return e.Decide(c.Snapshot(), r) },
				"best": e.DecideOn,
			} {
				b.Run(name, func(b *testing.B) {
					rng := rand.New(rand.NewPCG(5, 6))
					c := NewCluster(crowdedNodes(rng, nodes)...)
					b.ReportAllocs()
					for n := 0; b.Loop(); n++ {
						r := ask(8, accel.Ask{MemoryMiB: uint64(1+n%8) << 10})
						d := decide(c, r)
						if !d.Placed {
							b.Fatal(d.Refusal.Sentence)
						}
						b.StopTimer()
						refill(c, d)
						b.StartTimer()
					}
				})
			}
		})
	}
}

// refill books what was decided, and empties what it came to fill.
func refill(c *Cluster, d Decision) {
	for _, p := range d.Groups[0].Placements {
		n := c.nodes[c.numbers[p.NodeID]]
		n.Pools = append([]Pool(nil), n.Pools...)
		for i := range n.Pools {
			pool := &n.Pools[i]
			if pool.Group != p.Tasks[0].Claims[0].Group {
				continue
			}
			if pool.Used += p.Tasks[0].Claims[0].Units; pool.Used > pool.Total-8 {
				pool.Used = 0
			}
			pool.Cards = append([]Card(nil), pool.Cards...)
			pool.Cards[0].UsedUnits = pool.Used
		}
		c.Set(n)
	}
}
