package index

import (
	"math/rand/v2"
	"testing"
)

// table judges by numbers alone. Nodes of a higher number come before.
type table struct{ epoch int }

func (t *table) Judge(_ int, s, k *int) (int, bool) {
	v := (*s*7 + *k*13 + t.epoch) % 11
	return v, (*s+*k)%5 != 0
}

func (*table) Better(a, b int) bool { return a < b }
func (*table) Before(a, b int) bool { return a > b }
func (t *table) Epoch() int         { return t.epoch }

// scan is what an index must find, by a look at every node.
func scan(j *table, nodes map[int]int, k int) (node, v int, ok bool) {
	for n, s := range nodes {
		worth, fits := j.Judge(n, &s, &k)
		if fits && (!ok || j.Better(worth, v) || worth == v && j.Before(n, node)) {
			node, v, ok = n, worth, true
		}
	}
	return node, v, ok
}

func TestIndex_ChoosesWhatAFullScanChooses(t *testing.T) {
	t.Parallel()
	const count = 50
	r := rand.New(rand.NewPCG(3, 4))
	j := &table{}
	x := New[int, int, int](j, 2000)
	x.spare = 40 // states are forgotten all the time
	nodes := map[int]int{}
	most := 0
	for step := range 20_000 {
		n := r.IntN(count)
		switch r.IntN(8) {
		case 0:
			delete(nodes, n)
			x.Remove(n)
		case 1:
			if r.IntN(100) == 0 {
				j.epoch++
			}
		default:
			nodes[n] = r.IntN(1 + step/50)
			x.Set(n, nodes[n])
		}
		k := min(r.IntN(30), r.IntN(30))
		wantNode, wantV, want := scan(j, nodes, k)
		if node, v, ok := x.Choose(&k); ok != want || ok && (node != wantNode || v != wantV) {
			t.Fatalf("step %d: chose %d worth %d %v, a scan %d worth %d %v", step, node, v, ok, wantNode, wantV, want)
		}
		if step%20 == 0 {
			checkEach(t, x, j, nodes, k)
		}
		most = max(most, len(x.kinds)*len(x.states))
	}
	if n := len(x.states); n > 2*count+40 || most > 2000+n {
		t.Errorf("%d states for %d nodes, %d judgements", n, count, most)
	}
}

// checkEach holds what Each tells against all nodes.
func checkEach(t *testing.T, x *Index[int, int, int], j *table, nodes map[int]int, k int) {
	t.Helper()
	first, members := map[int]int{}, map[int]int{}
	for n, s := range nodes {
		if at, known := first[s]; !known || j.Before(n, at) {
			first[s] = n
		}
		members[s]++
	}
	states := 0
	x.Each(&k, func(at, count int, v *int, fit bool) {
		states++
		s := nodes[at]
		worth, fits := j.Judge(at, &s, &k)
		if at != first[s] || count != members[s] || *v != worth || fit != fits {
			t.Fatalf("state %d: first %d of %d, worth %d %v; want %d of %d, %d %v", s, at, count, *v, fit, first[s], members[s], worth, fits)
		}
	})
	if states != len(first) {
		t.Fatalf("%d states are told, there are %d", states, len(first))
	}
}
