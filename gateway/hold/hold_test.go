package hold

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/clock"
)

const patience = 30 * time.Second

// fleet is what a queue sees of the backends.
type fleet struct {
	mu        sync.Mutex
	n, others int
	changed   chan struct{}
}

func newFleet(n int) *fleet { return &fleet{n: n, changed: make(chan struct{})} }

func (f *fleet) Ready() (int, int, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.n, f.others, f.changed
}

func (f *fleet) set(n, others int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n, f.others = n, others
	close(f.changed)
	f.changed = make(chan struct{})
}

// waker counts calls and answers as it is told.
type waker struct {
	calls  chan string
	answer chan error
}

func newWaker() *waker { return &waker{calls: make(chan string, 100), answer: make(chan error, 100)} }

func (w *waker) Wake(ctx context.Context, service string) error {
	w.calls <- service
	select {
	case err := <-w.answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func receive[T any](t *testing.T, from <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatalf("%s never came", what)
		panic("unreachable")
	}
}

func nothing[T any](t *testing.T, from <-chan T, what string) {
	t.Helper()
	select {
	case <-from:
		t.Fatalf("%s came", what)
	default:
	}
}

var limits = Limits{Requests: 2000, Bytes: 1 << 20, Wait: 10 * time.Minute}

func queue(f *fleet, w Waker, l Limits) (*Queue, *clock.Fake) {
	now := clock.NewFake(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	return New("llm", f, w, l, now, hclog.NewNullLogger()), now
}

// waiting joins and waits beside the test.
func waiting(t *testing.T, q *Queue, ctx context.Context, r Request) (*Ticket, <-chan error) {
	t.Helper()
	one, err := q.Join(r)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- one.Wait(ctx, time.Minute, func() {}) }()
	return one, done
}

// A thousand requests for a service at zero: one call, the first replica gets as many as it takes, the second its own,
// and none is lost.
func TestQueue_OneWakeForAThousandAndSlotsForTheFirst(t *testing.T) {
	t.Parallel()
	f, w := newFleet(0), newWaker()
	q, _ := queue(f, w, limits)
	q.SetSlots(8)
	type entered struct {
		one *Ticket
		err error
	}
	in := make(chan entered, 1000)
	for i := range 1000 {
		one, done := waiting(t, q, t.Context(), Request{Tenant: fmt.Sprint(i % 7), Key: fmt.Sprint(i % 3)})
		go func() { in <- entered{one, <-done} }()
	}
	if got := receive(t, w.calls, "a call"); got != "llm" {
		t.Errorf("woken: %s", got)
	}
	w.answer <- nil
	if q.Held() != 1000 {
		t.Errorf("%d are held", q.Held())
	}
	var running []*Ticket
	enter := func(n int) {
		t.Helper()
		for range n {
			e := receive(t, in, "a turn")
			if e.err != nil {
				t.Fatal(e.err)
			}
			running = append(running, e.one)
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.running != len(running) {
			t.Fatalf("%d run, want %d", q.running, len(running))
		}
	}
	f.set(1, 0)
	enter(8)
	nothing(t, in, "a ninth turn")
	f.set(2, 0)
	enter(8)
	served := 0
	for len(running) > 0 {
		running[0].Leave(10)
		running[0].Leave(10) // changes nothing
		running = running[1:]
		served++
		if served+len(running) < 1000 {
			enter(1)
		}
	}
	if served != 1000 || q.Held() != 0 {
		t.Errorf("%d served, %d held", served, q.Held())
	}
	nothing(t, w.calls, "a second call")
}

func TestQueue_CallsAgainWhileNothingComesUp(t *testing.T) {
	t.Parallel()
	f, w := newFleet(0), newWaker()
	q, now := queue(f, w, limits)
	one, done := waiting(t, q, t.Context(), Request{})
	receive(t, w.calls, "the first call")
	answers := []struct {
		err   error
		again time.Duration
	}{{errors.New("no leader"), wakeRetry}, {nil, wakeAgain}, {nil, wakeAgain}}
	for _, a := range answers {
		w.answer <- a.err
		for settled := false; !settled; runtime.Gosched() {
			q.mu.Lock()
			settled = !q.waking
			q.mu.Unlock()
		}
		now.Advance(a.again - time.Millisecond)
		nothing(t, w.calls, "a call too early")
		if err := now.AwaitWaiters(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		now.Advance(lookAgain)
		receive(t, w.calls, "a further call")
	}
	f.set(1, 0)
	if err := receive(t, done, "the turn"); err != nil {
		t.Fatal(err)
	}
	one.Leave(0)
}

func TestQueue_Ends(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		n    int
		end  func(f *fleet, w *waker, now *clock.Fake, cancel context.CancelFunc)
		want error
	}{
		"no backend came up": {0, func(_ *fleet, _ *waker, now *clock.Fake, _ context.CancelFunc) { now.Advance(limits.Wait) }, ErrCold},
		"no place came free": {1, func(_ *fleet, _ *waker, now *clock.Fake, _ context.CancelFunc) { now.Advance(limits.Wait) }, ErrBusy},
		"the client left":    {0, func(_ *fleet, _ *waker, _ *clock.Fake, cancel context.CancelFunc) { cancel() }, context.Canceled},
		"there is nothing to start": {0, func(_ *fleet, w *waker, _ *clock.Fake, _ context.CancelFunc) {
			w.answer <- fmt.Errorf("no job: %w", ErrNothing)
		}, ErrNothing},
		"the backend that ran is back": {0, func(f *fleet, _ *waker, _ *clock.Fake, _ context.CancelFunc) { f.set(2, 0) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, w := newFleet(c.n), newWaker()
			q, now := queue(f, w, limits)
			q.SetSlots(1)
			if c.n > 0 {
				if one, err := q.Join(Request{}); err != nil || one.Waits() {
					t.Fatal("the first one waits")
				}
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			one, done := waiting(t, q, ctx, Request{Bytes: 10})
			if err := now.AwaitWaiters(t.Context(), 4); err != nil { // its limit and its ticker, and the queue's first two looks
				t.Fatal(err)
			}
			if c.n == 0 {
				receive(t, w.calls, "the call")
			}
			c.end(f, w, now, cancel)
			if err := receive(t, done, "the end"); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			one.Leave(0)
			q.mu.Lock()
			defer q.mu.Unlock()
			if q.order.len() != 0 || q.bytes != 0 || q.running != c.n {
				t.Errorf("left behind: %d wait, %d bytes, %d run", q.order.len(), q.bytes, q.running)
			}
		})
	}
}

func TestQueue_Limits(t *testing.T) {
	t.Parallel()
	f := newFleet(0)
	q, _ := queue(f, newWaker(), Limits{Requests: 2, Bytes: 100, Wait: time.Minute})
	first, err := q.Join(Request{Bytes: 60})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.Join(Request{Bytes: 60}); !errors.Is(err, ErrFull) {
		t.Errorf("over the bytes: %v", err)
	}
	second, err := q.Join(Request{Bytes: 40})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.Join(Request{}); !errors.Is(err, ErrFull) {
		t.Errorf("over the count: %v", err)
	}
	first.Leave(0) // a client that left makes room at once
	if _, err := q.Join(Request{Bytes: 60}); err != nil {
		t.Errorf("after one has left: %v", err)
	}
	second.Leave(0)
}

// A burst of 500 at a capacity of 50: none is refused while the queue has room, and two tenants get the same.
func TestPW24_BurstWaitsInFairOrder(t *testing.T) {
	t.Parallel()
	q, _ := queue(newFleet(1), nil, Limits{Requests: 450, Bytes: 1 << 20, Wait: time.Minute})
	q.SetSlots(50)
	var running []*Ticket
	turns := make(chan *Ticket, 500)
	for i := range 500 {
		tenant := "loud"
		if i >= 400 {
			tenant = "quiet"
		}
		one, err := q.Join(Request{Tenant: tenant, Tokens: 100})
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		if !one.Waits() {
			running = append(running, one)
			continue
		}
		go func() {
			if one.Wait(context.Background(), time.Minute, func() {}) == nil {
				turns <- one
			}
		}()
	}
	if len(running) != 50 {
		t.Fatalf("%d run at once", len(running))
	}
	if _, err := q.Join(Request{}); !errors.Is(err, ErrFull) {
		t.Errorf("beyond the queue: %v", err)
	}
	quiet := 0
	for range 100 {
		running[0].Leave(0)
		one := receive(t, turns, "a turn")
		running = append(running[1:], one)
		if one.request.Tenant == "quiet" {
			quiet++
		}
	}
	if quiet < 49 || quiet > 51 {
		t.Errorf("of 100 turns the quiet tenant, with 100 of 500 requests, got %d", quiet)
	}
	for range 350 {
		running[0].Leave(0)
		running = append(running[1:], receive(t, turns, "a turn"))
	}
	if q.Held() != 0 {
		t.Errorf("%d are left", q.Held())
	}
}

// What other gateways have at the backends is not given out again, and is looked at again as they give it back.
func TestQueue_PlacesOfOtherGateways(t *testing.T) {
	t.Parallel()
	f := newFleet(1)
	q, now := queue(f, nil, limits)
	q.SetSlots(4)
	f.set(1, 4)
	_, done := waiting(t, q, t.Context(), Request{})
	if err := now.AwaitWaiters(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	nothing(t, done, "a turn")
	f.mu.Lock()
	f.others = 3
	f.mu.Unlock()
	now.Advance(lookAgain)
	if err := receive(t, done, "the turn"); err != nil {
		t.Fatal(err)
	}
}

// Without slots and a waker nothing ever waits.
func TestQueue_NothingToWaitFor(t *testing.T) {
	t.Parallel()
	for n := range 2 {
		q, _ := queue(newFleet(n), nil, limits)
		for range 1000 {
			if one, err := q.Join(Request{}); err != nil || one.Waits() {
				t.Fatalf("%d backends: it waits, %v", n, err)
			}
		}
	}
}
