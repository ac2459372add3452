package limit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/store"
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// memory is a store in memory that can be told to be away, or to lose its answers.
type memory struct {
	mu       sync.Mutex
	revision int64
	limits   []store.LimitUse
	prices   []store.Price
	taken    map[string]store.Allowance
	down     bool // nothing is done
	lost     bool // it is done, and the answer is lost
	calls    int  // exchanges
}

var _ Store = (*memory)(nil)

var errDown = errors.New("database away")

func (m *memory) Revision(context.Context, string) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return 0, errDown
	}
	return m.revision, nil
}

func (m *memory) ListLimits(context.Context, string, store.Page) ([]store.LimitUse, string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return nil, "", errDown
	}
	list := slices.Clone(m.limits)
	for i := range list {
		list[i].Spent = m.taken[list[i].ID].Spent
	}
	return list, "", nil
}

func (m *memory) ListPrices(context.Context, store.Page) ([]store.Price, string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.prices, "", nil
}

func (m *memory) ChangeAllowances(_ context.Context, ids []string, change func(*store.Allowance) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return errDown
	}
	m.calls++
	changed := maps.Clone(m.taken)
	for _, id := range slices.Sorted(slices.Values(ids)) {
		a := changed[id]
		a.LimitID = id
		if err := change(&a); err != nil {
			return err
		}
		changed[id] = a
	}
	m.taken = changed
	if m.lost {
		return errDown
	}
	return nil
}

func (m *memory) set(change func(m *memory)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(m)
	m.revision++
}

func (m *memory) state(id string) (store.Allowance, state) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.taken[id], decode(m.taken[id].State)
}

func ptr[T any](v T) *T { return &v }

// of makes a limit of all models.
func of(scope, subject string, c store.Caps) store.LimitUse {
	return store.LimitUse{Limit: store.Limit{ID: scope + " " + subject, Tenant: "research", Scope: scope, Subject: subject, Caps: c}}
}

func newMemory(limits ...store.LimitUse) *memory {
	return &memory{revision: 1, limits: limits, taken: map[string]store.Allowance{}}
}

// fleet is instances with one store and one clock.
type fleet struct {
	t     testing.TB
	store *memory
	clock *clock.Fake
	made  int
}

func newFleet(t testing.TB, limits ...store.LimitUse) *fleet {
	return &fleet{t: t, store: newMemory(limits...), clock: clock.NewFake(epoch)}
}

// instance is a limiter that exchanges only when it is told, or when a request would wait for it.
type instance struct {
	*Limiter
	f *fleet
}

func (f *fleet) start() *instance {
	f.made++
	l := New(f.store, fmt.Sprint("gateway", f.made), f.clock, hclog.NewNullLogger(), NewMetrics(prometheus.NewRegistry()))
	i := &instance{l, f}
	i.Sync(f.t.Context())
	return i
}

// reserve is Reserve, with the exchange that a request waits for.
func (i *instance) reserve(a Ask) (*Reservation, *Refusal) {
	r, refusal := i.prepare(&a)
	if r == nil {
		return nil, refusal
	}
	for try := 1; ; try++ {
		alone := int64(0)
		if i.away.Load() {
			alone = i.peers.Load()
		}
		refusal, asks := i.try(r, a, try > 1, alone)
		switch {
		case refusal == nil:
			return r, nil
		case !asks || try == tries:
			return nil, refusal
		}
		i.Sync(i.f.t.Context())
	}
}

// ann is a request of a key of a member of a tenant.
func ann(prompt int64, most ...int64) Ask {
	a := Ask{Tenant: "research", Member: "ann", KeyID: "k1", EndpointID: "e1", Model: "m", Prompt: prompt, Answers: true}
	if len(most) > 0 {
		a.Max = &most[0]
	}
	return a
}

// used is what an engine told.
func used(prompt, completion int64) Used {
	return Used{Prompt: &prompt, Completion: &completion, Ran: true}
}

// rest lets the instances tell all and give back what they hold.
func (f *fleet) rest(list ...*instance) {
	for range 40 {
		f.clock.Advance(syncEvery)
		for _, i := range list {
			i.Sync(f.t.Context())
		}
	}
}
