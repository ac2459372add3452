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

// Allocation is one that runs, of a job that moves as a whole or not at all.
type Allocation struct {
	preempt.Allocation
	Group   string         // task group
	Again   engine.Request // the whole job, as it starts again
	Movable bool           // its job may be started again elsewhere
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

// Start is one job with all of the room in which it starts again.
type Start struct {
	Job      string
	Request  engine.Request
	Decision engine.Decision
}

// Plan is the moves after which the request fits, in the order in which they are to be made, or why there are none.
type Plan struct {
	Moves      []Move
	Starts     []Start          // the jobs of Moves, in that order
	Cards      float64          // that move
	MilliCards map[string]int64 // thousandths of cards that each of the jobs moves
	Decision   engine.Decision
	Refusal    string // empty when Moves suffices, or when the request fits as it is
}

// Find answers the question.
func Find(q Question) Plan {
	stays := map[string]bool{} // jobs that find no other place
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

// Renew is a plan with its places found anew on the snapshot of the question. ok is false when it does not hold there.
func Renew(q Question, p Plan) (renewed Plan, ok bool) {
	set := preempt.Plan{Cards: p.Cards, MilliCards: p.MilliCards}
	for _, m := range p.Moves {
		set.Victims = append(set.Victims, m.ID)
	}
	slices.Sort(set.Victims)
	moving := q.named(set.Victims)
	if len(moving) != len(p.Moves) {
		return p, false
	}
	gone := make([]preempt.Allocation, len(moving))
	for i := range moving {
		if !q.mayMove(&moving[i]) {
			return p, false
		}
		gone[i] = moving[i].Allocation
	}
	if set.Decision = q.Engine.Decide(preempt.Without(q.Snapshot, gone), q.Request); !set.Decision.Placed {
		return p, false
	}
	renewed, stuck := q.place(set)
	return renewed, stuck == ""
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
		parts = append(parts, fmt.Sprintf("%d of their jobs would find no other place", stuck))
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
		ask.Running[i].Whole, ask.Running[i].Gold = true, false
		ask.Running[i].Pinned = !q.mayMove(a) || stays[a.Job]
	}
	return preempt.Find(ask)
}

// place finds room for each job of the set beside what the request takes and what runs, the largest first. stuck is a job
// that finds none.
func (q *Question) place(set preempt.Plan) (plan Plan, stuck string) {
	now := preempt.With(q.Snapshot, q.Request, set.Decision)
	for _, job := range byJob(q.named(set.Victims)) {
		again := job[0].Again
		d := q.Engine.Decide(now, again)
		if !d.Placed {
			return Plan{}, job[0].Job
		}
		places := map[string][]engine.Placement{}
		for _, g := range d.Groups {
			places[g.Name] = g.Placements
		}
		gone := make([]preempt.Allocation, len(job))
		for i := range job {
			a := &job[i]
			to := places[a.Group]
			if len(to) == 0 {
				return Plan{}, a.Job // more of it run than are wanted: it is being changed
			}
			places[a.Group], gone[i] = to[1:], a.Allocation
			plan.Moves = append(plan.Moves, Move{ID: a.ID, Job: a.Job, Tenant: a.Tenant, From: a.NodeID, To: to[0]})
		}
		now = preempt.Without(preempt.With(now, again, d), gone)
		plan.Starts = append(plan.Starts, Start{Job: job[0].Job, Request: again, Decision: d})
	}
	plan.Cards, plan.MilliCards, plan.Decision = set.Cards, set.MilliCards, set.Decision
	return plan, ""
}

// byJob groups allocations, those first that ask for most.
func byJob(list []Allocation) [][]Allocation {
	at := map[string]int{}
	var out [][]Allocation
	for _, a := range list {
		i, known := at[a.Job]
		if !known {
			i = len(out)
			at[a.Job], out = i, append(out, nil)
		}
		out[i] = append(out[i], a)
	}
	units := func(job []Allocation) (n int) {
		for i := range job {
			for _, c := range job[i].Claims {
				n += c.Units
			}
		}
		return n
	}
	slices.SortStableFunc(out, func(a, b []Allocation) int { return cmp.Compare(units(b), units(a)) })
	return out
}

// named are the allocations with these sorted ids, in their order.
func (q *Question) named(ids []string) []Allocation {
	var out []Allocation
	for _, a := range q.Running {
		if _, found := slices.BinarySearch(ids, a.ID); found {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, func(a, b Allocation) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// Sentence says what a plan would do.
func (p *Plan) Sentence(tenant string, nodeName func(string) string) string {
	return "would start after " + p.Doing(tenant, nodeName)
}

// Doing says what a plan moves; jobs of other tenants than this one are not named.
func (p *Plan) Doing(tenant string, nodeName func(string) string) string {
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
	return "moving " + strings.Join(words, ", ")
}
