// Package limit holds the limits of keys, members, tenants and endpoints over all instances of the gateway: requests and tokens
// a minute, requests at the same time, budgets of tokens and of money. Each instance takes allowance from the store in
// advance and beside the requests, which read nothing. Which limits there are is kept in the store; who calls, and how
// requests are answered, do not belong here.
package limit

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/store"
)

// Store is where limits, prices and what was taken are kept.
type Store interface {
	Revision(ctx context.Context, kind string) (int64, error)
	ListLimits(ctx context.Context, tenant string, page store.Page) ([]store.LimitUse, string, error)
	ListPrices(ctx context.Context, page store.Page) ([]store.Price, string, error)
	ChangeAllowances(ctx context.Context, ids []string, change func(*store.Allowance) error) error
}

var _ Store = (*store.Store)(nil)

// Ask is a request that wants to be let through.
type Ask struct {
	Tenant, Member, KeyID string
	Model                 string
	EndpointID            string // empty for a model that is named by a tag only
	Prompt                int64  // tokens, estimated
	Max                   *int64 // tokens that the answer may have at most, all choices together; nil when that is not said
	Answers               bool   // the answer is made of tokens
	Free                  bool   // no model runs: it counts as a request, and nothing is charged
}

// Used is what a request used in the end.
type Used struct {
	Prompt, Cached, Completion *int64 // tokens; nil is not known, and what was reserved counts
	Ran                        bool   // false: no model ran, and nothing is charged
}

const (
	// mostTokens bounds what a request may claim to want, so that no sum overflows.
	mostTokens = 1_000_000_000
	// meanAnswer is what an answer is taken for when the request does not say and none was seen.
	meanAnswer = 256
	// mostLimits is how many limits one request can have: of key, member and tenant, for its model and for all, and of the
	// endpoint.
	mostLimits = 7
	// tries is how often a request asks for more. Each time it waits no longer than so many calls to the store may take.
	tries = 3
	waits = 3
)

// Limiter lets requests through. It is safe for concurrent use.
type Limiter struct {
	store    Store
	clock    clock.Clock
	log      hclog.Logger
	metrics  *Metrics
	instance string
	patience time.Duration // for one call to the store

	book  atomic.Pointer[book]
	peers atomic.Int64 // instances that live, this one too
	away  atomic.Bool  // the store did not answer last time

	mu     sync.Mutex
	listed []*account // that have something to tell
	next   *round
	kick   chan struct{}

	failed time.Time // last, of Sync alone
	seen   time.Time // when the instances were last counted, the same
}

// round is one exchange with the store.
type round struct{ done chan struct{} }

// New makes a limiter for the instance of that name, which no other has or had. It knows no limits until Run or Sync.
func New(s Store, instance string, c clock.Clock, log hclog.Logger, m *Metrics) *Limiter {
	l := &Limiter{store: s, clock: c, log: log, metrics: m, instance: instance, patience: callFor, next: &round{make(chan struct{})}, kick: make(chan struct{}, 1)}
	l.book.Store(&book{})
	l.peers.Store(1)
	return l
}

// Reservation is what a request holds until it is settled.
type Reservation struct {
	accounts [mostLimits]*account
	count    int
	need     amounts
	prompt   int64
	price    *store.Price
	second   int64 // Unix, when it was made
	month    int64
	free     bool
	clock    clock.Clock
	settled  atomic.Bool
}

// Reserve takes what the request needs from each of its limits, or from none. It returns nil, nil when it has none.
// It may be called on nil, which has no limits. It reads nothing: a request for which nothing is held in advance waits, for a moment, for the next exchange.
func (l *Limiter) Reserve(ctx context.Context, a Ask) (*Reservation, *Refusal) {
	r, refusal := l.prepare(&a)
	if r == nil {
		return nil, refusal
	}
	late := false // the store took too long, which is as good as away
	for try := 1; ; try++ {
		alone := int64(0)
		if l.away.Load() || late {
			alone = l.peers.Load()
		}
		refusal, asks := l.try(r, a, try > 1, alone)
		if refusal == nil {
			return r, nil
		}
		if !asks || try == tries || ctx.Err() != nil {
			return nil, l.refuse(refusal)
		}
		late = !l.await(ctx)
	}
}

// prepare finds the limits of a request and works out what it needs; nil, nil when it has none.
func (l *Limiter) prepare(a *Ask) (*Reservation, *Refusal) {
	if l == nil {
		return nil, nil
	}
	b := l.book.Load()
	if len(b.byID) == 0 {
		return nil, nil
	}
	r := &Reservation{clock: l.clock, free: a.Free}
	b.find(a, r)
	if r.count == 0 {
		return nil, nil
	}
	if refusal := r.want(a); refusal != nil {
		return nil, l.refuse(refusal)
	}
	return r, nil
}

func (l *Limiter) refuse(r *Refusal) *Refusal {
	l.metrics.refused(r)
	return r
}

// try takes from each limit. When some say no, it gives back and tells which is the tightest; asks says that the store
// may have more.
func (l *Limiter) try(r *Reservation, a Ask, waited bool, alone int64) (refusal *Refusal, asks bool) {
	now := l.clock.Now()
	r.second, r.month = now.Unix(), store.MonthOf(now)
	var said [mostLimits]verdict
	var of [mostLimits]Kind
	worst := granted
	for i, acct := range r.accounts[:r.count] {
		said[i], of[i] = acct.take(now, r.need, waited, alone)
		worst = max(worst, said[i])
	}
	if worst == granted {
		return nil, false
	}
	for i, acct := range r.accounts[:r.count] {
		switch said[i] {
		case granted:
			acct.undo(now, r, worst == ask, alone)
		case ask:
			if worst == ask {
				acct.wish(now, r.need, waited)
			}
		}
		if said[i] != worst {
			continue
		}
		s, ok := acct.stand(now, of[i], r.need[of[i]])
		if ok && (refusal == nil || s.wait > refusal.wait) {
			refusal = &Refusal{standing: s, model: a.Model, need: r.need[of[i]], never: worst == never}
		}
	}
	if refusal != nil {
		refusal.of = r
	} else { // the limit went away meanwhile
		refusal = &Refusal{standing: standing{limit: &store.Limit{}, wait: time.Second}, model: a.Model}
	}
	return refusal, worst == ask
}

// await has the store asked, and waits for the answer. It reports whether one came.
func (l *Limiter) await(ctx context.Context) bool {
	l.mu.Lock()
	r := l.next
	l.mu.Unlock()
	select {
	case l.kick <- struct{}{}:
	default:
	}
	select {
	case <-r.done:
		return true
	case <-l.clock.After(waits * l.patience):
		return false
	case <-ctx.Done():
		return false
	}
}

// want works out what the request needs.
func (r *Reservation) want(a *Ask) *Refusal {
	r.need[Requests], r.need[Concurrency] = 1, 1
	for _, acct := range r.accounts[:r.count] {
		if refusal := acct.unpriced(a, r.price); refusal != nil {
			return refusal
		}
	}
	out := int64(0)
	switch {
	case a.Free:
	case !a.Answers:
		r.prompt = min(max(0, a.Prompt), mostTokens)
	default:
		r.prompt = min(max(0, a.Prompt), mostTokens)
		if out = r.usual(); a.Max != nil {
			out = min(max(0, *a.Max), mostTokens)
		}
	}
	// At least one of each: where a budget is used up, nothing goes through.
	r.need[Tokens] = max(1, r.prompt+out)
	r.need[MonthTokens] = r.need[Tokens]
	r.need[MonthMoney] = 1
	if !a.Free {
		r.need[MonthMoney] = max(1, r.cost(r.prompt, 0, out))
	}
	return nil
}

// usual is what an answer usually has, but no more than fits.
func (r *Reservation) usual() int64 {
	out := int64(0)
	for _, acct := range r.accounts[:r.count] {
		mean, most := acct.usual()
		if out == 0 {
			out = mean // of the narrowest limit
		}
		if most >= 0 {
			out = min(out, max(1, most-r.prompt))
		}
	}
	return out
}

func (r *Reservation) cost(prompt, cached, completion int64) int64 {
	if r.price == nil {
		return 0
	}
	return r.price.RequestNanos + (prompt-cached)*r.price.PromptNanos + cached*r.price.CachedNanos + completion*r.price.CompletionNanos
}

// answer is how many tokens of what was used were the answer's, as far as that matters for the mean.
func (r *Reservation) answer(used amounts) int64 { return used[Tokens] - r.prompt }

// Settle puts what was used in the place of what was reserved, once: a second call changes nothing. It may be called
// on nil.
func (r *Reservation) Settle(u Used) {
	if r == nil || r.settled.Swap(true) {
		return
	}
	used := amounts{}
	switch {
	case r.free || !u.Ran:
	case u.Prompt == nil && u.Completion == nil:
		used = r.need
	default:
		prompt, cached, completion := r.prompt, int64(0), r.need[Tokens]-r.prompt
		for _, known := range []struct{ to, from *int64 }{{&prompt, u.Prompt}, {&cached, u.Cached}, {&completion, u.Completion}} {
			if known.from != nil {
				*known.to = min(max(0, *known.from), mostTokens)
			}
		}
		used[Tokens] = prompt + completion
		used[MonthTokens] = used[Tokens]
		used[MonthMoney] = r.cost(prompt, min(cached, prompt), completion)
	}
	now := r.clock.Now()
	for _, acct := range r.accounts[:r.count] {
		acct.settle(now, r, used)
	}
}

// errNotRead says that the limits are not known yet.
var errNotRead = errors.New("limits have not been read yet")
