package balance

import "time"

// State is what a backend's breaker lets through.
type State string

const (
	// Closed lets every request through.
	Closed State = "closed"
	// Open lets none through while there is another backend.
	Open State = "open"
	// HalfOpen lets one request through at a time, to see whether the backend is well again.
	HalfOpen State = "half_open"
)

const (
	faultsToOpen = 3 // in a row

	// A backend that is back is found by a request after firstRest, or after at most longestRest when it was away for long.
	firstRest   = 2 * time.Second
	longestRest = 8 * time.Second

	// SlowStart is how long a backend that came back takes less than its share.
	SlowStart  = 30 * time.Second
	startShare = 0.1 // of its share, at the beginning

	// A backend that said it was busy takes busyShare for as long as it said, a second when it did not say, and a
	// minute at most.
	busyShare   = 0.1
	defaultBusy = time.Second
	longestBusy = time.Minute

	missesToRemove = 3 // probes in a row
)

// breaker is one backend's health as requests and probes have it. The zero value is closed and well.
type breaker struct {
	state     State // empty is closed
	faults    int   // in a row, while closed
	openings  int   // since it was last well
	until     time.Time
	trials    int       // leases out that decide an open or half-open breaker
	backSince time.Time // zero when it never left
	busyUntil time.Time
	misses    int
	missing   bool // probes say that it is gone
}

// at is the state now: an open breaker that has rested is half open.
func (b *breaker) at(now time.Time) State {
	switch {
	case b.state == Open && !now.Before(b.until):
		return HalfOpen
	case b.state == "":
		return Closed
	}
	return b.state
}

// usable reports whether a request may be sent there while others could take it.
func (b *breaker) usable(now time.Time) bool {
	if b.missing {
		return false
	}
	switch b.at(now) {
	case Open:
		return false
	case HalfOpen:
		return b.trials == 0
	}
	return true
}

// take counts a request that is sent there and reports whether it is a trial, which closes the breaker or opens it again.
func (b *breaker) take(now time.Time) (trial bool) {
	if b.at(now) == Closed {
		return false
	}
	b.state = b.at(now)
	b.trials++
	return true
}

// done counts how a request ended. One that was no trial says nothing about a breaker that has opened since.
func (b *breaker) done(o Outcome, trial bool, now time.Time) {
	if trial {
		b.trials--
	}
	if o.verdict == busy {
		after := o.after
		if after <= 0 {
			after = defaultBusy
		}
		b.busyUntil = now.Add(min(after, longestBusy))
		return
	}
	closed := b.at(now) == Closed
	switch {
	case o.verdict == success && (closed || trial):
		if !closed {
			b.backSince = now
		}
		b.state, b.faults, b.openings = Closed, 0, 0
	case o.verdict == failed && closed:
		if b.faults++; b.faults >= faultsToOpen {
			b.open(now)
		}
	case o.verdict == failed && trial:
		b.open(now)
	}
}

func (b *breaker) open(now time.Time) {
	rest := min(firstRest<<min(b.openings, 8), longestRest)
	b.state, b.faults, b.until = Open, 0, now.Add(rest)
	b.openings++
}

// probe counts a probe's answer. alive says that the backend answers requests at this moment, which holds more than
// the silence of a busy engine's probe.
func (b *breaker) probe(ok, alive bool, now time.Time) {
	switch {
	case ok:
		b.misses = 0
		if b.missing {
			b.missing, b.backSince = false, now
		}
		if b.state == Open {
			b.until = now // a request decides
		}
	case alive:
		b.misses = 0
	default:
		if b.misses++; b.misses >= missesToRemove {
			b.missing = true
		}
	}
}

// busy reports whether the backend has asked for less.
func (b *breaker) busy(now time.Time) bool { return b.busyUntil.After(now) }

// share is the part of an equal share that the backend takes now, above 0 and at most 1.
func (b *breaker) share(now time.Time) float64 {
	share := 1.0
	if b.busy(now) {
		share = busyShare
	}
	if since := now.Sub(b.backSince); since < SlowStart && !b.backSince.IsZero() {
		share *= startShare + (1-startShare)*since.Seconds()/SlowStart.Seconds()
	}
	return share
}
