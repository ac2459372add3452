// Package meter writes the usage of every request to the store, in batches and off the request's path, and keeps it on
// disk while the store is away. What was used is measured by the relay; sums and prices do not belong here.
package meter

import (
	"context"
	"errors"
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
	batchSize  = 500
	batchEvery = 200 * time.Millisecond
	spoolBatch = 5000
	maxHeld    = 500_000 // rows kept in memory when they can be written nowhere
	maxWrite   = 5 * time.Second
	giveUp     = 10 * time.Second
	longestTry = 10 * time.Second // between two tries of a store that is away
)

// Meter collects rows. Record never blocks on the store.
type Meter struct {
	sink    Sink
	spool   *Spool
	clock   clock.Clock
	log     hclog.Logger
	dropped func(n int)

	mu   sync.Mutex
	rows []store.Usage
	wake chan struct{}
}

// New makes a meter; Run writes what it collects. Without a spool, which may be nil, rows are kept in memory while the
// store is away. dropped, which may be nil, is told of rows that had to be given up because they could be written
// nowhere for too long.
func New(sink Sink, spool *Spool, c clock.Clock, log hclog.Logger, dropped func(int)) *Meter {
	return &Meter{sink: sink, spool: spool, clock: c, log: log, dropped: dropped, wake: make(chan struct{}, 1)}
}

// Record takes one row.
func (m *Meter) Record(u store.Usage) {
	m.mu.Lock()
	full := len(m.rows) >= maxHeld
	if !full {
		m.rows = append(m.rows, u)
	}
	ready := len(m.rows) == batchSize
	m.mu.Unlock()
	if full {
		m.log.Error("usage row given up: it could be written nowhere for too long", "row", u.ID)
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

// Run writes batches until the context ends, then writes what is left, for at most ten seconds to the store and the
// rest to the spool. What an earlier run left in the spool is replayed.
func (m *Meter) Run(ctx context.Context) error {
	tick := m.clock.NewTicker(batchEvery)
	defer tick.Stop()
	s := state{pause: batchEvery, replay: m.spool != nil}
	for {
		select {
		case <-tick.C():
		case <-m.wake:
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveUp)
			defer cancel()
			m.end(last)
			return ctx.Err()
		}
		m.step(ctx, &s)
	}
}

// state is what a meter knows of the store.
type state struct {
	replay bool          // there may be files in the spool
	away   bool          // the store did not answer last time
	until  time.Time     // when it is tried again
	pause  time.Duration // between two tries
}

// step writes all that can be written now.
func (m *Meter) step(ctx context.Context, s *state) {
	if s.away && m.clock.Now().Before(s.until) {
		s.replay = m.spill() || s.replay
		return
	}
	err := m.flush(ctx)
	for err == nil && s.replay {
		var n int
		n, err = m.replay(ctx)
		s.replay = n > 0
		if n > 0 {
			m.log.Info("usage replayed from the spool", "rows", n)
			err = m.flush(ctx)
		}
	}
	if err == nil {
		s.away, s.pause = false, batchEvery
		return
	}
	if ctx.Err() != nil {
		return // the end writes what is left
	}
	if !s.away {
		m.log.Warn("usage not written, will be tried again", "rows", m.Held(), "spool", m.spool != nil, "error", err)
	}
	s.away, s.pause = true, min(2*s.pause, longestTry)
	s.until = m.clock.Now().Add(s.pause)
	s.replay = m.spill() || s.replay
}

func (m *Meter) end(ctx context.Context) {
	err := m.flush(ctx)
	if err != nil {
		m.spill()
	}
	if n := m.Held(); n > 0 {
		m.log.Error("usage rows lost: they could be written nowhere at the end", "rows", n, "error", err)
	}
}

// Held is the number of rows not written yet.
func (m *Meter) Held() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.rows)
}

// take gives the oldest rows, to be read until written forgets them: what is recorded meanwhile lies behind them.
func (m *Meter) take(most int) []store.Usage {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := min(len(m.rows), most)
	return m.rows[:n:n]
}

func (m *Meter) written(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rows = append(m.rows[:0], m.rows[n:]...)
}

// flush writes all rows to the store.
func (m *Meter) flush(ctx context.Context) error {
	for {
		batch := m.take(batchSize)
		if len(batch) == 0 {
			return nil
		}
		if err := m.add(ctx, batch); err != nil {
			return err
		}
		m.written(len(batch))
	}
}

// add bounds one write: a store that hangs is one that is away.
func (m *Meter) add(ctx context.Context, rows []store.Usage) error {
	ctx, cancel := context.WithTimeout(ctx, maxWrite)
	defer cancel()
	return m.sink.AddUsage(ctx, rows)
}

// bounded lets the spool write as the meter itself does.
type bounded struct{ m *Meter }

func (b bounded) AddUsage(ctx context.Context, rows []store.Usage) error { return b.m.add(ctx, rows) }

func (m *Meter) replay(ctx context.Context) (int, error) { return m.spool.Replay(ctx, bounded{m}) }

// spill writes all rows to the spool, and reports whether it wrote any.
func (m *Meter) spill() bool {
	wrote := false
	for m.spool != nil {
		batch := m.take(spoolBatch)
		if len(batch) == 0 {
			break
		}
		if err := m.spool.Put(batch); err != nil {
			if !errors.Is(err, errSpoolFull) || m.Held() > maxHeld/2 {
				m.log.Warn("usage not spooled, kept in memory", "rows", len(batch), "error", err)
			}
			break
		}
		m.written(len(batch))
		wrote = true
	}
	return wrote
}
