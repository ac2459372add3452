// Package hold keeps requests back while their service has no backend, or none with a free place: in a fair order, within
// limits of count and bytes, with one call that wakes the service for all of them. Which backend a request is then sent
// to, and what its client is told meanwhile, do not belong here.
package hold

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/clock"
)

// Backends is what a queue must know of those who do the work.
type Backends interface {
	// Ready is how many there are and how many requests other gateways have there. Changed is closed when the first of the
	// two is another.
	Ready() (backends, elsewhere int, changed <-chan struct{})
}

// Waker starts what serves a service. Calling it again while it starts must be harmless. ErrNothing, wrapped with the
// reason, says that no further call will help.
type Waker interface {
	Wake(ctx context.Context, service string) error
}

// Limits bound what one service's queue keeps.
type Limits struct {
	Requests int           // that wait at once
	Bytes    int64         // of their bodies
	Wait     time.Duration // of one request
}

// DefaultLimits are meant where nothing is said.
var DefaultLimits = Limits{Requests: 1000, Bytes: 256 << 20, Wait: 5 * time.Minute}

// OrDefaults fills in what is left out.
func (l Limits) OrDefaults() Limits {
	l.Requests, l.Bytes, l.Wait = cmp.Or(l.Requests, DefaultLimits.Requests), cmp.Or(l.Bytes, DefaultLimits.Bytes), cmp.Or(l.Wait, DefaultLimits.Wait)
	return l
}

// Why a request is not served.
var (
	ErrFull    = errors.New("too many requests wait")
	ErrBusy    = errors.New("no place at a backend came free in time")
	ErrCold    = errors.New("no backend came up in time")
	ErrNothing = errors.New("there is nothing that could be started")
)

// Request is what of a request decides when its turn is.
type Request struct {
	Tenant, Key string
	Priority    int   // the higher first, within the key
	Tokens      int   // of its prompt, estimated
	Bytes       int64 // that it keeps in memory while it waits
}

const (
	// usualSlots is how many requests a backend is given at once while some are held, where its service does not say how
	// many it takes. Source: vLLM's usual max_num_seqs.
	usualSlots = 256

	wakeAgain  = 30 * time.Second // while nothing has come up
	wakeRetry  = 5 * time.Second  // after a call that failed
	wakeLimit  = 30 * time.Second // for one call
	lookAgain  = time.Second      // for places that other gateways gave back
	outputCost = 2                // of a token of an answer, in those of a prompt
)

// Queue is that of one service. It is safe for concurrent use.
type Queue struct {
	service  string
	backends Backends
	waker    Waker
	limits   Limits
	clock    clock.Clock
	log      hclog.Logger
	stir     chan struct{} // there may be something to do

	mu       sync.Mutex
	slots    int // of one backend; 0 when it is not known
	order    order
	bytes    int64 // of those who wait
	running  int   // let in and not gone
	looking  bool  // a goroutine looks after those who wait
	waking   bool
	wakeNext time.Time
}

// New makes a queue. Without a waker, which may be nil, requests for a service without a backend are let through at once.
func New(service string, b Backends, w Waker, l Limits, c clock.Clock, log hclog.Logger) *Queue {
	return &Queue{service: service, backends: b, waker: w, limits: l, clock: c, log: log, stir: make(chan struct{}, 1)}
}

// SetSlots says how many requests one backend takes at once; 0 is not known.
func (q *Queue) SetSlots(n int) {
	q.mu.Lock()
	changed := q.slots != n
	q.slots = n
	q.mu.Unlock()
	if changed {
		q.nudge()
	}
}

// Holds reports whether a request may have to wait at all.
func (q *Queue) Holds() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waker != nil || q.slots > 0
}

// Held is how many requests wait.
func (q *Queue) Held() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.order.len()
}

func (q *Queue) nudge() {
	select {
	case q.stir <- struct{}{}:
	default:
	}
}

// Ticket is one request's place in the queue, then at a backend.
type Ticket struct {
	q       *Queue
	request Request
	turn    chan struct{} // closed when it need not wait any more; nil when it never had to
	err     error         // set before turn is closed, when it will not be served
	in      bool
	seq     uint64
	at      int // in its key's heap
}

// Join asks for a place. A ticket that Waits reports must wait for its turn; each ticket must be given back by Leave.
// ErrFull when too many wait.
func (q *Queue) Join(r Request) (*Ticket, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := &Ticket{q: q, request: r}
	n, elsewhere, _ := q.backends.Ready()
	switch free := n == 0 && q.waker == nil || n > 0 && (q.slots == 0 || q.running+elsewhere < n*q.slots); {
	case free && q.order.len() == 0:
		t.in = true
		q.running++
		return t, nil
	case q.order.len() >= q.limits.Requests || q.bytes+r.Bytes > q.limits.Bytes:
		return nil, ErrFull
	}
	t.turn = make(chan struct{})
	q.order.push(t)
	q.bytes += r.Bytes
	if !q.looking {
		q.looking = true
		go q.look()
	}
	q.nudge()
	return t, nil
}

// Waits reports whether the ticket's turn has yet to come.
func (t *Ticket) Waits() bool { return t.turn != nil }

// Wait waits for the ticket's turn and calls still at each interval meanwhile. The error is ErrBusy or ErrCold when the
// limit has passed, ErrNothing when nothing can be started, or the context's.
func (t *Ticket) Wait(ctx context.Context, every time.Duration, still func()) error {
	if t.turn == nil {
		return nil
	}
	tick := t.q.clock.NewTicker(every)
	defer tick.Stop()
	late := t.q.clock.After(t.q.limits.Wait)
	for {
		select {
		case <-t.turn:
			return t.err
		case <-tick.C():
			still()
		case <-ctx.Done():
			return ctx.Err()
		case <-late:
			if n, _, _ := t.q.backends.Ready(); n == 0 {
				return ErrCold
			}
			return ErrBusy
		}
	}
}

// Leave gives the place back, in the queue or at a backend, whichever it is. Tokens are those of the answer. Further
// calls change nothing.
func (t *Ticket) Leave(tokens int) {
	q := t.q
	q.mu.Lock()
	switch {
	case t.in:
		t.in = false
		q.running--
		q.order.charge(&t.request, outputCost*tokens)
	case t.turn != nil && t.at >= 0 && t.err == nil:
		q.drop(t)
	}
	waiting := q.looking
	q.mu.Unlock()
	if waiting {
		q.nudge()
	}
}

// drop takes a ticket out of the queue. The lock is held.
func (q *Queue) drop(t *Ticket) {
	q.order.remove(t)
	q.left(t)
}

// left counts one that waits no more. The lock is held.
func (q *Queue) left(t *Ticket) {
	q.bytes -= t.request.Bytes
	t.at = -1
}

// look lets in those who wait, in their order, as long as there are any.
func (q *Queue) look() {
	for {
		changed, ok := q.admit()
		if !ok {
			return
		}
		select {
		case <-changed:
		case <-q.stir:
		case <-q.clock.After(lookAgain):
		}
	}
}

// admit lets in as many as there are places, or has the service woken. It is false when nobody waits.
func (q *Queue) admit() (changed <-chan struct{}, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, elsewhere, changed := q.backends.Ready()
	slots := q.slots
	if slots == 0 {
		slots = usualSlots
	}
	for room := n*slots - q.running - elsewhere; room > 0 || n == 0 && q.waker == nil; room-- {
		t := q.order.pop()
		if t == nil {
			break
		}
		q.left(t)
		t.in = true
		q.running++
		close(t.turn)
	}
	if q.order.len() == 0 {
		q.looking = false
		return nil, false
	}
	if n == 0 && !q.waking && !q.clock.Now().Before(q.wakeNext) {
		q.waking = true
		go q.wake(q.order.len())
	}
	return changed, true
}

// wake calls the waker once for all who wait.
func (q *Queue) wake(held int) {
	q.log.Info("service is woken", "service", q.service, "held", held)
	ctx, cancel := context.WithTimeout(context.Background(), wakeLimit)
	defer cancel()
	err := q.waker.Wake(ctx, q.service)
	q.mu.Lock()
	defer q.nudge()
	defer q.mu.Unlock()
	q.waking = false
	switch {
	case err == nil:
		q.wakeNext = q.clock.Now().Add(wakeAgain)
	case errors.Is(err, ErrNothing):
		q.log.Warn("service cannot be woken", "service", q.service, "error", err)
		q.wakeNext = q.clock.Now().Add(wakeRetry)
		for t := q.order.pop(); t != nil; t = q.order.pop() {
			q.left(t)
			t.err = err
			close(t.turn)
		}
	default:
		q.log.Warn("service not woken, will be tried again", "service", q.service, "error", err)
		q.wakeNext = q.clock.Now().Add(wakeRetry)
	}
}
