package submit

import (
	"context"
	"slices"
	"time"

	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/engine/defrag"
	"github.com/heteroflow/heteroflow/placement-service/engine/preempt"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

const (
	// metaMovable is the key of a job's meta that says that its allocations may be started again elsewhere.
	metaMovable = "heteroflow_movable"
	// moveRest is how long a job that was moved or evicted is left where it is.
	moveRest = time.Hour
	// mostMoves is how many moves a plan may have.
	mostMoves = 16
)

// movePlan is a plan of moves with what it was made from.
type movePlan struct {
	defrag.Plan
	question defrag.Question
	kept     []store.Claim // of the job that asks
	given    []store.Claim
	open     store.Reservation
	rows     map[string]store.Job // of the jobs that may be moved, by their name in the plan
}

// Moves says which running allocations would have to move for a waiting job to start, for people: nothing is done.
// asked is false when the job does not wait for room, and when no job says that it may be moved.
func (s *Submitter) Moves(ctx context.Context, row store.Job) (plan defrag.Plan, asked bool, err error) {
	planned, asked, err := s.planMoves(ctx, row)
	return planned.Plan, asked, err
}

func (s *Submitter) planMoves(ctx context.Context, row store.Job) (plan movePlan, asked bool, err error) {
	if row.State != store.JobWaiting || isPreempting(row) || s.World.Stale(s.Clock.Now()) != "" {
		return plan, false, nil
	}
	sub, err := s.stored(row)
	if err != nil || !sub.reading.Asks() || sub.reading.Request.Loose != "" {
		return plan, false, err
	}
	older, err := runningInjection(row)
	if err != nil {
		return plan, false, err
	}
	if plan.open, err = s.openReservation(ctx, sub.key); err != nil {
		return plan, false, err
	}
	q := defrag.Question{Engine: s.Engine(), Rest: int64(moveRest / time.Second), Now: s.Clock.Now().Unix(), Most: mostMoves}
	q.Request, plan.kept, plan.given = s.ask(sub.placing(row, older), allGroups(sub.reading), plan.open)
	q.Request.Priority = row.Priority
	if q.Running, plan.rows, err = s.movable(ctx, sub.key); err != nil || len(q.Running) == 0 {
		return plan, false, err
	}
	if q.Snapshot, err = s.snapshotFor(ctx, sub.key, row.Tenant, plan.given); err != nil {
		return plan, false, err
	}
	plan.question, plan.Plan = q, defrag.Find(q)
	return plan, true, nil
}

// movable lists the running allocations of jobs that may be moved, all but those of one job, and the jobs' rows.
func (s *Submitter) movable(ctx context.Context, but watch.JobKey) ([]defrag.Allocation, map[string]store.Job, error) {
	rows, err := s.submittedRows(ctx)
	if err != nil {
		return nil, nil, err
	}
	evictions, err := s.Store.EvictionsSince(ctx, s.Clock.Now().Add(-moveRest))
	if err != nil {
		return nil, nil, databaseError(err)
	}
	past := pastOf(evictions)
	var out []defrag.Allocation
	moving := map[string]store.Job{}
	for _, key := range s.World.JobsWithDevices() {
		row, submitted := rows[key]
		if !submitted || key == but {
			continue
		}
		facts := s.factsOf(row)
		if !facts.movable || facts.pinned {
			continue
		}
		moving[jobName(key)] = row
		again := facts.again
		again.Tenant = row.Tenant
		for _, a := range s.World.LiveAllocs(key) {
			if len(a.Devices) == 0 {
				continue // it goes where Nomad finds room
			}
			one := defrag.Allocation{
				Allocation: allocationOf(a, row, facts, s.Clock.Now()), Group: a.Group, Again: again,
				Movable: true, MovedAt: past.evicted(key),
			}
			one.Pinned = one.Pinned || !a.Stays() // it is on its way out or being changed: so is its job
			out = append(out, one)
		}
	}
	return out, moving, nil
}

// Move has the moves made that Moves names for a waiting job, as an intent like an eviction: the jobs are stopped, the
// one that waits has their room, and they start again in the room that is held for them meanwhile. What is not done in
// time is rolled back. Only operators may, since jobs of any tenant may move. A *Refused says why there is nothing to do.
func (s *Submitter) Move(ctx context.Context, caller Caller, key watch.JobKey) (defrag.Plan, error) {
	if !caller.All {
		return defrag.Plan{}, &Forbidden{Text: "jobs of any tenant may have to move: ask an operator"}
	}
	defer s.lock(key)()
	row, err := s.Store.Job(ctx, key.Namespace, key.ID)
	if err != nil {
		return defrag.Plan{}, err
	}
	open, err := s.openEviction(ctx, key)
	if err != nil {
		return defrag.Plan{}, err
	}
	if open != nil {
		return defrag.Plan{}, noMoves(open.Reason)
	}
	plan, asked, err := s.planMoves(ctx, row)
	switch {
	case err != nil:
		return plan.Plan, err
	case !asked:
		return plan.Plan, noMoves("the job does not wait for room, or no job that runs may be moved: those that may say so with meta { heteroflow_movable = \"true\" }")
	case plan.Refusal != "":
		return plan.Plan, noMoves(plan.Refusal)
	case len(plan.Moves) == 0:
		s.wake()
		return plan.Plan, noMoves("there is room for the job as it is: it is tried at once")
	}
	sub, err := s.stored(row)
	if err != nil {
		return plan.Plan, err
	}
	_, stated, err := s.stateEviction(ctx, sub, row, plan.eviction(row.Tenant, s.World.NodeName))
	if err == nil && stated == nil {
		err = noMoves("the cluster changed meanwhile: look at the moves again")
	}
	return plan.Plan, err
}

func noMoves(why string) *Refused {
	return &Refused{Code: "no_moves", Text: "nothing is moved: " + why}
}

// eviction is the plan in the words of evictions.
func (p *movePlan) eviction(tenant string, nodeName func(string) string) evictionPlan {
	out := evictionPlan{
		Plan:    preempt.Plan{Cards: p.Cards, MilliCards: p.MilliCards, Decision: p.Decision},
		request: p.question.Request, rows: p.rows, given: p.given, kept: p.kept, open: p.open, moves: p,
		reason: "room is being made by " + p.Doing(tenant, nodeName),
	}
	for _, m := range p.Moves {
		out.Victims = append(out.Victims, m.ID)
	}
	slices.Sort(out.Victims)
	for _, start := range p.Starts {
		out.Jobs = append(out.Jobs, start.Job)
	}
	slices.Sort(out.Jobs)
	for i := range p.question.Running {
		out.running = append(out.running, p.question.Running[i].Allocation)
	}
	return out
}

// renew finds the places of a plan of moves anew on the cluster as it is now. It is false when the plan does not hold
// any more.
func (p *evictionPlan) renew(snapshot engine.Snapshot) bool {
	q := p.moves.question
	q.Snapshot = snapshot
	renewed, ok := defrag.Renew(q, p.moves.Plan)
	if ok {
		p.moves.Plan, p.Decision = renewed, renewed.Decision
	}
	return ok
}

// roomAgain is the reservation of a job that moves: what it has, and where it starts again.
func (s *Submitter) roomAgain(ctx context.Context, row store.Job, start defrag.Start, until time.Time) (store.Reservation, error) {
	open, err := s.openReservation(ctx, watch.JobKey{Namespace: row.Namespace, ID: row.ID})
	if err != nil {
		return open, err
	}
	claims := slices.DeleteFunc(slices.Clone(open.Claims), func(c store.Claim) bool { return c.AllocID == "" })
	return store.Reservation{
		ID: store.NewID(), Replaces: open.ID, Tenant: row.Tenant, Namespace: row.Namespace, JobID: row.ID,
		Claims: append(claims, claimsOf(start.Decision)...), ExpiresAt: until,
	}, nil
}
