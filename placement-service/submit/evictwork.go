package submit

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

// evictionsKept is how long evictions that are over can still be looked up.
const evictionsKept = 7 * 24 * time.Hour

// Evict takes the evictions that are under way as far as they go now, also with preemption switched off since. An error
// means that a part that is needed is away.
func (s *Submitter) Evict(ctx context.Context) error {
	v := evictor{
		store: s.Store, nomad: s.Nomad, signals: s.Signals, live: s.liveDevices, lock: s.lock, now: s.Clock.Now,
		kill: func(row store.Job) time.Duration { return s.factsOf(row).kill },
		wakeAt: func(at time.Time) {
			if s.WakeAt != nil {
				s.WakeAt(at)
			}
		},
		expect: func(job watch.JobKey, eval string) {
			if s.Expect != nil {
				s.Expect(job, eval)
			}
		},
		changed: func(e store.Eviction) { s.evictionChanged(ctx, e) },
		grace:   s.Preemption.Grace, watchdog: s.watchdog(), log: s.log,
	}
	return v.work(ctx)
}

// liveDevices are the live allocations of a job that hold devices.
func (s *Submitter) liveDevices(key watch.JobKey) []*watch.Alloc {
	var out []*watch.Alloc
	for _, a := range s.World.LiveAllocs(key) {
		if len(a.Devices) > 0 {
			out = append(out, a)
		}
	}
	return out
}

// evictionChanged tells of a step.
func (s *Submitter) evictionChanged(ctx context.Context, e store.Eviction) {
	s.log.Info("eviction", "id", e.ID, "namespace", e.Namespace, "job_id", e.JobID, "state", e.State, "victims", len(e.Victims), "reason", e.Reason)
	if e.Open() {
		return
	}
	s.metrics.evictions.WithLabelValues(e.State).Inc()
	s.Ledger.Invalidate()
	if s.Expect != nil {
		s.Expect(keyOfEviction(e), "")
	}
	outcome := "preempted"
	if moves(e) {
		outcome = "moved"
	}
	if e.State == store.EvictionRolledBack {
		outcome = "eviction rolled back"
	}
	for _, v := range e.Victims {
		reason := "for " + named(keyOfEviction(e), e.Tenant, v.Tenant)
		s.audit(ctx, store.Decision{Namespace: v.Namespace, JobID: v.JobID, Outcome: outcome, ReasonCode: string(codePreempted), Reason: reason})
	}
	s.audit(ctx, store.Decision{Namespace: e.Namespace, JobID: e.JobID, Outcome: outcome, ReasonCode: e.State, Reason: e.Reason})
	if _, err := s.Store.ForgetEvictions(ctx, s.Clock.Now().Add(-evictionsKept)); err != nil {
		s.log.Warn("old evictions not forgotten", "error", err)
	}
	s.wake()
}

// moves reports whether the victims of an eviction start again in room that is held for them.
func moves(e store.Eviction) bool {
	return slices.ContainsFunc(e.Victims, func(v store.Victim) bool { return v.Room != "" })
}

// noteEviction keeps who is evicted for whom, and why, where people look for it.
func (s *Submitter) noteEviction(ctx context.Context, e store.Eviction, plan evictionPlan) {
	input, err := json.Marshal(plan.request)
	if err != nil {
		s.log.Warn("request not recorded", "job_id", e.JobID, "error", err)
	}
	output, err := json.Marshal(plan.Decision)
	if err != nil {
		s.log.Warn("decision not recorded", "job_id", e.JobID, "error", err)
	}
	s.audit(ctx, store.Decision{
		Namespace: e.Namespace, JobID: e.JobID, Outcome: "evicting", ReasonCode: string(codeMakingRoom), Reason: e.Reason, Input: input, Output: output,
	})
	for _, v := range e.Victims {
		asker := named(keyOfEviction(e), e.Tenant, v.Tenant)
		outcome, reason := "preempting", fmt.Sprintf("evicted for %s, of priority %d", asker, plan.request.Priority)
		if v.Room != "" {
			outcome, reason = "moving", "moved to make room for "+asker
		}
		s.audit(ctx, store.Decision{Namespace: v.Namespace, JobID: v.JobID, Outcome: outcome, ReasonCode: string(codePreempting), Reason: reason})
	}
	s.log.Info("eviction stated", "id", e.ID, "namespace", e.Namespace, "job_id", e.JobID, "victims", strings.Join(plan.Jobs, " "), "cards", plan.Cards, "asked", plan.Asked)
}

func (s *Submitter) audit(ctx context.Context, d store.Decision) {
	if err := s.Store.AddDecision(ctx, d); err != nil {
		s.log.Warn("eviction not recorded", "job_id", d.JobID, "error", err)
	}
}

// preemptedReason keeps in the refusal of a job that was evicted by whom it was, and adds what it waits for now.
func preemptedReason(row store.Job, r engine.Refusal) engine.Refusal {
	if row.ReasonCode != string(codePreempted) && row.ReasonCode != string(codeGangPartial) || r.Code == codeMakingRoom {
		return r
	}
	const waits = "; waits: "
	was, _, _ := strings.Cut(row.Reason, waits)
	r.Code, r.Sentence = engine.Code(row.ReasonCode), was+waits+r.Sentence
	return r
}
