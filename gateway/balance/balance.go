// Package balance picks one backend of a service for a request: the policies, the sessions that stay on a backend,
// the counts both need, and the health of backends as requests and probes have it. Where backends come from, what a
// request's keys are, and what is sent do not belong here.
package balance

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/heteroflow/heteroflow/gateway/session"
	"github.com/heteroflow/heteroflow/internal/clock"
)

// Backend is one instance of a service.
type Backend struct {
	ID   string // stable while the instance lives; orders the list
	Addr string // host:port
	// Ready and Metrics are where it tells whether it is ready, and its load; empty is Addr.
	Ready, Metrics string
}

const (
	maxPins = 1 << 17 // of one pool, some 10 MB
	pinTime = time.Hour
	// cacheTokens is how much an engine's prefix cache is taken to hold.
	cacheTokens = 1 << 20
)

// Pool holds the backends of one service. It is safe for concurrent use.
type Pool struct {
	clock clock.Clock

	mu      sync.Mutex
	members []*member // ordered by ID
	last    string    // id of the backend taken last; the turn goes on behind it
	pins    *session.Table
	others  map[string]instance // other gateways, by name
	changed chan struct{}       // closed and replaced when the number of backends changes
}

// member is a backend and what is known of it. The pool's lock guards it.
type member struct {
	Backend
	breaker   breaker
	inFlight  int
	streaming int // of them, those whose first byte has come
	tokens    int // of prompts whose first byte has not come
	credit    float64
	rate      rate
	speed     float64 // over the mean of all, 1 where they do not differ
	cache     *session.Index
	whole     []*Lease // those that say nothing of their first byte, in the order in which they are due
	elsewhere Load     // what other gateways have there
}

func (m *member) running() int     { return m.inFlight + m.elsewhere.Requests }
func (m *member) outstanding() int { return m.tokens + m.elsewhere.Tokens }

// uncached is how many of a prompt's tokens the backend probably has to work off.
func (m *member) uncached(a *Ask) int {
	_, cached := m.cache.Match(a.Prompt.Chain)
	if m == a.pinned {
		cached = max(cached, a.elsewhere)
	}
	return max(0, a.Prompt.Tokens-cached)
}

// work is how long so many tokens take there, in tokens of a backend of mean speed.
func (m *member) work(tokens int, now time.Time) float64 {
	return float64(tokens) / (m.speed * m.breaker.share(now))
}

// NewPool makes an empty pool.
func NewPool(c clock.Clock) *Pool {
	return &Pool{clock: c, pins: session.NewTable(maxPins, pinTime), others: map[string]instance{}, changed: make(chan struct{})}
}

// Set replaces the list. What is known of backends that stay is kept, and so is the turn. Sessions of a backend that is
// gone, or came back at another address, are free at once.
func (p *Pool) Set(list []Backend) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	old := map[string]*member{}
	for _, m := range p.members {
		old[m.ID] = m
	}
	next := make([]*member, 0, len(list))
	joined := false
	for _, b := range list {
		m := old[b.ID]
		if m == nil || m.Addr != b.Addr {
			joined = true
			m = &member{Backend: b, speed: 1, cache: session.NewIndex(cacheTokens)}
			if slices.ContainsFunc(p.members, func(o *member) bool { return o.inFlight > 0 }) {
				m.breaker.backSince = now // it joins others that are at work
			}
		} else {
			m.Backend = b
			delete(old, b.ID)
		}
		next = append(next, m)
	}
	for id := range old {
		p.pins.Drop(id)
	}
	slices.SortFunc(next, func(a, b *member) int { return cmp.Compare(a.ID, b.ID) })
	if joined || len(next) != len(p.members) {
		close(p.changed)
		p.changed = make(chan struct{})
	}
	p.members = next
	p.setElsewhere(now)
}

// Ready is how many backends there are and how many requests other gateways have there. Changed is closed when the
// list is another.
func (p *Pool) Ready() (backends, elsewhere int, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.members {
		elsewhere += m.elsewhere.Requests
	}
	return len(p.members), elsewhere, p.changed
}

// Ask is what is known of a request when a backend is chosen.
type Ask struct {
	Policy Policy
	Not    map[string]bool // ids of backends that are never chosen, usually those tried before
	Prompt session.Prompt
	Stream bool // FirstByte will be told; where it is not, an answer comes whole and says nothing of its prefill

	pinned    *member // where the session's last request went
	elsewhere int     // tokens that it has there through another gateway
}

// Lease is one request's hold on a backend. Done ends it; further calls change nothing.
type Lease struct {
	Backend
	// Route says why the backend was chosen: the name of the session's level that was known, "trial" for the request that
	// finds out whether a backend is well again, or else the policy.
	Route string

	pool    *Pool
	m       *member
	prompt  session.Prompt
	takenAt time.Time
	ahead   int // tokens to be worked off before the first byte, its own included
	tokens  int // of its own that are outstanding
	matched int // blocks that the cache held before
	mark    uint64
	due     time.Time // of the end of the prefill, where no first byte tells
	trial   bool
	stream  bool
	begun   bool
	done    bool
}

// Take chooses a backend and counts the request in the same step, so that a burst spreads. Backends in Not are
// never chosen; those that failed only when there is no other, because the last backend is better than none. The
// result is nil when every backend is in Not.
func (p *Pool) Take(a Ask) *Lease {
	l := &Lease{}
	if !p.TakeInto(l, &a) {
		return nil
	}
	return l
}

// TakeInto does what Take does in memory that is there: a lease that was never used, or is done. It is false where Take
// gives nil.
func (p *Pool) TakeInto(l *Lease, a *Ask) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	p.setElsewhere(now)
	for _, m := range p.members {
		m.settle(now)
	}
	r := ruleOf(a.Policy)
	clear(a.Prompt.Keys[r.levels:])
	a.pinned, a.elsewhere = nil, 0
	c := choice{ask: a, now: now}
	m, route := p.pick(r, &c)
	if m == nil {
		c = choice{ask: a, now: now, all: true}
		m, route = p.pick(r, &c)
	}
	if m == nil {
		return false
	}
	p.lease(l, m, route, a, now)
	return true
}

// choice is one choosing: which backends may be taken.
type choice struct {
	ask *Ask
	now time.Time
	all bool // also those that failed

	crowd     crowd
	uncrowded bool // only those that are not crowded
}

func (c *choice) usable(m *member) bool {
	return !c.ask.Not[m.ID] && (c.all || m.breaker.usable(c.now)) && (!c.uncrowded || !c.crowd.has(m))
}

// routes names the session levels, for the header that says how a request was routed.
var routes = [session.Levels]string{"session_id", "prompt_cache_key", "user", "answered", "opening"}

func (p *Pool) pick(r rule, c *choice) (*member, string) {
	a, now := c.ask, c.now
	for _, m := range p.members {
		// Or it would stay half open for as long as sessions and caches draw all requests elsewhere.
		if c.usable(m) && m.breaker.usable(now) && m.breaker.at(now) == HalfOpen {
			return m, "trial"
		}
	}
	c.crowd = p.crowd(c)
	if f, ok := p.pins.Find(a.Prompt.Keys, now); ok {
		c.uncrowded = true
		at := slices.IndexFunc(p.members, func(m *member) bool { return m.ID == f.Backend })
		if at >= 0 && c.usable(p.members[at]) {
			a.pinned = p.members[at]
			if a.pinned.cache.Keeps(f.At) {
				a.elsewhere = f.Elsewhere
			}
			best := p.least(tokensCost, c)
			if tokensCost(a.pinned, a, now)-tokensCost(best, a, now) <= margin(f.Level, a) {
				return a.pinned, routes[f.Level]
			}
		}
	}
	c.uncrowded = r.cost != nil && r.byCache
	if r.cost == nil {
		return p.inTurn(c), string(r.name)
	}
	return p.least(r.cost, c), string(r.name)
}

// fromTurn calls f for every backend, beginning behind the one taken last.
func (p *Pool) fromTurn(f func(*member)) {
	start, _ := slices.BinarySearchFunc(p.members, p.last, func(m *member, id string) int {
		if m.ID <= id {
			return -1
		}
		return 1
	})
	for i := range p.members {
		f(p.members[(start+i)%len(p.members)])
	}
}

func (p *Pool) least(cost func(*member, *Ask, time.Time) float64, c *choice) *member {
	var best *member
	var least float64
	p.fromTurn(func(m *member) {
		if !c.usable(m) {
			return
		}
		if cost := cost(m, c.ask, c.now); best == nil || cost < least {
			best, least = m, cost
		}
	})
	return best
}

// inTurn takes the next backend. One that is busy passes on its turn until it has saved up a whole one.
func (p *Pool) inTurn(c *choice) *member {
	var next, fallback *member
	p.fromTurn(func(m *member) {
		if next != nil || !c.usable(m) {
			return
		}
		if !m.breaker.busy(c.now) {
			m.credit = 0
			next = m
			return
		}
		if fallback == nil {
			fallback = m
		}
		if m.credit += busyShare; m.credit >= 1 {
			m.credit = 0
			next = m
		}
	})
	return cmp.Or(next, fallback)
}

func (p *Pool) lease(l *Lease, m *member, route string, a *Ask, now time.Time) {
	matched, _ := m.cache.Match(a.Prompt.Chain)
	*l = Lease{
		Backend: m.Backend, Route: route, pool: p, m: m, prompt: a.Prompt, takenAt: now, stream: a.Stream,
		tokens: m.uncached(a), matched: matched, trial: m.breaker.take(now),
	}
	p.last = m.ID
	m.inFlight++
	m.tokens += l.tokens
	l.ahead = m.outstanding()
	l.mark = p.pins.Put(a.Prompt.Keys, m.ID, a.Prompt.Tokens, now)
	m.cache.Add(a.Prompt.Chain, now)
	if r, ok := m.rate.perSecond(); ok && !a.Stream && l.tokens > 0 {
		l.due = now.Add(time.Duration(float64(l.ahead) / r * float64(time.Second)))
		m.whole = append(m.whole, l)
	}
}

// Routes is Route as the values of a header, which are not changed.
func (l *Lease) Routes() []string {
	if values, ok := routeValues[l.Route]; ok {
		return values
	}
	return []string{l.Route}
}

var routeValues = func() map[string][]string {
	values := map[string][]string{"trial": {"trial"}}
	for _, route := range routes {
		values[route] = []string{route}
	}
	for _, r := range rules {
		values[string(r.name)] = []string{string(r.name)}
	}
	return values
}()

// settle takes prompts as worked off whose time has come, where no first byte tells.
func (m *member) settle(now time.Time) {
	n := 0
	for n < len(m.whole) && !m.whole[n].due.After(now) {
		m.whole[n].giveTokensBack()
		n++
	}
	m.whole = slices.Delete(m.whole, 0, n)
}

// FirstByte says that the backend has begun its answer: the prompt has been worked off.
func (l *Lease) FirstByte() {
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	if l.begun || l.done {
		return
	}
	l.begun = true
	l.prompt = session.Prompt{} // long, and needed only to undo
	l.m.streaming++
	l.giveTokensBack()
	if l.stream {
		l.m.rate.add(l.ahead, l.pool.clock.Now().Sub(l.takenAt))
		l.pool.setSpeeds()
	}
}

func (l *Lease) giveTokensBack() {
	l.m.tokens -= l.tokens
	l.tokens = 0
}

// Outcome is how a backend did with a request.
type Outcome struct {
	verdict verdict
	after   time.Duration
}

type verdict int

const (
	success verdict = iota
	neutral
	failed
	busy
)

var (
	// Success is an answer that ended well.
	Success = Outcome{verdict: success}
	// Neutral says nothing about the backend: the client's fault (a 4xx), or the client left.
	Neutral = Outcome{verdict: neutral}
	// Failed is the backend's fault: silence, a cut answer, a 5xx.
	Failed = Outcome{verdict: failed}
)

// Busy is a healthy backend's refusal (429, or 503 with Retry-After): it gets less until the given time has passed.
func Busy(retryAfter time.Duration) Outcome { return Outcome{verdict: busy, after: retryAfter} }

// Done gives the backend back. A request that got no answer leaves no pin and no prefix behind.
func (l *Lease) Done(o Outcome) {
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	if l.done {
		return
	}
	l.done = true
	l.m.inFlight--
	if l.begun {
		l.m.streaming--
	}
	l.giveTokensBack()
	if i := slices.Index(l.m.whole, l); i >= 0 {
		l.m.whole = slices.Delete(l.m.whole, i, i+1)
	}
	if !l.begun && (o.verdict == failed || o.verdict == busy) {
		l.pool.pins.Forget(l.prompt.Keys, l.ID, l.mark)
		l.m.cache.Remove(l.prompt.Chain[l.matched:])
	}
	l.m.breaker.done(o, l.trial, l.pool.clock.Now())
}

// Probed counts what an active probe of a backend found. A backend that is sending answers is not taken for gone,
// however busy it is, and the last one is used whatever probes say.
func (p *Pool) Probed(id string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.members {
		if m.ID == id {
			m.breaker.probe(ok, m.streaming > 0, p.clock.Now())
		}
	}
}

// Status is what is known of one backend.
type Status struct {
	Backend
	State           State
	Missing         bool    // probes say that it is gone
	Share           float64 // of an equal share, which it takes now: less after it came back, and while it is busy
	InFlight        int
	Outstanding     int     // prompt tokens that it has to work off, as far as is known
	TokensPerSecond float64 // measured; 0 when it is not known
}

// Status lists the backends, ordered by id.
func (p *Pool) Status() []Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	list := make([]Status, 0, len(p.members))
	for _, m := range p.members {
		rate, _ := m.rate.perSecond()
		list = append(list, Status{
			Backend: m.Backend, State: m.breaker.at(now), Missing: m.breaker.missing, Share: m.breaker.share(now),
			InFlight: m.inFlight, Outstanding: m.tokens, TokensPerSecond: rate,
		})
	}
	return list
}
