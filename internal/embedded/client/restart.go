package client

import (
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"
)

// restartState is what a restart policy remembers of a task. It survives the engine.
type restartState struct {
	Start time.Time `json:"start"` // of the interval
	Count int       `json:"count"` // restarts in the interval
}

// restartVerdict says whether a task is started again, when, and in which words.
type restartVerdict struct {
	again  bool
	failed bool // the task counts as failed when it is not started again
	delay  time.Duration
	reason string
}

// restartPolicy decides by a job's restart block. onSuccess says that even a task that ended well is started again.
type restartPolicy struct {
	attempts        int
	interval, delay time.Duration
	mode            string
	onSuccess       bool
}

func newRestartPolicy(p *api.RestartPolicy, onSuccess bool) restartPolicy {
	out := restartPolicy{attempts: 2, interval: 30 * time.Minute, delay: 15 * time.Second, mode: "fail", onSuccess: onSuccess}
	if p == nil {
		return out
	}
	out.attempts, out.interval = deref(p.Attempts, out.attempts), deref(p.Interval, out.interval)
	out.delay, out.mode = deref(p.Delay, out.delay), deref(p.Mode, out.mode)
	return out
}

// decide takes the end of a task at a moment and updates what is remembered.
func (p restartPolicy) decide(s *restartState, success bool, now time.Time) restartVerdict {
	if success && !p.onSuccess {
		return restartVerdict{}
	}
	if p.attempts == 0 {
		return restartVerdict{failed: !success, reason: "Policy allows no restarts"}
	}
	if s.Start.IsZero() || now.Sub(s.Start) > p.interval {
		*s = restartState{Start: now}
	}
	s.Count++
	if s.Count <= p.attempts {
		return restartVerdict{again: true, delay: p.delay, reason: "Restart within policy"}
	}
	if p.mode == "fail" {
		return restartVerdict{failed: true, reason: fmt.Sprintf(
			"Exceeded allowed attempts %d in interval %s and mode is %q", p.attempts, p.interval, p.mode)}
	}
	return restartVerdict{again: true, delay: max(p.delay, s.Start.Add(p.interval).Sub(now)), reason: "Exceeded allowed attempts in interval, waiting for it to pass"}
}

// deref reads an optional setting.
func deref[T any](p *T, fallback T) T {
	if p == nil {
		return fallback
	}
	return *p
}
