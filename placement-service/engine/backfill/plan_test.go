package backfill

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/engine/preempt"
)

// node has whole cards of one model.
func node(name string, cards int) engine.Node {
	return engine.Node{
		ID: name, Name: name, Datacenter: "dc1", Ready: true, CPUMHz: 64000, MemoryMiB: 1 << 20, Drivers: map[string]bool{"heteroflow": true},
		Pools: []engine.Pool{{Group: "nvidia/gpu/A100", Vendor: accel.NVIDIA, Type: "gpu", Name: "A100", Model: "A100", Form: accel.Whole, UnitMiB: 81920, Total: cards}},
	}
}

// asks is a job of allocations with cards each.
func asks(id string, allocations, cards int) engine.Request {
	return engine.Request{JobID: id, Namespace: "default", Groups: []engine.GroupAsk{{
		Name: "g", Count: allocations, CPUMHz: 100, MemoryMiB: 100,
		Tasks: []engine.TaskAsk{{Name: "t", Driver: "heteroflow", Ask: &accel.Ask{Count: cards}}},
	}}}
}

// life is a cluster on a virtual clock: jobs start, and end exactly when they said.
type life struct {
	e       *engine.Engine
	s       engine.Snapshot
	running []Allocation
	now     int64
}

// start books what was decided. Nobody is told the end of a job with hidden set.
func (l *life) start(r engine.Request, d engine.Decision, ends int64) {
	l.s = preempt.With(l.s, r, d)
	for i, p := range d.Groups[0].Placements {
		a := Allocation{EndsAt: ends, Allocation: preempt.Allocation{
			ID: fmt.Sprint(r.JobID, "/", i), Job: r.JobID, NodeID: p.NodeID, CPUMHz: r.Groups[0].CPUMHz, MemoryMiB: r.Groups[0].MemoryMiB, StartedAt: 1,
		}}
		a.Claims = append(a.Claims, p.Tasks[0].Claims...)
		l.running = append(l.running, a)
	}
}

// end ends what is over.
func (l *life) end(over func(*Allocation) bool) {
	var gone []preempt.Allocation
	l.running = slices.DeleteFunc(l.running, func(a Allocation) bool {
		if over(&a) {
			gone = append(gone, a.Allocation)
			return true
		}
		return false
	})
	l.s = preempt.Without(l.s, gone)
}

func (l *life) question(head engine.Request) Question {
	return Question{Engine: l.e, Snapshot: l.s, Head: head, Running: l.running, Now: l.now}
}

// next is the next end.
func (l *life) next() (at int64, any bool) {
	for _, a := range l.running {
		if !any || a.EndsAt < at {
			at, any = a.EndsAt, true
		}
	}
	return at, any
}

// alone is when a job starts when nothing else starts before it: what backfill must not be later than.
func (l *life) alone(r engine.Request) int64 {
	other := &life{e: l.e, s: l.s, running: slices.Clone(l.running), now: l.now}
	for !other.e.Fits(other.s, r) {
		at, any := other.next()
		if !any {
			return -1
		}
		other.now = at
		other.end(func(a *Allocation) bool { return a.EndsAt <= at })
	}
	return other.now
}

// beside decides for a request beside a plan.
func beside(p *Plan, q Question, r engine.Request, ends int64) engine.Decision {
	return p.Beside(q, r, q.Engine.Decide(q.Snapshot, r), ends, func(s engine.Snapshot) engine.Decision { return q.Engine.Decide(s, r) })
}

type job struct {
	request engine.Request
	arrives int64
	lasts   int64
}

func drawJobs(t *rapid.T, most int) []job {
	var out []job
	at := int64(1)
	for i := range rapid.IntRange(2, 25).Draw(t, "jobs") {
		at += int64(rapid.IntRange(0, 6).Draw(t, "after"))
		out = append(out, job{
			request: asks(fmt.Sprintf("j%02d", i), rapid.SampledFrom([]int{1, 1, 1, 2, 3}).Draw(t, "allocations"), rapid.IntRange(1, most).Draw(t, "cards")),
			arrives: at, lasts: int64(rapid.IntRange(1, 40).Draw(t, "lasts")),
		})
	}
	return out
}

// TestBackfill_NeverDelaysTheHead: on a virtual clock, jobs in front of which others run start when they would have if
// nothing had, or earlier.
func TestBackfill_NeverDelaysTheHead(t *testing.T) {
	t.Parallel()
	backfilled := 0
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(2, 8).Draw(t, "most")
		l := &life{e: engine.New(engine.Config{})}
		for i := range rapid.IntRange(3, 5).Draw(t, "nodes") {
			l.s.Nodes = append(l.s.Nodes, node(fmt.Sprintf("n%d", i), most))
		}
		jobs := drawJobs(t, most)
		var waiting []job
		bound := map[string]int64{}
		for len(jobs)+len(waiting) > 0 {
			if end, any := l.next(); len(jobs) > 0 && (!any || jobs[0].arrives <= end) {
				l.now = max(l.now, jobs[0].arrives)
				waiting = append(waiting, jobs[0])
				jobs = jobs[1:]
			} else if any {
				l.now = end
				l.end(func(a *Allocation) bool { return a.EndsAt <= end })
			} else {
				t.Fatalf("%s waits in an empty cluster", waiting[0].request.JobID)
			}
			waiting = l.round(t, waiting, bound, &backfilled)
		}
	})
	if backfilled == 0 {
		t.Error("nothing ever ran in front of a job that waits")
	}
}

// round tries all that waits, the first one first.
func (l *life) round(t *rapid.T, waiting []job, bound map[string]int64, backfilled *int) (left []job) {
	var plan *Plan
	var head job
	for _, j := range waiting {
		id := j.request.JobID
		var d engine.Decision
		switch {
		case plan == nil:
			d = l.e.Decide(l.s, j.request)
		default:
			d = beside(plan, l.question(head.request), j.request, l.now+j.lasts)
		}
		if d.Placed {
			if at, was := bound[id]; was && l.now > at {
				t.Fatalf("%s starts at %d and was to start at %d at the latest", id, l.now, at)
			}
			if plan != nil {
				*backfilled++
			}
			l.start(j.request, d, l.now+j.lasts)
			continue
		}
		left = append(left, j)
		if plan != nil {
			continue
		}
		p, ok := Find(l.question(j.request))
		if want := l.alone(j.request); !ok || p.At != want {
			t.Fatalf("%s starts at %d by the plan (%v), and at %d when nothing else starts", id, p.At, ok, want)
		}
		if at, was := bound[id]; was && p.At > at {
			t.Fatalf("%s was to start at %d at the latest, and is now to start at %d", id, at, p.At)
		}
		plan, head, bound[id] = &p, j, p.At
	}
	return left
}

// TestBackfill_KeepsWhatComesFree: of jobs whose end nobody knows, those that the head waits for are few, and what is free
// beside them is never taken by others, so that it starts when they have ended.
func TestBackfill_KeepsWhatComesFree(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := &life{e: engine.New(engine.Config{}), now: 1}
		for i := range rapid.IntRange(1, 4).Draw(t, "nodes") {
			l.s.Nodes = append(l.s.Nodes, node(fmt.Sprintf("n%d", i), 8))
		}
		small := func(i int) engine.Request { return asks(fmt.Sprint("s", i), 1, rapid.IntRange(1, 4).Draw(t, "cards")) }
		head := asks("head", rapid.IntRange(1, len(l.s.Nodes)).Draw(t, "allocations"), rapid.IntRange(5, 8).Draw(t, "of the head"))
		n := 0
		for n < 40 {
			r := small(n)
			n++
			d := l.e.Decide(l.s, r)
			if !d.Placed {
				break
			}
			l.start(r, d, 0)
		}
		if l.e.Fits(l.s, head) {
			return
		}
		plan, ok := Find(l.question(head))
		if !ok || plan.At != 0 || len(plan.Waits) == 0 {
			t.Fatalf("plan %+v, %v", plan, ok)
		}
		for _, id := range plan.Waits { // they end one by one, and others want the room each time
			l.end(func(a *Allocation) bool { return a.ID == id })
			if !plan.Stands(l.question(head)) {
				t.Fatal("the place does not stand")
			}
			for range rapid.IntRange(0, 5).Draw(t, "come") {
				r := small(n)
				n++
				if d := beside(&plan, l.question(head), r, 0); d.Placed {
					l.start(r, d, 0)
				} else if d.Refusal.Code == "" || d.Refusal.Sentence == "" {
					t.Fatalf("refused without a word: %+v", d.Refusal)
				}
			}
		}
		if !takes(l.s, head, plan.Place) {
			t.Fatalf("all that it waited for has ended, and its place is not free: %+v", plan)
		}
	})
}

func TestDecide_ShortJobsRunInFrontOfTheHead(t *testing.T) {
	t.Parallel()
	l := &life{e: engine.New(engine.Config{}), now: 100}
	l.s.Nodes = []engine.Node{node("n1", 8), node("n2", 8)}
	for i, ends := range []int64{200, 300} { // six cards of each node are in use
		r := asks(fmt.Sprint("long", i), 1, 6)
		l.start(r, l.e.Decide(l.s, r), ends)
	}
	head := asks("head", 2, 8)
	plan, ok := Find(l.question(head))
	if !ok || plan.At != 300 {
		t.Fatalf("plan %+v, %v", plan, ok)
	}
	for name, c := range map[string]struct {
		ends int64
		want engine.Code
	}{
		"ends before the head starts": {300, ""},
		"ends after it":               {301, CodeReserved},
		"nobody knows when it ends":   {0, CodeReserved},
	} {
		var got engine.Code
		if d := beside(&plan, l.question(head), asks("small", 1, 1), c.ends); !d.Placed {
			got = d.Refusal.Code
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	l.s.Nodes = append(l.s.Nodes, node("n3", 2))
	if d := beside(&plan, l.question(head), asks("small", 1, 1), 0); !d.Placed || d.Groups[0].Nodes[0] != "n3" {
		t.Errorf("beside the kept room: %+v", d)
	}
}

func TestFind_WhatNeverEnds(t *testing.T) {
	t.Parallel()
	l := &life{e: engine.New(engine.Config{})}
	l.s.Nodes = []engine.Node{node("n1", 8)}
	r := asks("service", 1, 4)
	l.start(r, l.e.Decide(l.s, r), 0)
	l.running[0].Pinned = true
	if plan, ok := Find(l.question(asks("head", 1, 8))); ok {
		t.Errorf("room is kept that never comes free: %+v", plan)
	}
}

func TestStands_NodesGo(t *testing.T) {
	t.Parallel()
	l := &life{e: engine.New(engine.Config{}), now: 1}
	l.s.Nodes = []engine.Node{node("n1", 8)}
	r := asks("job", 1, 8)
	l.start(r, l.e.Decide(l.s, r), 0)
	q := l.question(asks("head", 1, 8))
	plan, _ := Find(q)
	if !plan.Stands(q) {
		t.Error("the place stands while its node is there")
	}
	for name, change := range map[string]func(*engine.Node){
		"drained":     func(n *engine.Node) { n.Ready = false },
		"gone":        func(n *engine.Node) { n.ID = "other" },
		"fewer cards": func(n *engine.Node) { n.Pools = []engine.Pool{n.Pools[0]}; n.Pools[0].Total = 7 },
	} {
		gone := q
		gone.Snapshot.Nodes = slices.Clone(q.Snapshot.Nodes)
		change(&gone.Snapshot.Nodes[0])
		if plan.Stands(gone) {
			t.Errorf("%s: the place still stands", name)
		}
	}
}

func TestSentence(t *testing.T) {
	t.Parallel()
	var place engine.GroupPlan
	for _, n := range []string{"n4", "n1", "n2", "n3", "n1"} {
		place.Placements = append(place.Placements, engine.Placement{NodeID: n})
	}
	p := Plan{Place: engine.Decision{Groups: []engine.GroupPlan{place}}, At: 7}
	name, clock := strings.ToUpper, func(at int64) string { return fmt.Sprint("t", at) }
	if got, want := p.Sentence(name, clock), "it starts at t7 at the latest, for which room is kept on N1, N2, N3 and 1 more"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	p.At = 0
	if got, want := p.Sentence(name, clock), "room that comes free on N1, N2, N3 and 1 more is kept for it"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
