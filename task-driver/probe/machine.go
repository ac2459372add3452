package probe

import (
	"fmt"
	"time"
)

// Plan is how a task is watched. It is kept in the task's handle, as JSON.
type Plan struct {
	Ready *Check `json:"ready,omitempty"`
	Live  *Check `json:"live,omitempty"`
	// Grace is how long the task may take from its start until it first answers as it should.
	Grace time.Duration `json:"grace"`
	// Report only tells of a task that should be ended.
	Report bool `json:"report,omitempty"`
}

// machine is what the answers of a task amount to. It is pure: it has no clock and asks nobody.
type machine struct {
	plan  Plan
	start time.Time

	began  bool // has answered once as it should
	ready  bool
	readyF int // failures one behind another
	liveF  int
	told   bool // a report was made, and the task is not well yet
}

// step is what follows from an answer.
type step struct {
	event string // for people; empty is nothing new
	ready bool   // the task has just become ready
	end   string // why the task is to be ended; empty: it is not
}

// answerReady takes in an answer to the readiness check.
func (m *machine) answerReady(now time.Time, err error) step {
	if err == nil {
		first := !m.began
		m.began, m.readyF, m.told = true, 0, m.told && m.plan.Live != nil
		if m.ready {
			return step{}
		}
		m.ready = true
		if first {
			return step{event: "Ready after " + m.age(now), ready: true}
		}
		return step{event: "Ready again", ready: true}
	}
	m.readyF++
	switch {
	case m.readyF < m.plan.Ready.Failures:
	case m.ready:
		m.ready = false
		return step{event: fmt.Sprintf("Not ready: %s", err)}
	case !m.began && now.Sub(m.start) >= m.plan.Grace:
		return m.bad(fmt.Sprintf("not ready %s after its start: %s", m.age(now), err))
	}
	return step{}
}

// answerLive takes in an answer to the liveness check. Until the task has begun to answer, it is not asked where there is a
// readiness check, and its failures do not count within the grace.
func (m *machine) answerLive(now time.Time, err error) step {
	if err == nil {
		first := !m.began
		m.began, m.liveF, m.told = true, 0, false
		if first {
			return step{event: "Alive after " + m.age(now)}
		}
		return step{}
	}
	m.liveF++
	if m.liveF < m.plan.Live.Failures || !m.began && now.Sub(m.start) < m.plan.Grace {
		return step{}
	}
	return m.bad(fmt.Sprintf("not alive, %d checks failed: %s", m.liveF, err))
}

func (m *machine) bad(why string) step {
	switch {
	case !m.plan.Report:
		return step{end: why}
	case m.told:
		return step{}
	}
	m.told = true
	return step{event: "The task should be restarted, it is " + why}
}

// asksLive reports whether the liveness check is due.
func (m *machine) asksLive() bool { return m.began || m.plan.Ready == nil }

func (m *machine) age(now time.Time) string { return now.Sub(m.start).Round(time.Second).String() }
