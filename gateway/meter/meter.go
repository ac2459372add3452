// Package meter writes the usage of every request to the store, in batches and off the request's path. What was
// used is measured by the relay; sums and prices do not belong here.
package meter

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/store"
)

// Sink is where usage rows go. Adding a row twice must count it once.
type Sink interface {
	AddUsage(ctx context.Context, rows []store.Usage) error
}

const (
	batchSize  = 200
	batchEvery = 200 * time.Millisecond
	maxHeld    = 500_000 // rows kept in memory while the store does not answer
	giveUp     = 10 * time.Second
)

// Meter collects rows. Record never blocks on the store.
type Meter struct {
	sink    Sink
	log     hclog.Logger
	dropped func(n int)

	mu   sync.Mutex
	rows []store.Usage
	wake chan struct{}
}

// New makes a meter; Run writes what it collects. dropped, which may be nil, is told of rows that had to be given
// up because the store was away for too long.
func New(sink Sink, log hclog.Logger, dropped func(int)) *Meter {
	return &Meter{sink: sink, log: log, dropped: dropped, wake: make(chan struct{}, 1)}
}

// Record takes one row.
func (m *Meter) Record(u store.Usage) {
	m.mu.Lock()
	full := len(m.rows) >= maxHeld
	if !full {
		m.rows = append(m.rows, u)
	}
	ready := len(m.rows) >= batchSize
	m.mu.Unlock()
	if full {
		m.log.Error("usage row given up: the store has not answered for too long", "request_id", u.ID)
		if m.dropped != nil {
			m.dropped(1)
		}
	}
	if ready {
		select {
		case m.wake <- struct{}{}:
		default:
		}
	}
}

// Run writes batches until the context ends, then writes what is left for at most ten seconds.
func (m *Meter) Run(ctx context.Context) error {
	tick := time.NewTicker(batchEvery)
	defer tick.Stop()
	pause := batchEvery
	for {
		select {
		case <-tick.C:
		case <-m.wake:
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveUp)
			defer cancel()
			for m.flush(last) {
			}
			if n := m.Held(); n > 0 {
				m.log.Error("usage rows lost: the store did not answer at the end", "rows", n)
			}
			return ctx.Err()
		}
		for m.flush(ctx) {
			pause = batchEvery
		}
		if m.Held() >= batchSize { // the store refused a batch: leave it alone for a while
			pause = min(2*pause, 10*time.Second)
			clock.Sleep(ctx, clock.System(), pause)
		}
	}
}

// Held is the number of rows not written yet.
func (m *Meter) Held() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.rows)
}

// flush writes one batch and reports whether it wrote any.
func (m *Meter) flush(ctx context.Context) bool {
	m.mu.Lock()
	n := min(len(m.rows), batchSize)
	batch := append([]store.Usage(nil), m.rows[:n]...)
	m.mu.Unlock()
	if n == 0 {
		return false
	}
	if err := m.sink.AddUsage(ctx, batch); err != nil {
		m.log.Warn("usage not written, will be tried again", "rows", n, "error", err)
		return false
	}
	m.mu.Lock()
	m.rows = append(m.rows[:0], m.rows[n:]...)
	m.mu.Unlock()
	return true
}
