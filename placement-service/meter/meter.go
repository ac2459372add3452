// Package meter settles card time: it shares out what the cards of each allocation were held for between those whose
// requests its engine answered, and leaves the rest to the job. What was held is logged by the ledger in the store, what
// was asked by the gateways; prices do not belong here.
package meter

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/store"
)

const (
	// Window is how much time is settled at once. It divides an hour.
	Window = 5 * time.Minute
	// Lag is how long after its end a window is settled: long enough for the rows of requests that ran in it to be there
	// and for the clocks of several instances to differ.
	Lag = 15 * time.Minute
	// every is between two looks whether there is something to settle.
	every = time.Minute
)

// Store is where spans and requests are logged and shares are kept.
type Store interface {
	CardsSettledTo(ctx context.Context) (time.Time, error)
	CardSpans(ctx context.Context, from, to time.Time) ([]store.CardSpan, error)
	Work(ctx context.Context, from, to time.Time, each func(store.Work)) error
	SettleCards(ctx context.Context, from, to time.Time, uses []store.CardUse) (won bool, err error)
}

var _ Store = (*store.Store)(nil)

// Meter settles card time. Several may do so at the same time: each window is settled by one of them.
type Meter struct {
	store Store
	clock clock.Clock
	log   hclog.Logger
	to    atomic.Int64 // what is settled, Unix seconds; 0 is not known
}

// Collectors are the meter's metrics.
func (m *Meter) Collectors() []prometheus.Collector {
	return []prometheus.Collector{prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "heteroflow_card_time_settled_timestamp_seconds", Help: "Moment up to which card time is settled; 0 is not known.",
	}, func() float64 { return float64(m.to.Load()) })}
}

// New makes a meter; Run has it work.
func New(s Store, c clock.Clock, log hclog.Logger) *Meter {
	return &Meter{store: s, clock: c, log: log.Named("meter")}
}

// Run settles until the context ends. What could not be settled is settled later.
func (m *Meter) Run(ctx context.Context) error {
	tick := m.clock.NewTicker(every)
	defer tick.Stop()
	failing := false
	for {
		err := m.Settle(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			m.log.Warn("card time not settled, will be tried again", "error", err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
		}
	}
}

// Settle settles all windows that are old enough, oldest first.
func (m *Meter) Settle(ctx context.Context) error {
	for {
		from, err := m.store.CardsSettledTo(ctx)
		if err != nil {
			return err
		}
		if !from.IsZero() {
			m.to.Store(from.Unix())
		}
		until := m.clock.Now().Add(-Lag).Truncate(Window)
		if from.IsZero() { // the first time ever: what was before is nobody's
			if _, err := m.store.SettleCards(ctx, from, until, nil); err != nil {
				return err
			}
			continue
		}
		to := from.Add(Window)
		if to.After(until) {
			return nil
		}
		if err := m.settle(ctx, from, to); err != nil {
			return fmt.Errorf("settle card time from %s to %s: %w", from.Format(time.RFC3339), to.Format(time.RFC3339), err)
		}
	}
}

func (m *Meter) settle(ctx context.Context, from, to time.Time) error {
	spans, err := m.store.CardSpans(ctx, from, to)
	if err != nil {
		return err
	}
	s := newShares(from, to)
	if len(spans) > 0 {
		if err := m.store.Work(ctx, from, to, s.add); err != nil {
			return err
		}
	}
	_, err = m.store.SettleCards(ctx, from, to, s.split(spans))
	return err
}
