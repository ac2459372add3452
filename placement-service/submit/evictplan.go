package submit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/engine/preempt"
	"github.com/heteroflow/heteroflow/placement-service/ledger"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

// planBook remembers what planning evictions would otherwise find out again.
type planBook struct {
	sync.Mutex
	next  map[watch.JobKey]time.Time // when to plan for a job again
	rest  time.Time                  // when to plan for any
	facts map[watch.JobKey]victimFacts
}

// victimFacts is what matters of a job that may be evicted, as one version of its row says.
type victimFacts struct {
	version int64
	pinned  bool // it is not the service's to start again
	gold    bool
	signal  string         // that has it save its work; none when empty
	kill    time.Duration  // the longest kill timeout of its tasks
	batch   bool           // its allocations end by themselves
	runtime time.Duration  // for which they run at most; 0 when nobody says
	movable bool           // it may be started again elsewhere
	again   engine.Request // of a movable job, to start anew; without its tenant
}

// evictionPlan is a plan with what it was made from.
type evictionPlan struct {
	preempt.Plan
	request engine.Request
	running []preempt.Allocation
	rows    map[string]store.Job // of the jobs that may be evicted, by preempt's name for them
	given   []store.Claim
	kept    []store.Claim
	open    store.Reservation
	moves   *movePlan // nil when the jobs that go are evicted
	reason  string    // in the place of what the plan says of itself; empty for that
}

func jobName(key watch.JobKey) string { return key.Namespace + "/" + key.ID }

// planEviction asks the engine what has to go for a job.
func (s *Submitter) planEviction(ctx context.Context, sub submission, row store.Job, rules Preemption) (evictionPlan, error) {
	older, err := runningInjection(row)
	if err != nil {
		return evictionPlan{}, err
	}
	open, err := s.openReservation(ctx, sub.key)
	if err != nil {
		return evictionPlan{}, err
	}
	out := evictionPlan{open: open}
	out.request, out.kept, out.given = s.ask(sub.placing(row, older), allGroups(sub.reading), open)
	out.request.Priority = row.Priority
	if out.request.Loose != "" {
		return out, nil // Nomad places it alone
	}
	evictions, err := s.Store.EvictionsSince(ctx, s.Clock.Now().Add(-max(rules.Guard, rules.Window)))
	if err != nil {
		return out, databaseError(err)
	}
	past := pastOf(evictions)
	if s.rolledBackLately(past, sub.key, rules) {
		return out, nil
	}
	leaving, err := s.evictable(ctx, &out, past)
	if err != nil {
		return out, err
	}
	snapshot, err := s.snapshotFor(ctx, sub.key, row.Tenant, out.given)
	if err != nil {
		return out, err
	}
	out.Plan = preempt.Find(preempt.Question{
		Engine: s.Engine(), Snapshot: preempt.Without(snapshot, leaving), Request: out.request, Running: out.running,
		Policy: rules.policy(), Now: s.Clock.Now().Unix(), Lost: past.lost(s.Clock.Now().Add(-rules.Window)),
	})
	return out, nil
}

// openReservation is what a job holds; the zero Reservation for nothing.
func (s *Submitter) openReservation(ctx context.Context, key watch.JobKey) (store.Reservation, error) {
	open, err := s.Store.ReservationOf(ctx, key.Namespace, key.ID)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return open, databaseError(err)
	}
	return open, nil
}

// snapshotFor is the cluster as a decision for the job sees it.
func (s *Submitter) snapshotFor(ctx context.Context, key watch.JobKey, tenant string, given []store.Claim) (engine.Snapshot, error) {
	taken, _, err := s.Ledger.Taken(ctx)
	if err != nil {
		return engine.Snapshot{}, databaseError(err)
	}
	snapshot := s.World.Snapshot(ledger.Without(taken, tenant, given))
	if len(given) > 0 {
		s.freeOwn(&snapshot, key)
	}
	s.switches.hold(&snapshot, key)
	return snapshot, nil
}

// evictable lists what runs, and apart from it what is on its way out already: to wait for that costs nobody anything.
func (s *Submitter) evictable(ctx context.Context, out *evictionPlan, past pastEvictions) (leaving []preempt.Allocation, err error) {
	rows, err := s.submittedRows(ctx)
	if err != nil {
		return nil, err
	}
	out.rows = map[string]store.Job{}
	now := s.Clock.Now()
	for _, key := range s.World.JobsWithDevices() {
		row, submitted := rows[key]
		if !submitted {
			if row, err = s.find(ctx, key); err != nil {
				return nil, err
			}
		}
		facts := s.factsOf(row)
		goes := isPreempting(row) || row.State == store.JobStopped
		for _, a := range s.World.LiveAllocs(key) {
			one := allocationOf(a, row, facts, now)
			one.EvictedAt = past.evicted(key)
			if goes || !a.Stays() {
				leaving = append(leaving, one)
				continue
			}
			one.Pinned = one.Pinned || !submitted
			out.running = append(out.running, one)
		}
		if submitted {
			out.rows[jobName(key)] = row
		}
	}
	slices.SortFunc(out.running, func(a, b preempt.Allocation) int { return cmp.Compare(a.ID, b.ID) })
	return leaving, nil
}

// submittedRows are the rows of all jobs that Nomad has.
func (s *Submitter) submittedRows(ctx context.Context) (map[watch.JobKey]store.Job, error) {
	out := map[watch.JobKey]store.Job{}
	page := store.Page{Limit: 500}
	for {
		jobs, next, err := s.Store.ListJobs(ctx, store.JobFilter{State: store.JobSubmitted}, page)
		if err != nil {
			return nil, databaseError(err)
		}
		for _, j := range jobs {
			out[watch.JobKey{Namespace: j.Namespace, ID: j.ID}] = j
		}
		if next == "" {
			return out, nil
		}
		page.Cursor = next
	}
}

// allocationOf is a live allocation in the words of the engine. A job is evicted whole: Nomad stops which allocations it
// likes when a group shrinks.
func allocationOf(a *watch.Alloc, row store.Job, facts victimFacts, now time.Time) preempt.Allocation {
	out := preempt.Allocation{
		ID: a.ID, Job: jobName(a.Job), Tenant: row.Tenant, Priority: row.Priority, NodeID: a.NodeID, Whole: true,
		CPUMHz: a.CPUMHz, MemoryMiB: a.MemoryMiB, DiskMiB: a.DiskMiB, Pinned: facts.pinned, Gold: facts.gold,
	}
	switch {
	case !a.Started.IsZero():
		out.StartedAt = a.Started.Unix()
	case a.Client != "pending":
		out.StartedAt = now.Unix() // it runs, and nobody knows for how long
	}
	for _, d := range a.Devices {
		out.Claims = append(out.Claims, engine.Claim{Group: d.Group, Units: len(d.IDs)})
	}
	return out
}

// factsOf reads what matters of a job that may be evicted. What cannot be read stays.
func (s *Submitter) factsOf(row store.Job) victimFacts {
	key := watch.JobKey{Namespace: row.Namespace, ID: row.ID}
	s.plans.Lock()
	facts, known := s.plans.facts[key]
	s.plans.Unlock()
	if known && facts.version == row.Version {
		return facts
	}
	facts = victimFacts{version: row.Version, pinned: true}
	if sub, err := s.stored(row); err == nil && len(row.Injection) > 0 {
		facts.pinned = sub.reading.Request.Loose != ""
		facts.batch, facts.runtime = sub.reading.Type == "batch", sub.reading.Runtime
		facts.gold = asksGold(sub.reading.Request)
		meta, _ := sub.clean["Meta"].(Tree)
		facts.signal, _ = meta[metaSignal].(string)
		facts.kill = killTimeout(sub.clean)
		if facts.movable = meta[metaMovable] == "true"; facts.movable {
			facts.again = sub.reading.Request
		}
	}
	s.plans.Lock()
	defer s.plans.Unlock()
	if len(s.plans.facts) > factsKept || s.plans.facts == nil {
		s.plans.facts = map[watch.JobKey]victimFacts{}
	}
	s.plans.facts[key] = facts
	return facts
}

const (
	// metaSignal is the key of a job's meta that names the signal by which it is told to save its work.
	metaSignal = "heteroflow_checkpoint_signal"
	// factsKept is how many jobs are remembered.
	factsKept = 1 << 14
	// defaultKill is Nomad's kill timeout.
	defaultKill = 5 * time.Second
)

func asksGold(r engine.Request) bool {
	for _, g := range r.Groups {
		for _, t := range g.Tasks {
			if t.Ask != nil && t.Ask.QoS == accel.Gold {
				return true
			}
		}
	}
	return false
}

// killTimeout is the longest kill timeout of a job's tasks.
func killTimeout(job Tree) time.Duration {
	longest := time.Duration(0)
	for _, g := range groupsOf(job) {
		for _, t := range treesOf(g, "Tasks") {
			kill := defaultKill
			if n, ok := t["KillTimeout"].(json.Number); ok {
				if ns, err := n.Int64(); err == nil {
					kill = time.Duration(ns)
				}
			}
			longest = max(longest, kill)
		}
	}
	return longest
}

// pastEvictions are those within the guard or the window, the latest first.
type pastEvictions []store.Eviction

func pastOf(list []store.Eviction) pastEvictions { return list }

// evicted is when a job was evicted last, in seconds; 0 when it was not.
func (p pastEvictions) evicted(key watch.JobKey) int64 {
	for _, e := range p {
		for _, v := range e.Victims {
			if v.Namespace == key.Namespace && v.JobID == key.ID {
				return e.UpdatedAt.Unix()
			}
		}
	}
	return 0
}

// lost is how many cards each tenant lost since a moment. What moved is not lost.
func (p pastEvictions) lost(since time.Time) map[string]float64 {
	out := map[string]float64{}
	for _, e := range p {
		for _, v := range e.Victims {
			if v.Room == "" && !e.CreatedAt.Before(since) {
				out[v.Tenant] += float64(v.MilliCards) / 1000
			}
		}
	}
	return out
}

// rolledBackLately reports whether an eviction for the job was rolled back within the guard interval: another would fare
// no better.
func (s *Submitter) rolledBackLately(past pastEvictions, key watch.JobKey, rules Preemption) bool {
	return slices.ContainsFunc(past, func(e store.Eviction) bool {
		return e.State == store.EvictionRolledBack && e.Namespace == key.Namespace && e.JobID == key.ID &&
			s.Clock.Now().Sub(e.UpdatedAt) < rules.Guard
	})
}

// stateEviction writes the intent: from then on the room is the job's and its victims wait. Nil when something changed
// meanwhile.
func (s *Submitter) stateEviction(ctx context.Context, sub submission, row store.Job, plan evictionPlan) (store.Job, *store.Eviction, error) {
	s.deciding.Lock() // nobody here takes what is free of the room meanwhile
	defer s.deciding.Unlock()
	e, rows := s.evictionOf(sub, plan)
	row.ReasonCode, row.Reason = string(codeMakingRoom), e.Reason
	s.Ledger.Invalidate()
	snapshot, err := s.snapshotFor(ctx, sub.key, row.Tenant, plan.given)
	if err != nil {
		return row, nil, err
	}
	if plan.moves != nil && !plan.renew(snapshot) || !s.Engine().Fits(preempt.Without(snapshot, plan.victims()), plan.request) {
		return row, nil, nil
	}
	until := s.Clock.Now().Add(s.longestEviction(rows))
	rooms := []store.Reservation{{
		ID: e.ID, Replaces: plan.open.ID, Tenant: row.Tenant, Namespace: row.Namespace, JobID: row.ID,
		Claims: append(plan.kept, s.confirmed(sub.key, claimsOf(plan.Decision), plan.given)...), ExpiresAt: until,
	}}
	if plan.moves != nil {
		for _, start := range plan.moves.Starts {
			room, err := s.roomAgain(ctx, plan.rows[start.Job], start, until)
			if err != nil {
				return row, nil, err
			}
			rooms = append(rooms, room)
			e.Victims[slices.Index(plan.Jobs, start.Job)].Room = room.ID
		}
	}
	stated, err := s.Store.PutEviction(ctx, e, append(rows, row), rooms...)
	s.Ledger.Invalidate()
	if errors.Is(err, store.ErrConflict) {
		return row, nil, nil
	}
	if err != nil {
		return row, nil, databaseError(err)
	}
	s.noteEviction(ctx, stated, plan)
	s.wake()
	row, err = s.find(ctx, sub.key)
	return row, &stated, err
}

// victims are the allocations that go.
func (p *evictionPlan) victims() []preempt.Allocation {
	var out []preempt.Allocation
	for _, a := range p.running {
		if _, found := slices.BinarySearch(p.Victims, a.ID); found {
			out = append(out, a)
		}
	}
	return out
}

// longestEviction is how long an eviction may take, with a reserve.
func (s *Submitter) longestEviction(rows []store.Job) time.Duration {
	longest := time.Duration(0)
	for _, r := range rows {
		longest = max(longest, s.factsOf(r).kill)
	}
	return longest + s.Preemption.Grace + s.watchdog() + reservationLife
}

// watchdog is how long the room of an eviction may take, also where only moves are made.
func (s *Submitter) watchdog() time.Duration {
	return cmp.Or(s.Preemption.Watchdog, DefaultPreemption().Watchdog)
}

// evictionOf is the intent and the rows of the victims as they become.
func (s *Submitter) evictionOf(sub submission, plan evictionPlan) (store.Eviction, []store.Job) {
	now := s.Clock.Now()
	e := store.Eviction{ID: store.NewID(), Namespace: sub.key.Namespace, JobID: sub.key.ID, Tenant: plan.request.Tenant, Deadline: now}
	var rows []store.Job
	for _, name := range plan.Jobs {
		row := plan.rows[name]
		facts := s.factsOf(row)
		e.Victims = append(e.Victims, store.Victim{
			Namespace: row.Namespace, JobID: row.ID, Tenant: row.Tenant, Priority: row.Priority, Signal: facts.signal,
			MilliCards: plan.MilliCards[name],
		})
		row.State, row.ReasonCode, row.EvalID = store.JobWaiting, string(codePreempting), newEvalID()
		asker := named(sub.key, plan.request.Tenant, row.Tenant)
		row.Reason = fmt.Sprintf("is being evicted for %s (priority %d, this one %d); keeps its place in the queue and starts again as soon as there is room",
			asker, plan.request.Priority, row.Priority)
		if plan.moves != nil {
			row.Reason = fmt.Sprintf("is being moved to make room for %s: starts again elsewhere, where room is held for it", asker)
		}
		rows = append(rows, row)
	}
	e.Reason = cmp.Or(plan.reason, "room is being made: "+plan.Doing())
	return e, rows
}
