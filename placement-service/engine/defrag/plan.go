package defrag

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/engine/preempt"
)

// Allocation is one that runs, with what it asks for when it starts again.
type Allocation struct {
	preempt.Allocation
	Again   engine.Request // one allocation of one group
	Movable bool           // its task may be started again elsewhere
	MovedAt int64          // when its job was moved last, in seconds; 0 when it never was
}

// Question is what is asked. Plan changes nothing of it.
type Question struct {
	Engine   *engine.Engine
	Snapshot engine.Snapshot
	Request  engine.Request // that is to fit
	Running  []Allocation
	Rest     int64 // seconds in which a job is not moved again
	Now      int64 // seconds, on the clock of MovedAt
	Most     int   // moves; 0 is no limit
}

// Move is one allocation with where it goes. What is free of that place is free when its turn comes.
type Move struct {
	ID     string
	Job    string
	Tenant string
	From   string // node
	To     engine.Placement
}

// Plan is the moves after which the request fits, in the order in which they are to be made, or why there are none.
type Plan struct {
	Moves    []Move
	Cards    float64 // that move
	Decision engine.Decision
	Refusal  string // empty when Moves suffices, or when the request fits as it is
}

// Find answers the question.
func Find(q Question) Plan {
	stays := map[string]bool{} // that find no other place
	for range len(q.Running) + 1 {
		set := q.smallest(stays)
		switch {
		case set.Refusal != nil:
			return Plan{Refusal: q.refusal(set, len(stays))}
		case len(set.Victims) == 0:
			return Plan{Decision: set.Decision}
		case q.Most > 0 && len(set.Victims) > q.Most:
			return Plan{Refusal: fmt.Sprintf("%d moves would be needed, and %d at most are planned", len(set.Victims), q.Most)}
		}
		plan, stuck := q.place(set)
		if stuck == "" {
			return plan
		}
		stays[stuck] = true
	}
	return Plan{Refusal: "no allocation finds another place"}
}

// refusal says why moving does not help.
func (q *Question) refusal(set preempt.Plan, stuck int) string {
	movable := 0
	for i := range q.Running {
		if q.mayMove(&q.Running[i]) {
			movable++
		}
	}
	parts := []string{fmt.Sprintf("%d of %d allocations may be moved", movable, len(q.Running))}
	if stuck > 0 {
		parts = append(parts, fmt.Sprintf("%d of them would find no other place", stuck))
	}
	if r := set.Decision.Refusal; r != nil {
		parts = append(parts, "without the others: "+r.Sentence)
	}
	return strings.Join(parts, "; ")
}

func (q *Question) mayMove(a *Allocation) bool {
	return a.Movable && !a.Pinned && (a.MovedAt == 0 || q.Now-a.MovedAt >= q.Rest)
}

// smallest is the smallest set of allocations that would have to go.
func (q *Question) smallest(stays map[string]bool) preempt.Plan {
	ask := preempt.Question{
		Engine: q.Engine, Snapshot: q.Snapshot, Request: q.Request, Policy: preempt.Policy{Mode: preempt.Running}, Now: q.Now,
		Running: make([]preempt.Allocation, len(q.Running)),
	}
	ask.Request.Priority = math.MaxInt // nobody is to end: priority has no say
	for i := range q.Running {
		a := &q.Running[i]
		ask.Running[i] = a.Allocation
		ask.Running[i].Whole, ask.Running[i].Gold = false, false
		ask.Running[i].Pinned = !q.mayMove(a) || stays[a.ID]
	}
	return preempt.Find(ask)
}

// place finds room for each allocation of the set beside what the request takes, the largest first. stuck is one that
// finds none.
func (q *Question) place(set preempt.Plan) (plan Plan, stuck string) {
	now := preempt.With(q.Snapshot, q.Request, set.Decision)
	for _, a := range q.named(set.Victims) {
		d := q.Engine.Decide(now, a.Again)
		if !d.Placed || len(d.Groups) != 1 || len(d.Groups[0].Placements) != 1 {
			return Plan{}, a.ID
		}
		now = preempt.Without(preempt.With(now, a.Again, d), []preempt.Allocation{a.Allocation})
		plan.Moves = append(plan.Moves, Move{ID: a.ID, Job: a.Job, Tenant: a.Tenant, From: a.NodeID, To: d.Groups[0].Placements[0]})
	}
	plan.Cards, plan.Decision = set.Cards, set.Decision
	return plan, ""
}

// named are the allocations with these ids, those that ask for most first.
func (q *Question) named(ids []string) []Allocation {
	var out []Allocation
	for _, a := range q.Running {
		if _, found := slices.BinarySearch(ids, a.ID); found {
			out = append(out, a)
		}
	}
	units := func(a *Allocation) (n int) {
		for _, c := range a.Claims {
			n += c.Units
		}
		return n
	}
	slices.SortFunc(out, func(a, b Allocation) int {
		return cmp.Or(cmp.Compare(units(&b), units(&a)), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// Sentence says what a plan moves; jobs of other tenants than this one are not named.
func (p *Plan) Sentence(tenant string, nodeName func(string) string) string {
	const most = 3
	var words []string
	for _, m := range p.Moves[:min(len(p.Moves), most)] {
		job := m.Job
		if m.Tenant != tenant {
			job = "a job of another tenant"
		}
		words = append(words, fmt.Sprintf("%s from %s to %s", job, nodeName(m.From), nodeName(m.To.NodeID)))
	}
	if more := len(p.Moves) - most; more > 0 {
		words = append(words, fmt.Sprintf("%d more", more))
	}
	return "would start after moving " + strings.Join(words, ", ")
}
