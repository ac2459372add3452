// Package balance picks one backend of a service for a request: the policies, the counts they need, and the memory
// of which backends failed a moment ago. Where backends come from and what is sent to them does not belong here.
package balance

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/heteroflow/heteroflow/gateway/session"
	"github.com/heteroflow/heteroflow/internal/clock"
)

// Policy is the way in which a backend is chosen.
type Policy string

const (
	// RoundRobin takes backends in turn, exactly, also while the list of backends is refreshed.
	RoundRobin Policy = "round_robin"
	// LeastConnections takes the backend with the fewest requests in flight; equals are taken in turn.
	LeastConnections Policy = "least_connections"
)

// ParsePolicy reads a policy; empty is round robin.
func ParsePolicy(s string) (Policy, error) {
	switch p := Policy(s); p {
	case "":
		return RoundRobin, nil
	case RoundRobin, LeastConnections:
		return p, nil
	}
	return "", fmt.Errorf("unknown policy %q: write round_robin or least_connections", s)
}

// Backend is one instance of a service.
type Backend struct {
	ID   string // stable while the instance lives; orders the list
	Addr string // host:port
}

// Rest is how long a failed backend is left alone.
const Rest = 5 * time.Second

// Pool holds the backends of one service. It is safe for concurrent use.
type Pool struct {
	clock clock.Clock

	mu       sync.Mutex
	backends []*member // ordered by ID
	turn     uint64
}

type member struct {
	Backend
	inFlight int
	tokens   int       // of prompts whose first byte has not come
	restedAt time.Time // when it may be used again; zero when it never failed
}

// NewPool makes an empty pool.
func NewPool(c clock.Clock) *Pool { return &Pool{clock: c} }

// Set replaces the list. Counts of backends that stay are kept, and so is the turn.
func (p *Pool) Set(list []Backend) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := map[string]*member{}
	for _, m := range p.backends {
		old[m.ID] = m
	}
	next := make([]*member, 0, len(list))
	for _, b := range list {
		m := old[b.ID]
		if m == nil {
			m = &member{}
		} else if m.Addr != b.Addr {
			m.restedAt = time.Time{}
		}
		m.Backend = b
		next = append(next, m)
	}
	slices.SortFunc(next, func(a, b *member) int { return cmp.Compare(a.ID, b.ID) })
	p.backends = next
}

// Ask is what is known of a request when a backend is chosen.
type Ask struct {
	Policy Policy
	Not    map[string]bool // ids of backends that are never chosen, usually those tried before
	Prompt session.Prompt
	Stream bool // FirstByte will be told; where it is not, an answer comes whole and says nothing of its prefill
}

// Lease is one request's hold on a backend. Done ends it; further calls change nothing.
type Lease struct {
	Backend
	pool   *Pool
	m      *member
	tokens int // outstanding prompt tokens, until the first byte
	done   bool
}

// Take chooses a backend and counts the request in the same step, so that a burst spreads. Backends in Not are
// never chosen; resting ones only when there is no other, because the last backend is better than none. The
// result is nil when every backend is in Not.
func (p *Pool) Take(a Ask) *Lease {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	pick := p.choose(a.Policy, func(m *member) bool { return !a.Not[m.ID] && !m.restedAt.After(now) })
	if pick == nil {
		pick = p.choose(a.Policy, func(m *member) bool { return !a.Not[m.ID] })
	}
	if pick == nil {
		return nil
	}
	pick.inFlight++
	pick.tokens += a.Prompt.Tokens
	return &Lease{Backend: pick.Backend, pool: p, m: pick, tokens: a.Prompt.Tokens}
}

// FirstByte says that the backend has begun its answer: the prompt has been worked off.
func (l *Lease) FirstByte() {
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	l.giveTokensBack()
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

// Done gives the backend back.
func (l *Lease) Done(o Outcome) {
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	if l.done {
		return
	}
	l.done = true
	l.m.inFlight--
	l.giveTokensBack()
	switch o.verdict {
	case success:
		l.m.restedAt = time.Time{}
	case failed:
		l.m.restedAt = l.pool.clock.Now().Add(Rest)
	}
}

// choose walks the list once from the backend whose turn it is.
func (p *Pool) choose(policy Policy, usable func(*member) bool) *member {
	n := len(p.backends)
	if n == 0 {
		return nil
	}
	var best *member
	bestAt := 0
	start := int(p.turn % uint64(n))
	for i := range n {
		at := (start + i) % n
		m := p.backends[at]
		if !usable(m) {
			continue
		}
		if best == nil || policy == LeastConnections && m.inFlight < best.inFlight {
			best, bestAt = m, at
		}
		if policy == RoundRobin {
			break
		}
	}
	if best != nil {
		p.turn = uint64(bestAt) + 1
	}
	return best
}
