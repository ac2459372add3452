package brand

import (
	"context"
	"strings"
	"time"
)

// An answer is what a call gave that need not be made at every reading.
type answer struct {
	text   string
	err    error
	failed bool      // the call failed, and text, if any, is about that
	at     time.Time // when it was asked for
	until  time.Time // when it is asked for again
}

// An answer holds for holdAnswer; one that stayed because the call failed is asked for again after askAgain. At most maxAnswers
// are kept: more than a machine with 64 chips needs.
const (
	holdAnswer = time.Minute
	askAgain   = 10 * time.Second
	maxAnswers = 256
)

// seldom makes calls whose answers hold for a while no oftener than that. A call that failed or did not end in time says
// nothing, so that the answer before it stays: a chip that was divided is not whole because its tool is slow or in trouble.
func (d *Detector) seldom(ctx context.Context, tool string, call func(args ...string) (text string, failed bool, err error)) Call {
	return func(args ...string) (string, error) {
		if d.spec.Seldom == nil || !d.spec.Seldom(args) {
			text, _, err := call(args...)
			return text, err
		}
		key := strings.Join(append([]string{tool}, args...), "\x00")
		d.mu.Lock()
		last, had := d.held[key]
		d.mu.Unlock()
		begun := d.now()
		if had && begun.Before(last.until) {
			return d.goBy(last)
		}
		next := answer{at: begun, until: begun.Add(holdAnswer)}
		next.text, next.failed, next.err = call(args...)
		switch {
		case (next.failed || next.err != nil) && had && !last.failed && last.err == nil:
			next = last
			next.until = begun.Add(askAgain)
		case next.err != nil && ctx.Err() != nil:
			return "", next.err // it says nothing of the tool
		}
		d.mu.Lock()
		if len(d.held) >= maxAnswers {
			clear(d.held)
		}
		d.held[key] = next
		d.mu.Unlock()
		return d.goBy(next)
	}
}

// goBy uses an answer for the reading under way.
func (d *Detector) goBy(a answer) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if a.at.Before(d.asOf) {
		d.asOf = a.at
	}
	return a.text, a.err
}

// AsOf is when the oldest answer was asked for that the last reading went by.
func (d *Detector) AsOf() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.asOf
}
