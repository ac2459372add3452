package clock

import (
	"context"
	"sort"
	"sync"
	"time"
)

// Fake is a clock that stands still until a test moves it.
type Fake struct {
	mu      sync.Mutex
	now     time.Time
	waiters []*waiter
	changed chan struct{} // closed and replaced whenever a waiter comes or goes
}

var _ Clock = (*Fake)(nil)

type waiter struct {
	at    time.Time
	every time.Duration // 0 for After
	c     chan time.Time
}

// NewFake returns a clock that stands at t.
func NewFake(t time.Time) *Fake {
	return &Fake{now: t.UTC(), changed: make(chan struct{})}
}

// Now is the moment the clock stands at.
func (f *Fake) Now() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

// After sends once when the clock has been moved by d; at once when d is not above 0.
func (f *Fake) After(d time.Duration) <-chan time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := &waiter{at: f.now.Add(d), c: make(chan time.Time, 1)}
	if d <= 0 {
		w.c <- f.now
		return w.c
	}
	f.add(w)
	return w.c
}

// NewTicker ticks once for every d that the clock is moved by.
func (f *Fake) NewTicker(d time.Duration) Ticker {
	if d <= 0 {
		panic("clock: a ticker needs an interval above 0")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	w := &waiter{at: f.now.Add(d), every: d, c: make(chan time.Time, 1)}
	f.add(w)
	return &fakeTicker{fake: f, w: w}
}

// Advance moves the clock forward by d and wakes, in order of their moments, all whose time has come.
func (f *Fake) Advance(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	end := f.now.Add(d)
	for {
		w := f.next(end)
		if w == nil {
			break
		}
		f.now = w.at
		select {
		case w.c <- w.at:
		default: // a ticker whose receiver is slow loses the tick
		}
		if w.every > 0 {
			w.at = w.at.Add(w.every)
		} else {
			f.drop(w)
		}
	}
	f.now = end
}

// AwaitWaiters blocks until n timers and tickers wait on the clock, so that a test moves it only when the code
// under test is ready.
func (f *Fake) AwaitWaiters(ctx context.Context, n int) error {
	for {
		f.mu.Lock()
		have, changed := len(f.waiters), f.changed
		f.mu.Unlock()
		if have >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// next is the earliest waiter that is due by end, nil when there is none. The caller holds the lock.
func (f *Fake) next(end time.Time) *waiter {
	sort.SliceStable(f.waiters, func(i, j int) bool { return f.waiters[i].at.Before(f.waiters[j].at) })
	if len(f.waiters) == 0 || f.waiters[0].at.After(end) {
		return nil
	}
	return f.waiters[0]
}

func (f *Fake) add(w *waiter) {
	f.waiters = append(f.waiters, w)
	f.signal()
}

func (f *Fake) drop(w *waiter) {
	for i := range f.waiters {
		if f.waiters[i] == w {
			f.waiters = append(f.waiters[:i], f.waiters[i+1:]...)
			f.signal()
			return
		}
	}
}

func (f *Fake) signal() {
	close(f.changed)
	f.changed = make(chan struct{})
}

type fakeTicker struct {
	fake *Fake
	w    *waiter
}

func (t *fakeTicker) C() <-chan time.Time { return t.w.c }

func (t *fakeTicker) Stop() {
	t.fake.mu.Lock()
	defer t.fake.mu.Unlock()
	t.fake.drop(t.w)
}
