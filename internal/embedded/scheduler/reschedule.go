package scheduler

import (
	"time"

	"github.com/hashicorp/nomad/api"
)

// delay says whether and from when a failed allocation may be replaced.
type delay struct {
	allowed bool
	at      time.Time
}

// rescheduleDelay applies a group's reschedule policy to a failed allocation.
func rescheduleDelay(p *api.ReschedulePolicy, a *api.Allocation) delay {
	if p == nil {
		return delay{}
	}
	unlimited := isTrue(p.Unlimited)
	attempts, interval := value(p.Attempts), value(p.Interval)
	if !unlimited && attempts == 0 {
		return delay{}
	}
	failed := failedAt(a)
	var events []*api.RescheduleEvent
	if a.RescheduleTracker != nil {
		events = a.RescheduleTracker.Events
	}
	if !unlimited {
		recent := 0
		for _, e := range events {
			if failed.Sub(time.Unix(0, e.RescheduleTime)) < interval {
				recent++
			}
		}
		if recent >= attempts {
			return delay{}
		}
	}
	return delay{allowed: true, at: failed.Add(wait(p, len(events)))}
}

// wait is the delay before the next attempt after so many earlier ones.
func wait(p *api.ReschedulePolicy, earlier int) time.Duration {
	base, most := value(p.Delay), value(p.MaxDelay)
	d, previous := base, base
	if p.DelayFunction != nil && *p.DelayFunction != "constant" {
		for i := range earlier {
			switch *p.DelayFunction {
			case "fibonacci":
				if i > 0 {
					previous, d = d, d+previous
				}
			default: // exponential
				d *= 2
			}
			if most > 0 && d >= most {
				return most
			}
		}
	}
	return d
}

func value[T any](p *T) T {
	var zero T
	if p == nil {
		return zero
	}
	return *p
}

// failedAt is when the last task of an allocation ended, or when that was learned.
func failedAt(a *api.Allocation) time.Time {
	var last time.Time
	for _, s := range a.TaskStates {
		if s.FinishedAt.After(last) {
			last = s.FinishedAt
		}
	}
	if last.IsZero() {
		last = time.Unix(0, a.ModifyTime)
	}
	return last
}

// delay has an allocation replaced later, by an evaluation of its own.
func (r *run) delay(a *api.Allocation, d delay) {
	if a.FollowupEvalID != "" {
		return // it already waits
	}
	id := r.NewID()
	r.plan.Followups = append(r.plan.Followups, &api.Evaluation{
		ID: id, Namespace: r.Eval.Namespace, Priority: *r.Job.Priority, Type: *r.Job.Type, TriggeredBy: "alloc-failure",
		JobID: *r.Job.ID, JobModifyIndex: *r.Job.ModifyIndex, Status: api.EvalStatusPending,
		StatusDescription: "created for delayed rescheduling", WaitUntil: d.at, PreviousEval: r.Eval.ID,
		CreateTime: r.Now.UnixNano(), ModifyTime: r.Now.UnixNano(),
	})
	next := *a
	next.FollowupEvalID = id
	r.plan.Delayed = append(r.plan.Delayed, &next)
	r.updates(a.TaskGroup).RescheduleLater++
}

// tracker is the reschedule history of the replacement of a failed allocation.
func (r *run) tracker(previous *api.Allocation) *api.RescheduleTracker {
	t := &api.RescheduleTracker{LastReschedule: "ok"}
	if previous.RescheduleTracker != nil {
		t.Events = append(t.Events, previous.RescheduleTracker.Events...)
	}
	t.Events = append(t.Events, &api.RescheduleEvent{
		RescheduleTime: r.Now.UnixNano(), PrevAllocID: previous.ID, PrevNodeID: previous.NodeID,
	})
	return t
}
