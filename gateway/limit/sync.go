package limit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/heteroflow/heteroflow/internal/store"
)

const (
	// pollEvery is how often the store is asked whether limits have changed, and told what was used.
	pollEvery = 100 * time.Millisecond
	// batch is how many limits are exchanged in one transaction.
	batch = 32
	// callFor bounds one call to the store: one that hangs is one that is away.
	callFor = time.Second
	// retryEvery is how often a store that is away is tried.
	retryEvery = 500 * time.Millisecond
	// peersEvery is how often instances say that they live.
	peersEvery = 3 * time.Second
	// peersRow is the allowance in which they do.
	peersRow = "instances"
	// lastFor bounds giving back at the end.
	lastFor = 5 * time.Second
)

// Run exchanges with the store until the context ends, then gives back what is held in advance.
func (l *Limiter) Run(ctx context.Context) error {
	tick := l.clock.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		l.Sync(ctx)
		select {
		case <-tick.C():
		case <-l.kick:
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastFor)
			defer cancel()
			l.giveBack(last)
			return ctx.Err()
		}
	}
}

// Sync is one exchange with the store: it reads limits that changed, tells what was used and takes what is wanted. Run
// calls it; it is not safe for concurrent use.
func (l *Limiter) Sync(ctx context.Context) {
	l.mu.Lock()
	r := l.next
	l.next = &round{make(chan struct{})}
	l.mu.Unlock()
	defer close(r.done)
	now := l.clock.Now()
	if l.away.Load() && now.Before(l.failed.Add(retryEvery)) {
		return
	}
	err := l.exchange(ctx, now)
	switch {
	case err == nil:
		if l.away.Swap(false) {
			l.log.Info("limits are exchanged again")
		}
	case ctx.Err() == nil:
		l.failed = now
		l.metrics.failures.Inc()
		if !l.away.Swap(true) {
			l.log.Warn("limits not exchanged: each instance keeps to its share until they are", "instances", l.peers.Load(), "error", err)
		}
	}
}

func (l *Limiter) exchange(ctx context.Context, now time.Time) error {
	if err := l.reread(ctx); err != nil {
		return err
	}
	if !now.Before(l.seen.Add(peersEvery)) {
		if err := l.countPeers(ctx, now, true); err != nil {
			return err
		}
		l.seen = now
	}
	return l.settleUp(ctx, now, (*account).due)
}

// Err is nil once the limits are known and the store answers.
func (l *Limiter) Err() error {
	switch {
	case l.book.Load().byID == nil:
		return errNotRead
	case l.away.Load():
		return errors.New("limits cannot be exchanged")
	}
	return nil
}

// reread reads limits and prices when they changed.
func (l *Limiter) reread(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.patience)
	defer cancel()
	revision, err := l.store.Revision(ctx, store.LimitRevision)
	if err != nil {
		return err
	}
	if b := l.book.Load(); b.byID != nil && b.revision == revision {
		return nil
	}
	return l.readBook(ctx, revision)
}

// countPeers says that this instance lives, or no longer does, and counts those that do.
func (l *Limiter) countPeers(ctx context.Context, now time.Time, live bool) error {
	ctx, cancel := context.WithTimeout(ctx, l.patience)
	defer cancel()
	var count int64
	err := l.store.ChangeAllowances(ctx, []string{peersRow}, func(a *store.Allowance) error {
		until := map[string]int64{}
		if a.State != "" && json.Unmarshal([]byte(a.State), &until) != nil {
			until = map[string]int64{} // whoever lives says so again
		}
		for name, end := range until {
			if end <= now.UnixMilli() {
				delete(until, name)
			}
		}
		delete(until, l.instance)
		if live {
			until[l.instance] = now.Add(holdFor).UnixMilli()
		}
		raw, err := json.Marshal(until)
		a.State, count = string(raw), int64(len(until))
		return err
	})
	if err != nil {
		return fmt.Errorf("count instances: %w", err)
	}
	l.peers.Store(max(1, count))
	return nil
}

// settleUp exchanges the accounts on the list that are chosen.
func (l *Limiter) settleUp(ctx context.Context, now time.Time, chosen func(*account, time.Time) bool) error {
	l.mu.Lock()
	listed := l.listed
	l.listed = nil
	l.mu.Unlock()
	var due, stay []*account
	for _, acct := range listed {
		if chosen(acct, now) {
			due = append(due, acct)
		} else {
			stay = append(stay, acct)
		}
	}
	var err error
	for len(due) > 0 && err == nil {
		n := min(batch, len(due))
		if err = l.tell(ctx, now, due[:n]); err == nil {
			for _, acct := range due[:n] {
				if !acct.idle() {
					stay = append(stay, acct)
				}
			}
			due = due[n:]
		}
	}
	l.mu.Lock()
	l.listed = append(append(l.listed, stay...), due...)
	l.mu.Unlock()
	return err
}

// tell exchanges a few accounts in one transaction.
func (l *Limiter) tell(ctx context.Context, now time.Time, list []*account) error {
	ctx, cancel := context.WithTimeout(ctx, l.patience)
	defer cancel()
	reports, answers := make(map[string]report, len(list)), make(map[string]answer, len(list))
	ids := make([]string, 0, len(list))
	for _, acct := range list {
		if !acct.ended() {
			ids = append(ids, acct.id)
			reports[acct.id] = acct.report(now, l.instance)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	err := l.store.ChangeAllowances(ctx, ids, func(a *store.Allowance) error {
		answers[a.LimitID] = apply(a, reports[a.LimitID])
		return nil
	})
	if err != nil {
		return err
	}
	for _, acct := range list {
		if got, ok := answers[acct.id]; ok {
			acct.absorb(l.clock.Now(), reports[acct.id], got)
		}
	}
	return nil
}

// giveBack tells what was used and returns what is held in advance.
func (l *Limiter) giveBack(ctx context.Context) {
	now := l.clock.Now()
	err := l.settleUp(ctx, now, func(a *account, _ time.Time) bool { a.release(); return true })
	err = errors.Join(err, l.countPeers(ctx, now, false))
	if err != nil {
		l.log.Warn("limits not given back at the end: they are free again within seconds", "error", err)
	}
}
