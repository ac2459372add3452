// Package scale decides how many instances a service needs and sets that: from what gateways tell of its load every ten
// seconds, between the bounds of its group's scaling block and by the hours of a schedule. Waking a service that is at
// zero for requests that wait is the gateways' own affair; whether there is room belongs to admission.
package scale

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Calm is how long after a group has grown it is not made smaller. So in any five minutes the direction turns at most once.
const Calm = 5 * time.Minute

// slack is which part of a target fewer instances may have, so that a load at the target does not have it both ways.
const slack = 0.9

// Load is what all gateways together tell of a service.
type Load struct {
	Known           bool // somebody tells
	Backends        int  // that take requests
	InFlight        int
	Held            int
	Waiting         *int // in the engines' own queues; nil is not known
	TokensPerMinute int64
	FirstToken      *time.Duration // mean; nil is not known
	Cache           *float64       // of the fullest engine, 0 to 1; nil is not known
}

func (l Load) idle() bool {
	return l.InFlight == 0 && l.Held == 0 && l.TokensPerMinute == 0 && (l.Waiting == nil || *l.Waiting == 0)
}

// State is what is remembered of a group between two decisions.
type State struct {
	Count int       `json:"count"`           // last seen or set
	Grown time.Time `json:"grown"`           // last
	Since time.Time `json:"since"`           // the load is known without a gap; zero when it is not
	Busy  time.Time `json:"busy"`            // last
	Peaks []Peak    `json:"peaks,omitempty"` // needs of the last while, each more than all later ones, oldest first
}

// Peak is how many instances were needed.
type Peak struct {
	At   time.Time `json:"at"`
	Need int       `json:"need"`
}

// Decision is how many instances there should be, and why.
type Decision struct {
	Count  int    // how many there should be now
	Need   int    // by the load alone; -1 when that is not known
	Min    int    // of this moment
	Max    int    // of this moment
	Reason string // a sentence
	// Signals is what each target asks for, in words.
	Signals []string
}

// Decide says how many instances a group should have that has count, and what to remember. It does nothing itself. A group
// that is smaller than its load needs is made larger at once; it is made smaller when fewer were enough for all of
// DownAfter and it has not grown for Calm; the last instance goes when there was nothing to do for IdleAfter. What is not
// known is no reason to do anything.
func Decide(p *Policy, s State, count int, l Load, now time.Time) (Decision, State) {
	least, most, window := p.bounds(now)
	d := Decision{Count: count, Need: -1, Min: least, Max: most}
	if count > s.Count {
		s.Grown = now // by somebody else
	}
	s.Count = count
	if l.Known {
		d.Need, d.Signals = p.need(l, 1)
		s.remember(p, l, now)
	} else {
		s.Since, s.Peaks = time.Time{}, nil
	}
	switch {
	case count < least:
		d.Count, d.Reason = min(max(least, d.Need), most), fmt.Sprintf("it has %d and is to have %d at least%s", count, least, byWindow(window))
	case count > most:
		d.Count, d.Reason = most, fmt.Sprintf("it has %d and may have %d at most%s", count, most, byWindow(window))
	case !l.Known:
		d.Reason = "no gateway tells of its load: it is left as it is"
	case d.Need > count && count < most:
		d.Count = min(d.Need, most)
		d.Reason = fmt.Sprintf("its load needs %d", d.Need)
		if d.Need > most {
			d.Reason += fmt.Sprintf(", it may have %d at most%s", most, byWindow(window))
		}
	case d.Need > count:
		d.Reason = fmt.Sprintf("its load needs %d, it may have %d at most%s", d.Need, most, byWindow(window))
	default:
		d.Count, d.Reason = s.smaller(p, count, least, now)
	}
	if d.Count > count {
		s.Grown = now
	}
	s.Count = d.Count
	return d, s
}

func byWindow(w *Window) string {
	if w == nil {
		return ""
	}
	return fmt.Sprintf(" (%s)", w)
}

// smaller is to how many a group may shrink now, and why it does or does not.
func (s *State) smaller(p *Policy, count, least int, now time.Time) (int, string) {
	to := max(least, s.Peaks[0].Need)
	if to == 0 && now.Sub(s.Busy) < p.IdleAfter {
		to = 1
	}
	switch {
	case to >= count && count > 0 && least == 0 && s.Peaks[0].Need == 0:
		return count, fmt.Sprintf("it has had nothing to do since %s; its last instance goes after %s", s.Busy.UTC().Format(time.TimeOnly), p.IdleAfter)
	case to >= count:
		return count, "it has what it needs"
	case now.Sub(s.Since) < p.DownAfter:
		return count, fmt.Sprintf("%d would do; it is made smaller when that was so for %s", to, p.DownAfter)
	case now.Sub(s.Grown) < Calm:
		return count, fmt.Sprintf("%d would do; it has grown within the last %s", to, Calm)
	}
	return to, fmt.Sprintf("%d were enough for %s", to, p.DownAfter)
}

// remember notes what is needed, with some slack.
func (s *State) remember(p *Policy, l Load, now time.Time) {
	if s.Since.IsZero() {
		s.Since, s.Busy = now, now
	}
	if !l.idle() {
		s.Busy = now
	}
	need, _ := p.need(l, slack)
	s.Peaks = slices.DeleteFunc(s.Peaks, func(o Peak) bool { return now.Sub(o.At) > p.DownAfter || o.Need <= need })
	s.Peaks = append(s.Peaks, Peak{At: now, Need: need})
}

// need is how many instances the load needs for each of them to stay at its targets, times part. What engines tell is of
// those that are up: while others are still coming it asks for one more at most.
func (p *Policy) need(l Load, part float64) (need int, signals []string) {
	ask := func(n int, format string, args ...any) {
		n = min(n, mostInstances)
		need = max(need, n)
		signals = append(signals, fmt.Sprintf(format, args...)+fmt.Sprintf(": %d", n))
	}
	if p.Requests > 0 {
		ask(parts(float64(l.InFlight+l.Held), part*float64(p.Requests)), "%d requests in flight and %d held, %d for each", l.InFlight, l.Held, p.Requests)
	}
	if p.Tokens > 0 {
		ask(parts(float64(l.TokensPerMinute), part*float64(p.Tokens)), "%d tokens a minute, %d for each", l.TokensPerMinute, p.Tokens)
	}
	if p.Cache > 0 && l.Cache != nil {
		ask(parts(float64(l.Backends)**l.Cache, part*p.Cache), "fullest cache at %.0f %%, %.0f %% wanted", 100**l.Cache, 100*p.Cache)
	}
	if p.FirstToken > 0 && l.FirstToken != nil && float64(*l.FirstToken) > part*part*float64(p.FirstToken) {
		more := 0
		if *l.FirstToken > p.FirstToken {
			more = 1
		}
		ask(l.Backends+more, "%s to the first token, %s wanted", l.FirstToken.Round(time.Millisecond), p.FirstToken)
	}
	if l.Waiting != nil && *l.Waiting > 0 {
		more := 0
		if *l.Waiting >= l.Backends {
			more = 1
		}
		ask(l.Backends+more, "%d requests wait in the engines' queues", *l.Waiting)
	}
	if !l.idle() && need == 0 {
		need = 1 // something runs
	}
	return need, signals
}

// parts is how many times size goes into amount, rounded up.
func parts(amount, size float64) int {
	// A hair less, so that what fits exactly is not one too many by the rounding of the division.
	return int(min(mostInstances, math.Ceil(amount/size-1e-9)))
}
