package share

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ReconcileEvery is how often at least leftovers are looked for.
const ReconcileEvery = time.Minute

// Live is what the driver knows of tasks at one moment.
type Live struct {
	// Tasks run, or are being started.
	Tasks map[string]bool
	// Held are the shares of running tasks by their own records: the ledger is mended by them.
	Held []Held
	// Complete is true when every task that runs on the node has been brought back, so that Held has all there is. Until then
	// nothing is removed that the ledger does not know: it may belong to a task whose entry was lost.
	Complete bool
}

// Reconcile brings the ledger and the machine together: what is live is kept, and written into the ledger anew where that was
// lost; what is ours and dead is given back; every backend removes its leftovers; what is foreign stays. live is asked after
// the ledger has been read, so that a task that has begun since is not missed; when it cannot tell, nothing is removed.
func (m *Manager) Reconcile(ctx context.Context, live func(context.Context) (Live, error)) error {
	if err := m.mend(ctx, live); err != nil {
		return err
	}
	problems := []error{m.dropWhole(ctx, live)}
	for _, b := range m.registry.All() {
		if err := m.reconcile(ctx, b, live); err != nil {
			problems = append(problems, fmt.Errorf("reconcile %s: %w", lockOf(b), err))
		}
	}
	return errors.Join(problems...)
}

// locked takes a lock and then reads the ledger. Entries that cannot be read are told beside the others; nil when all can.
func (m *Manager) locked(ctx context.Context, name string) (entries map[ID]Entry, unreadable *UnreadableError, unlock func(), err error) {
	if unlock, err = m.locks.lock(ctx, name); err != nil {
		return nil, nil, nil, err
	}
	if entries, err = m.ledger.all(); err != nil && !errors.As(err, &unreadable) {
		unlock()
		return nil, nil, nil, err
	}
	return entries, unreadable, unlock, nil
}

// mend writes entries of live tasks that the ledger lost, and strikes off those that cannot be read.
func (m *Manager) mend(ctx context.Context, live func(context.Context) (Live, error)) error {
	entries, unreadable, unlock, err := m.locked(ctx, ledgerLock)
	if err != nil {
		return err
	}
	defer unlock()
	now, err := live(ctx)
	if err != nil {
		return fmt.Errorf("learn which tasks run: %w", err)
	}
	var problems []error
	for _, h := range now.Held {
		if _, known := entries[h.Ask.ID]; !known && now.Tasks[h.Ask.TaskID] {
			m.log.Warn("a running task's share was not in the ledger", "task_id", h.Ask.TaskID, "card", h.Ask.Card.UUID)
			e := m.newEntry(h, Confirmed)
			problems = append(problems, m.ledger.put(e))
			entries[h.Ask.ID] = e
		}
	}
	if unreadable != nil && now.Complete {
		for _, id := range unreadable.IDs {
			if _, mended := entries[id]; !mended {
				m.log.Error("an entry of the ledger cannot be read, it is struck off", "share", id, "error", unreadable.Err)
				problems = append(problems, m.ledger.drop(id))
			}
		}
	}
	return errors.Join(problems...)
}

// Adopt writes the shares of a task that was brought back into the ledger, where that does not have them.
func (m *Manager) Adopt(ctx context.Context, held ...Held) error {
	if len(held) == 0 {
		return nil
	}
	entries, _, unlock, err := m.locked(ctx, ledgerLock)
	if err != nil {
		return err
	}
	defer unlock()
	var problems []error
	for _, h := range held {
		if _, known := entries[h.Ask.ID]; !known {
			problems = append(problems, m.ledger.put(m.newEntry(h, Confirmed)))
		}
	}
	return errors.Join(problems...)
}

// dropWhole strikes off what dead tasks held without a backend: there is nothing to give back.
func (m *Manager) dropWhole(ctx context.Context, live func(context.Context) (Live, error)) error {
	entries, _, unlock, err := m.locked(ctx, ledgerLock)
	if err != nil {
		return err
	}
	defer unlock()
	now, err := live(ctx)
	if err != nil {
		return err
	}
	var problems []error
	for _, e := range sorted(entries) {
		if e.Backend == "" && !m.lives(e, now.runs) {
			problems = append(problems, m.ledger.drop(e.Ask.ID))
		}
	}
	return errors.Join(problems...)
}

// reconcile does one backend's part under its lock. A backend that is not usable and has made nothing is left alone.
func (m *Manager) reconcile(ctx context.Context, b Backend, live func(context.Context) (Live, error)) error {
	entries, unreadable, unlock, err := m.locked(ctx, lockOf(b))
	if err != nil {
		return err
	}
	defer unlock()
	own := map[ID]Entry{}
	for id, e := range entries {
		if by, ok := m.backend(e); ok && lockOf(by) == lockOf(b) {
			own[id] = e
		}
	}
	if len(own) == 0 && m.probe(ctx, b) != nil {
		return nil
	}
	now, err := live(ctx)
	if err != nil {
		return err
	}
	keep := map[ID]Ask{}
	var problems []error
	for _, e := range sorted(own) {
		if !e.State.leaving() && m.lives(e, now.runs) {
			keep[e.Ask.ID] = e.Ask
			continue
		}
		limited, cancel := context.WithTimeout(ctx, releaseTimeout)
		problems = append(problems, m.giveBack(limited, b, e.Ask.ID))
		cancel()
	}
	if unreadable != nil || !now.Complete {
		return errors.Join(problems...)
	}
	limited, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	return errors.Join(append(problems, b.Reconcile(limited, keep))...)
}

func (l Live) runs(taskID string) bool { return l.Tasks[taskID] }

// live are the shares that one backend's tasks hold, for its Keeper.
func (m *Manager) live(b Backend) map[ID]Ask {
	read := m.ledger.all
	if r, ok := m.ledger.(*remembered); ok {
		read = r.recent
	}
	entries, err := read()
	if err != nil {
		m.log.Warn("ledger of shares not read", "error", err)
	}
	held := map[ID]Ask{}
	for id, e := range entries {
		if by, ok := m.backend(e); ok && lockOf(by) == lockOf(b) && e.State == Confirmed {
			held[id] = e.Ask
		}
	}
	return held
}

// Keep runs the work of backends that goes on while shares are held, until ctx ends.
func (m *Manager) Keep(ctx context.Context, tasks Tasks) error {
	ended := make(chan error)
	var n int
	for _, b := range m.registry.All() {
		k, ok := b.(Keeper)
		if !ok {
			continue
		}
		n++
		go func() { ended <- m.keep(ctx, b, k, tasks) }()
	}
	var problems []error
	for range n {
		problems = append(problems, <-ended)
	}
	return errors.Join(problems...)
}

// SelfTest runs a backend's self-test while it makes and gives back nothing else. One without passes.
func (m *Manager) SelfTest(ctx context.Context, b Backend) (err error) {
	tester, ok := b.(SelfTester)
	if !ok {
		return nil
	}
	unlock, err := m.locks.lock(ctx, lockOf(b))
	if err != nil {
		return err
	}
	defer unlock()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the self-test panics: %v", p)
		}
	}()
	return tester.SelfTest(ctx)
}

// keep runs one keeper; a panic in it must not take the driver down.
func (m *Manager) keep(ctx context.Context, b Backend, k Keeper, tasks Tasks) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("keep %s: panic: %v", lockOf(b), p)
		}
	}()
	if err := k.Keep(ctx, func() map[ID]Ask { return m.live(b) }, tasks); err != nil && ctx.Err() == nil {
		return fmt.Errorf("keep %s: %w", lockOf(b), err)
	}
	return nil
}
