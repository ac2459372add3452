package submit

import (
	"context"
	"time"

	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/engine/preempt"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

// Preemption is the operator's rules about evicting jobs for one of higher priority. The zero value evicts nothing.
type Preemption struct {
	Mode       preempt.Mode
	MinRuntime time.Duration // what runs for less stays
	Guard      time.Duration // a job that was evicted stays for so long; one whose eviction was rolled back asks for none
	Grace      time.Duration // between a victim's checkpoint signal and its stop
	Watchdog   time.Duration // for the room to be free, beyond the victims' kill timeouts
	Window     time.Duration // that the budget is about
	Budget     float64       // cards that a tenant may lose within the window; 0 is no limit
	Excess     float64       // cards evicted for each that is asked for; 0 is no limit
}

// DefaultPreemption is what is not set of rules that evict.
func DefaultPreemption() Preemption {
	return Preemption{
		Mode: preempt.Off, MinRuntime: 10 * time.Minute, Guard: 30 * time.Minute, Grace: 30 * time.Second, Watchdog: 30 * time.Second,
		Window: time.Hour, Excess: 1.1,
	}
}

// Off reports whether nothing is evicted.
func (p Preemption) Off() bool { return p.Mode != preempt.QueueOnly && p.Mode != preempt.Running }

// policy is the rules in the words of the engine.
func (p Preemption) policy() preempt.Policy {
	return preempt.Policy{
		Mode: p.Mode, MinRuntime: int64(p.MinRuntime / time.Second), Guard: int64(p.Guard / time.Second), Budget: p.Budget, Excess: p.Excess,
	}
}

// Reason codes of jobs in an eviction.
const (
	codeMakingRoom engine.Code = "preemption_pending" // others are being evicted for the job
	codePreempting engine.Code = "preempting"         // the job is being evicted
	codePreempted  engine.Code = "preempted"          // it was, and waits to start again
)

func isPreempting(row store.Job) bool {
	return row.State == store.JobWaiting && row.ReasonCode == string(codePreempting)
}

// beingEvicted is what comes of a job that is sent while it is being evicted: it waits like the version before it.
func beingEvicted(prev store.Job) placed {
	return placed{decision: &engine.Decision{Refusal: &engine.Refusal{Code: codePreempting, Sentence: prev.Reason}}}
}

// Evicted reports whether a job was evicted and waits: Nomad has it with no allocations wanted.
func Evicted(row store.Job) bool {
	return row.State == store.JobWaiting && (row.ReasonCode == string(codePreempted) || row.ReasonCode == string(codeGangPartial)) && len(row.Injection) == 0
}

// Signaller sends a signal to the tasks of an allocation.
type Signaller interface {
	SignalAlloc(ctx context.Context, namespace, id, task, signal string) error
}

const (
	// planPause is how long a job for which no eviction was found is not planned for again.
	planPause = 10 * time.Second
	// planShare is how many times as long as a plan took nothing is planned after it, so that a long queue is worked on
	// all the same.
	planShare = 4
)

// mayPlan reports whether it is time to plan for the job how others make room. Then planned is to be called after it.
func (s *Submitter) mayPlan(b *planBook, key watch.JobKey) (planned func(), may bool) {
	began := s.Clock.Now()
	b.Lock()
	defer b.Unlock()
	for k, at := range b.next {
		if !began.Before(at) {
			delete(b.next, k)
		}
	}
	if _, wait := b.next[key]; wait || began.Before(b.rest) {
		return nil, false
	}
	return func() {
		b.Lock()
		defer b.Unlock()
		if b.next == nil {
			b.next = map[watch.JobKey]time.Time{}
		}
		now := s.Clock.Now()
		b.next[key], b.rest = now.Add(planPause), now.Add(planShare*now.Sub(began))
		if s.WakeAt != nil {
			s.WakeAt(now.Add(max(time.Second, b.rest.Sub(now)))) // for the next in line
			s.WakeAt(b.next[key])
		}
	}, true
}

// helps reports whether room is what a refused job lacks.
func helps(r engine.Refusal) bool {
	switch r.Code {
	case codeNotReady, codeContended, codeUnreachable, codeStopping, codePurging, engine.CodePluginFailed, engine.CodeNoNodes, engine.CodeFormSwitch:
		return false
	}
	return !r.Never
}

// makeRoom is what becomes of the refusal of a waiting job where others may be evicted for it: it may be told that room
// is being made. A plan is made at most every planPause for each job.
func (s *Submitter) makeRoom(ctx context.Context, sub submission, row store.Job, refusal engine.Refusal) (store.Job, engine.Refusal, error) {
	if s.Preemption.Off() && row.ReasonCode != string(codeMakingRoom) || !helps(refusal) {
		return row, refusal, nil
	}
	open, err := s.openEviction(ctx, sub.key)
	if err != nil {
		return row, refusal, err
	}
	if open != nil {
		refusal.Code, refusal.Sentence = codeMakingRoom, open.Reason
		return row, refusal, nil
	}
	if s.Preemption.Off() {
		return row, refusal, nil
	}
	planned, may := s.mayPlan(&s.plans, sub.key)
	if !may {
		return row, refusal, nil
	}
	plan, err := s.planEviction(ctx, sub, row, s.Preemption)
	planned()
	if err != nil {
		return row, refusal, err
	}
	if len(plan.Victims) == 0 {
		if plan.Refusal != nil {
			s.log.Debug("nothing is evicted", "job_id", sub.key.ID, "reason", plan.Refusal.Sentence)
		}
		return row, refusal, nil
	}
	row, stated, err := s.stateEviction(ctx, sub, row, plan)
	if err == nil && stated != nil {
		refusal.Code, refusal.Sentence = codeMakingRoom, stated.Reason
	}
	return row, refusal, err
}

// openEviction is the eviction that is under way for a job, nil when there is none.
func (s *Submitter) openEviction(ctx context.Context, key watch.JobKey) (*store.Eviction, error) {
	open, err := s.Store.OpenEvictions(ctx)
	if err != nil {
		return nil, databaseError(err)
	}
	for i := range open {
		if open[i].Namespace == key.Namespace && open[i].JobID == key.ID {
			return &open[i], nil
		}
	}
	return nil, nil
}

// Preempts says what would be evicted for a waiting job now, for people: nothing is done. With preemption off the
// default rules are taken. asked is false when the job does not wait or nothing is known.
func (s *Submitter) Preempts(ctx context.Context, row store.Job) (plan preempt.Plan, asked bool, err error) {
	if row.State != store.JobWaiting || isPreempting(row) || s.World.Stale(s.Clock.Now()) != "" {
		return preempt.Plan{}, false, nil
	}
	sub, err := s.stored(row)
	if err != nil || !sub.reading.Asks() {
		return preempt.Plan{}, false, err
	}
	rules := s.Preemption
	if rules.Off() {
		rules = DefaultPreemption()
		rules.Mode = preempt.Running
	}
	planned, err := s.planEviction(ctx, sub, row, rules)
	return planned.Plan, err == nil, err
}
