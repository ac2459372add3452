// Package clock is the time that loops and caches ask for, real or moved by a test. Formatting, parsing and
// time zones do not belong here.
package clock

import (
	"context"
	"time"
)

// Clock tells the time and wakes callers later. Implementations are safe for concurrent use.
type Clock interface {
	// Now is the current moment, UTC.
	Now() time.Time
	// After sends the moment once, when d has passed. The channel holds one value, so nobody has to wait.
	After(d time.Duration) <-chan time.Time
	// NewTicker ticks every d, which must be above 0, until stopped. A slow receiver loses ticks.
	NewTicker(d time.Duration) Ticker
}

// Ticker sends ticks until it is stopped. Stop does not close the channel.
type Ticker interface {
	C() <-chan time.Time
	Stop()
}

// System is the machine's clock.
func System() Clock { return system{} }

type system struct{}

var _ Clock = system{}

func (system) Now() time.Time                         { return time.Now().UTC() }
func (system) After(d time.Duration) <-chan time.Time { return time.After(d) }
func (system) NewTicker(d time.Duration) Ticker       { return systemTicker{time.NewTicker(d)} }

type systemTicker struct{ t *time.Ticker }

func (t systemTicker) C() <-chan time.Time { return t.t.C }
func (t systemTicker) Stop()               { t.t.Stop() }

// Sleep waits for d, or until ctx ends, and reports whether it waited to the end.
func Sleep(ctx context.Context, c Clock, d time.Duration) bool {
	if ctx.Err() != nil {
		return false
	}
	if d <= 0 {
		return true
	}
	select {
	case <-ctx.Done():
		return false
	case <-c.After(d):
		return true
	}
}
