package share

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/clock"
)

// Manager makes the shares of tasks and gives them back, and keeps the ledger of them. It is safe for concurrent use, and
// two processes of the driver on one folder do not harm each other.
type Manager struct {
	registry *Registry
	order    Order
	ledger   ledger
	locks    locker
	alive    func(taskID string) bool
	maker    string
	running  func(maker string) bool
	clock    clock.Clock
	log      hclog.Logger

	mu     sync.Mutex
	passed map[string]time.Time // when a probe of a backend passed, by the name of its lock
}

// Options are what a manager needs.
type Options struct {
	Registry *Registry
	Order    Order
	// Dir is the folder of the ledger on this machine.
	Dir string
	// Alive reports whether a task runs or is being started. It decides whether what holds a card may be put off it.
	Alive func(taskID string) bool
	// Maker names this process of the driver, and MakerRuns tells whether another runs still: what that one is starting, this
	// one does not know. Empty and nil when there is never another.
	Maker     string
	MakerRuns func(maker string) bool
	Clock     clock.Clock
	Log       hclog.Logger
}

// NewManager makes a manager. It touches nothing.
func NewManager(o Options) *Manager {
	m := &Manager{
		registry: o.Registry, order: o.Order, ledger: &remembered{ledger: files{dir: o.Dir}},
		alive: o.Alive, maker: o.Maker, running: o.MakerRuns, clock: o.Clock, log: o.Log,
		passed: map[string]time.Time{},
	}
	if m.clock == nil {
		m.clock = clock.System()
	}
	if m.log == nil {
		m.log = hclog.NewNullLogger()
	}
	m.locks = newFileLocks(o.Dir, m.log)
	return m
}

// Limits of one call of a backend.
const (
	prepareTimeout = 2 * time.Minute
	releaseTimeout = 30 * time.Second
	// releaseLate is when a release that keeps failing counts as timed out.
	releaseLate = time.Minute
)

// Held is a share as the driver keeps it in a task's record: enough to write the ledger anew.
type Held struct {
	Ask     Ask    `json:"ask"`
	Backend string `json:"backend,omitempty"` // empty where there is nothing to make: a card of the task's own, or a simulated one
}

// Made is one share that was made.
type Made struct {
	Held
	Isolation *Isolation // nil without a backend
	Setup     Setup

	by Backend
}

// Prepare makes the shares of one task. An error leaves none of them behind, but for what a tool would not give back: that
// stays in the ledger until it does. An error with Temporary() true may pass by itself.
func (m *Manager) Prepare(ctx context.Context, asks []Ask, event func(string)) ([]Made, error) {
	var made []Made
	for _, a := range asks {
		one, err := m.prepare(ctx, a, event)
		if err != nil {
			return nil, errors.Join(err, m.undo(ctx, made))
		}
		made = append(made, one)
	}
	return made, nil
}

func (m *Manager) undo(ctx context.Context, made []Made) error {
	var problems []error
	for _, one := range made {
		problems = append(problems, m.release(ctx, one.Ask.ID))
	}
	return errors.Join(problems...)
}

func (m *Manager) prepare(ctx context.Context, a Ask, event func(string)) (Made, error) {
	b, err := m.choose(ctx, a)
	if err != nil {
		return Made{}, err
	}
	made := Made{Held: Held{Ask: a}, by: b}
	if b != nil {
		made.Backend = b.Name()
		isolation := b.Describe()
		made.Isolation = &isolation
	}
	if err := m.issue(ctx, made.Held, event); err != nil {
		return Made{}, err
	}
	if b == nil {
		if !a.whole() {
			event(NotEnforced(a))
		}
		return made, nil
	}
	if made.Setup, err = m.ask(ctx, b, made.Held, event); err != nil {
		return Made{}, fmt.Errorf("make a share of %s card %s by %s: %w", a.Vendor, a.Card.UUID, b.Name(), err)
	}
	return made, nil
}

// NotEnforced tells the owner of a share of a simulated card what it is.
func NotEnforced(a Ask) string {
	return fmt.Sprintf("card %s is simulated: its share of %s is not enforced", a.Card.UUID, accel.FormatMiB(a.MemoryMiB))
}

// ask has the backend make an issued share, and confirms it.
func (m *Manager) ask(ctx context.Context, b Backend, h Held, event func(string)) (Setup, error) {
	unlock, err := m.locks.lock(ctx, lockOf(b))
	if err != nil {
		return Setup{}, errors.Join(err, m.release(ctx, h.Ask.ID))
	}
	e, err := m.ledger.get(h.Ask.ID)
	if err == nil && (e == nil || e.State != Issued) {
		err = errors.New("it was given back meanwhile")
	}
	if err != nil {
		unlock()
		return Setup{}, err
	}
	limited, cancel := context.WithTimeout(ctx, prepareTimeout)
	setup, err := b.Prepare(limited, h.Ask, event)
	cancel()
	if err == nil {
		e.State, e.Since = Confirmed, m.clock.Now()
		err = m.ledger.put(*e)
	}
	unlock()
	if err != nil {
		m.forget(b)
		return Setup{}, errors.Join(err, m.release(ctx, h.Ask.ID))
	}
	return setup, nil
}

// lockOf is the name of the lock under which a backend works.
func lockOf(b Backend) string {
	if b.Vendor() == "" {
		return "every-" + b.Name()
	}
	return string(b.Vendor()) + "-" + b.Name()
}

// Release gives back all that a task has. held are the shares by the task's own record, for a ledger that was lost.
func (m *Manager) Release(ctx context.Context, taskID string, held ...Held) error {
	entries, err := m.ledger.all()
	var unreadable *UnreadableError
	if err != nil && !errors.As(err, &unreadable) {
		return err
	}
	var problems []error
	for _, h := range held {
		if _, known := entries[h.Ask.ID]; !known && h.Ask.TaskID == taskID {
			problems = append(problems, m.ledger.put(m.newEntry(h, Releasing)))
			entries[h.Ask.ID] = Entry{Ask: h.Ask} // only its id counts below
		}
	}
	for _, e := range sorted(entries) {
		if e.Ask.TaskID == taskID {
			problems = append(problems, m.release(ctx, e.Ask.ID))
		}
	}
	return errors.Join(problems...)
}

// release gives one share back. It goes on when ctx has ended, since what is half given back helps nobody.
func (m *Manager) release(ctx context.Context, id ID) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	e, err := m.ledger.get(id)
	if err != nil || e == nil {
		return err
	}
	if e.Backend == "" {
		return m.ledger.drop(id)
	}
	b, ok := m.backend(*e)
	if !ok {
		return fmt.Errorf("give back %s: this version of the driver has no %s for %s: install the version that made it, and drain the node before it is replaced", id, e.Backend, e.Ask.Vendor)
	}
	unlock, err := m.locks.lock(ctx, lockOf(b))
	if err != nil {
		return fmt.Errorf("give back %s: %w", id, err)
	}
	defer unlock()
	return m.giveBack(ctx, b, id)
}

// giveBack asks the backend, whose lock is held.
func (m *Manager) giveBack(ctx context.Context, b Backend, id ID) error {
	e, err := m.ledger.get(id)
	if err != nil || e == nil {
		return err
	}
	if !e.State.leaving() {
		e.State, e.Since = Releasing, m.clock.Now()
		if err := m.ledger.put(*e); noRoom(err) {
			m.log.Warn("the ledger cannot be written, a share is given back all the same", "share", id, "error", err) // it is found again by the entry there is
		} else if err != nil {
			return err
		}
	}
	err = b.Release(ctx, id)
	if err == nil {
		return m.ledger.drop(id)
	}
	e.Problem = err.Error()
	if errors.Is(err, context.DeadlineExceeded) || m.clock.Now().Sub(e.Since) >= releaseLate {
		e.State = TimedOut
	}
	err = fmt.Errorf("give back the share of %s card %s by %s: %w", e.Ask.Vendor, e.Ask.Card.UUID, b.Name(), err)
	return errors.Join(err, m.ledger.put(*e))
}

// noRoom reports whether something could not be written for want of room. Names can be removed all the same.
func noRoom(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// sorted are entries in the order of their ids, so that the same is always done in the same order.
func sorted(entries map[ID]Entry) []Entry {
	var out []Entry
	for _, id := range slices.Sorted(maps.Keys(entries)) {
		out = append(out, entries[id])
	}
	return out
}

// newEntry is an entry that comes into its state now.
func (m *Manager) newEntry(h Held, s State) Entry {
	return Entry{Ask: h.Ask, Backend: h.Backend, State: s, Since: m.clock.Now(), Maker: m.maker}
}

// lives reports whether an entry's task runs or is being started, by this process or by one that it replaces.
func (m *Manager) lives(e Entry, tasks func(string) bool) bool {
	return tasks(e.Ask.TaskID) || e.Maker != m.maker && m.running != nil && m.running(e.Maker)
}

// backend is who made a share.
func (m *Manager) backend(e Entry) (Backend, bool) {
	if b, ok := m.registry.Get(e.Ask.Vendor, e.Backend); ok {
		return b, true
	}
	return m.registry.Get("", e.Backend)
}

// Entries are the ledger's entries by id, for those who show them.
func (m *Manager) Entries() (map[ID]Entry, error) { return m.ledger.all() }
