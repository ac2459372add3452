package potential

import (
	"math/rand/v2"
	"testing"
)

// scan is what the index must choose, found by looking at every node.
func scan(scorer Scorer, nodes map[int]State, count int, p *Shape) (node int, room Card, ok bool) {
	var least float32
	for n := range count {
		s, there := nodes[n]
		if !there {
			continue
		}
		if cost, c, fits := scorer.Cost(&s, p); fits && (!ok || cost < least) {
			least, node, room, ok = cost, n, c, true
		}
	}
	return node, room, ok
}

func TestIndex_ChoosesWhatAFullScanChooses(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(9, 10))
	var demand []Share
	for i := range 40 {
		demand = append(demand, Share{anyShape(r), float64(40 - i)})
	}
	mix := NewMix(demand)
	var supply []Supply
	for range 10 {
		supply = append(supply, Supply{anyState(r), 6})
	}
	for name, scorer := range map[string]Scorer{
		"best fit": BestFit{}, "FGD": NewFGD(demand), "ours": learnt(mix, supply), "ours, knowing nothing": NewPolicy(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkIndex(t, scorer, demand, supply)
		})
	}
}

func learnt(mix *Mix, supply []Supply) *Policy {
	p := NewPolicy()
	p.Learn(mix, supply)
	return p
}

// checkIndex lets requests come and go and nodes appear, change and vanish.
func checkIndex(t *testing.T, scorer Scorer, demand []Share, supply []Supply) {
	const count = 60
	r := rand.New(rand.NewPCG(11, 12))
	x := NewIndex(scorer)
	nodes := map[int]State{}
	set := func(n int, s State) {
		nodes[n] = s
		x.Set(n, s)
	}
	chosen := 0
	for step := range 1_500 {
		switch n := r.IntN(count); {
		case r.IntN(4) == 0: // a request leaves, a node comes or changes
			set(n, supply[n%len(supply)].State)
			if p, ok := scorer.(*Policy); ok {
				p.Left()
			}
		case r.IntN(40) == 0:
			delete(nodes, n)
			x.Remove(n)
		}
		shape := &demand[min(r.IntN(40), r.IntN(40))].Shape
		wantNode, wantRoom, want := scan(scorer, nodes, count, shape)
		node, room, ok := x.Choose(shape)
		if ok != want || ok && (node != wantNode || room != wantRoom) {
			t.Fatalf("step %d: chose %d %v %v, a scan %d %v %v", step, node, room, ok, wantNode, wantRoom, want)
		}
		if !ok {
			continue
		}
		chosen++
		s := x.State(node)
		set(node, s.Place(shape, room))
		if p, ok := scorer.(*Policy); ok {
			p.Placed()
		}
	}
	if chosen < 300 {
		t.Errorf("only %d placed", chosen)
	}
}
