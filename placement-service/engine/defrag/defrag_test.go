package defrag

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/engine/preempt"
)

const now = 1_800_000_000

func cards(n int) engine.Pool {
	return engine.Pool{Group: "nvidia/gpu/A100", Vendor: accel.NVIDIA, Type: "gpu", Name: "A100", Model: "A100", Form: accel.Whole, UnitMiB: 81920, Total: n}
}

func shared(name string, slices int) engine.Pool {
	return engine.Pool{
		Group: "nvidia/vgpu/" + name, Vendor: accel.NVIDIA, Type: "vgpu", Name: name, Model: "A100", Form: accel.Shared, UnitMiB: 10240, Total: slices,
		Modes: []string{"mps"}, Cards: []engine.Card{{UUID: "GPU-" + name, Healthy: true, Units: slices}},
	}
}

func node(name string, pools ...engine.Pool) engine.Node {
	return engine.Node{
		ID: name, Name: name, Datacenter: "dc1", Ready: true, CPUMHz: 64000, MemoryMiB: 1 << 20, Drivers: map[string]bool{"heteroflow": true}, Pools: pools,
	}
}

func asks(id string, a accel.Ask) engine.Request {
	a.Count = max(1, a.Count)
	return engine.Request{JobID: id, Namespace: "default", Groups: []engine.GroupAsk{{
		Name: "g", Count: 1, CPUMHz: 100, MemoryMiB: 100, Tasks: []engine.TaskAsk{{Name: "t", Driver: "heteroflow", Ask: &a}},
	}}}
}

// start books an allocation of units of a pool.
func start(s *engine.Snapshot, id string, at, pool, units int) Allocation {
	n := &s.Nodes[at]
	p := &n.Pools[pool]
	p.Used += units
	n.UsedCPUMHz, n.UsedMemoryMiB = n.UsedCPUMHz+100, n.UsedMemoryMiB+100
	ask := accel.Ask{Count: units}
	if p.Form == accel.Shared {
		ask = accel.Ask{MemoryMiB: uint64(units) * p.UnitMiB}
	}
	return Allocation{
		Allocation: preempt.Allocation{
			ID: id, Job: id, NodeID: n.ID, Claims: []engine.Claim{{Group: p.Group, Units: units}}, CPUMHz: 100, MemoryMiB: 100, StartedAt: now - 60,
		},
		Group: "g", Again: asks(id, ask), Movable: true,
	}
}

// fragmented is 8 nodes with 4 cards, one of them free on each.
func fragmented() Question {
	q := Question{Engine: engine.New(engine.Config{}), Request: asks("big", accel.Ask{Count: 4}), Rest: 3600, Now: now}
	for i := range 8 {
		q.Snapshot.Nodes = append(q.Snapshot.Nodes, node(fmt.Sprintf("n%d", i), cards(4)))
	}
	for i := range 8 {
		for j := range 3 {
			q.Running = append(q.Running, start(&q.Snapshot, fmt.Sprintf("a%d%d", i, j), i, 0, 1))
		}
	}
	return q
}

func TestFind_ThreeMovesFreeANode(t *testing.T) {
	t.Parallel()
	q := fragmented()
	p := Find(q)
	if p.Refusal != "" || len(p.Moves) != 3 || p.Cards != 3 {
		t.Fatalf("plan is %+v, want 3 moves", p)
	}
	for _, m := range p.Moves {
		if m.From != p.Moves[0].From || m.To.NodeID == m.From {
			t.Errorf("%s goes from %s to %s, want all of one node to go elsewhere", m.ID, m.From, m.To.NodeID)
		}
	}
	text := p.Sentence("", func(id string) string { return id })
	if !strings.HasPrefix(text, "would start after moving a") || strings.Count(text, " from n") != 3 {
		t.Errorf("sentence is %q", text)
	}
	if text := p.Sentence("other", func(id string) string { return id }); strings.Contains(text, "a00") || !strings.Contains(text, "a job of another tenant from") {
		t.Errorf("to another tenant the sentence is %q", text)
	}
}

func TestFind_WhatStays(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*Question)
		says   string // empty: a plan
	}{
		"what cannot be started again": {func(q *Question) {
			for i := range q.Running {
				q.Running[i].Movable = q.Running[i].NodeID == "n5"
			}
		}, ""},
		"nothing can be": {func(q *Question) {
			for i := range q.Running {
				q.Running[i].Movable = false
			}
		}, "0 of 24 allocations may be moved"},
		"what was moved half an hour ago": {func(q *Question) {
			for i := range q.Running {
				q.Running[i].MovedAt = now - 1800
			}
		}, "0 of 24 allocations may be moved"},
		"too many moves": {func(q *Question) { q.Most = 2 }, "3 moves would be needed, and 2 at most are planned"},
		"nowhere else to go": {func(q *Question) {
			for i := range q.Snapshot.Nodes {
				q.Snapshot.Nodes[i].Pools[0].Total = 3
			}
			q.Request = asks("big", accel.Ask{Count: 3})
		}, "of their jobs would find no other place"},
		"it fits as it is": {func(q *Question) { q.Request = asks("small", accel.Ask{Count: 1}) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := fragmented()
			tc.change(&q)
			p := Find(q)
			if tc.says == "" && p.Refusal != "" || !strings.Contains(p.Refusal, tc.says) || p.Refusal != "" && len(p.Moves) > 0 {
				t.Errorf("plan is %+v, want %q", p, tc.says)
			}
		})
	}
}

func drawQuestion(t *rapid.T) Question {
	q := Question{Engine: engine.New(engine.Config{}), Rest: 3600, Now: now}
	for i := range rapid.IntRange(2, 5).Draw(t, "nodes") {
		var pools []engine.Pool
		if rapid.Bool().Draw(t, "whole") {
			pools = append(pools, cards(rapid.IntRange(1, 4).Draw(t, "cards")))
		} else {
			for j := range rapid.IntRange(1, 3).Draw(t, "shared") {
				pools = append(pools, shared(fmt.Sprintf("c%d%d", i, j), 8))
			}
		}
		q.Snapshot.Nodes = append(q.Snapshot.Nodes, node(fmt.Sprintf("n%d", i), pools...))
	}
	for i := range rapid.IntRange(4, 14).Draw(t, "running") {
		at := rapid.IntRange(0, len(q.Snapshot.Nodes)-1).Draw(t, "node")
		pool := rapid.IntRange(0, len(q.Snapshot.Nodes[at].Pools)-1).Draw(t, "pool")
		units := min(q.Snapshot.Nodes[at].Pools[pool].Free(), rapid.IntRange(1, 4).Draw(t, "units"))
		if units == 0 {
			continue
		}
		a := start(&q.Snapshot, fmt.Sprintf("a%02d", i), at, pool, units)
		a.Movable = rapid.IntRange(0, 3).Draw(t, "movable") > 0
		a.MovedAt = rapid.SampledFrom([]int64{0, 0, now - 600, now - 7200}).Draw(t, "moved")
		if n := len(q.Running); n > 0 && len(q.Running[n-1].Again.Groups) == 1 && rapid.IntRange(0, 3).Draw(t, "same job") == 0 { // two groups of one job
			last := &q.Running[n-1]
			a.Job, a.Group = last.Job, "h"
			both := last.Again
			both.Groups = append(slices.Clone(both.Groups), a.Again.Groups[0])
			both.Groups[1].Name = "h"
			last.Again, a.Again, last.Movable, last.MovedAt = both, both, a.Movable, a.MovedAt
		}
		q.Running = append(q.Running, a)
	}
	ask := accel.Ask{Count: rapid.IntRange(1, 3).Draw(t, "count")}
	if rapid.Bool().Draw(t, "share") {
		ask = accel.Ask{Count: 1, MemoryMiB: 10240 * uint64(rapid.IntRange(1, 8).Draw(t, "slices"))}
	}
	q.Request = asks("big", ask)
	return q
}

// TestFind_Properties makes the moves of each plan one job after the other.
func TestFind_Properties(t *testing.T) {
	t.Parallel()
	plans := 0
	rapid.Check(t, func(t *rapid.T) {
		q := drawQuestion(t)
		before := fmt.Sprintf("%+v", q.Snapshot)
		p := Find(q)
		if fmt.Sprintf("%+v", q.Snapshot) != before {
			t.Fatal("the snapshot was changed")
		}
		if p.Refusal != "" {
			return
		}
		again, ok := Renew(q, p)
		if !ok || len(again.Moves) != len(p.Moves) || len(again.Starts) != len(p.Starts) {
			t.Fatalf("on the same snapshot %d moves become %d, which hold: %v", len(p.Moves), len(again.Moves), ok)
		}
		made(t, q, again)
		made(t, q, p)
		if len(p.Moves) > 0 {
			plans++
		}
	})
	t.Logf("%d plans with moves", plans)
	if plans == 0 {
		t.Error("nothing was moved")
	}
}

// made makes the moves of a plan and holds it to what it promises.
func made(t *rapid.T, q Question, p Plan) {
	s := q.Snapshot
	moved := map[string]int{} // allocations by job
	for _, m := range p.Moves {
		at := slices.IndexFunc(q.Running, func(a Allocation) bool { return a.ID == m.ID })
		a := q.Running[at]
		if !a.Movable || a.MovedAt > now-q.Rest && a.MovedAt != 0 {
			t.Fatalf("%s moves, which it may not", m.ID)
		}
		moved[a.Job]++
	}
	for _, start := range p.Starts {
		s = preempt.With(s, start.Request, start.Decision)
		for _, n := range s.Nodes {
			for _, pool := range n.Pools {
				if pool.Used > pool.Total {
					t.Fatalf("%s does not fit beside what runs when its turn comes: %d of %d on %s", start.Job, pool.Used, pool.Total, n.ID)
				}
			}
		}
		var gone []preempt.Allocation
		for _, a := range q.Running {
			if a.Job == start.Job {
				gone = append(gone, a.Allocation)
			}
		}
		if moved[start.Job] != len(gone) {
			t.Fatalf("%d of %d allocations of %s move", moved[start.Job], len(gone), start.Job)
		}
		delete(moved, start.Job)
		s = preempt.Without(s, gone)
	}
	if len(moved) > 0 {
		t.Fatalf("%v move and have no room", moved)
	}
	if d := q.Engine.Decide(s, q.Request); !d.Placed {
		t.Fatalf("after %d moves: %s", len(p.Moves), d.Refusal.Sentence)
	}
}

// TestFind_JobsMoveWhole: of two jobs with a card on the node, the one that has another allocation elsewhere costs more.
func TestFind_JobsMoveWhole(t *testing.T) {
	t.Parallel()
	q := Question{Engine: engine.New(engine.Config{}), Request: asks("big", accel.Ask{Count: 2}), Rest: 3600, Now: now}
	for i := range 4 {
		q.Snapshot.Nodes = append(q.Snapshot.Nodes, node(fmt.Sprintf("n%d", i), cards(2)))
	}
	pair := asks("pair", accel.Ask{Count: 1})
	pair.Groups[0].Count = 2
	for i := range 2 {
		a := start(&q.Snapshot, fmt.Sprintf("p%d", i), i, 0, 1)
		a.Job, a.Again = "pair", pair
		q.Running = append(q.Running, a)
	}
	q.Running = append(q.Running, start(&q.Snapshot, "s", 2, 0, 1), start(&q.Snapshot, "t", 3, 0, 1))
	q.Running[3].Movable = false
	if p := Find(q); len(p.Moves) != 1 || p.Moves[0].Job != "s" {
		t.Fatalf("plan is %+v, want the single job to move", p)
	}
	q.Running[2].Movable = false
	p := Find(q)
	if len(p.Moves) != 2 || len(p.Starts) != 1 || p.MilliCards["pair"] != 2000 {
		t.Fatalf("plan is %+v, want both allocations of the pair to move", p)
	}
	q.Snapshot.Nodes[0].Pools[0].Used, q.Snapshot.Nodes[1].Pools[0].Used = 2, 2 // others came
	if _, ok := Renew(q, p); ok {
		t.Error("the plan holds although the room is gone")
	}
}

func TestMeasure_TellsWhatTheDemandCannotUse(t *testing.T) {
	t.Parallel()
	s := engine.Snapshot{Nodes: []engine.Node{node("n0", cards(4)), node("n1", shared("c0", 8), shared("c1", 8)), node("n2", cards(2))}}
	s.Nodes[0].Pools[0].Used = 1
	s.Nodes[1].Pools[0].Used = 6 // 2 slices of 10 GiB are left
	s.Nodes[2].Ready = false
	pair := engine.Asked{Cards: 2, Weight: 3}
	share := engine.Asked{Cards: 1, CardMiB: 40960, Weight: 1}
	for name, tc := range map[string]struct {
		demand []engine.Asked
		lost   [2]float64 // on the two nodes
	}{
		"of nothing":                       {nil, [2]float64{0, 0}},
		"pairs of cards":                   {[]engine.Asked{pair}, [2]float64{0, 1.25}},
		"shares":                           {[]engine.Asked{share}, [2]float64{3, 0.25}},
		"three pairs for each share":       {[]engine.Asked{pair, share}, [2]float64{0.75, 0.75*1.25 + 0.25*0.25}},
		"jobs without cards do not matter": {[]engine.Asked{pair, {Weight: 100}}, [2]float64{0, 1.25}},
		"more processor than there is":     {[]engine.Asked{{Cards: 1, CPUMHz: 100000, Weight: 1}}, [2]float64{3, 1.25}},
		"another brand":                    {[]engine.Asked{{Cards: 1, Vendors: []accel.Vendor{accel.Ascend}, Weight: 1}}, [2]float64{3, 1.25}},
	} {
		r := Measure(s, tc.demand)
		for i, want := range tc.lost {
			if got := r.Nodes[i].LostCards; math.Abs(got-want) > 1e-9 {
				t.Errorf("%s: node %d loses %v cards, want %v", name, i, got, want)
			}
		}
		if r.FreeCards != 4.25 || r.Nodes[2].FreeCards != 0 || r.LostCards > r.FreeCards {
			t.Errorf("%s: %v cards are free and %v lost, want 4.25 and no more", name, r.FreeCards, r.LostCards)
		}
	}
}
