package server

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/gateway/balance"
	"github.com/heteroflow/heteroflow/gateway/discover"
	"github.com/heteroflow/heteroflow/gateway/hold"
	"github.com/heteroflow/heteroflow/gateway/mockengine"
	"github.com/heteroflow/heteroflow/gateway/relay"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/store"
)

// changing is a registry of one service whose instances come and go; without any it is not listed.
type changing struct {
	mu        sync.Mutex
	offer     discover.Offer
	instances []discover.Instance
	index     uint64
	changed   chan struct{}
}

func newChanging(o discover.Offer) *changing {
	return &changing{offer: o, index: 1, changed: make(chan struct{})}
}

func (c *changing) set(addrs ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.instances = nil
	for _, a := range addrs {
		c.instances = append(c.instances, discover.Instance{ID: "at " + a, Addr: a})
	}
	c.index++
	close(c.changed)
	c.changed = make(chan struct{})
}

// since waits for a change, and leaves with the lock held.
func (c *changing) since(ctx context.Context, index uint64) error {
	c.mu.Lock()
	for index >= c.index {
		changed := c.changed
		c.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			c.mu.Lock()
			return ctx.Err()
		}
		c.mu.Lock()
	}
	return nil
}

func (c *changing) Names(ctx context.Context, index uint64) (map[string]discover.Offer, uint64, error) {
	defer c.mu.Unlock()
	if err := c.since(ctx, index); err != nil {
		return nil, 0, err
	}
	if len(c.instances) == 0 {
		return map[string]discover.Offer{}, c.index, nil
	}
	return map[string]discover.Offer{"llm": c.offer}, c.index, nil
}

func (c *changing) Live(ctx context.Context, _ string, index uint64) ([]discover.Instance, uint64, error) {
	defer c.mu.Unlock()
	if err := c.since(ctx, index); err != nil {
		return nil, 0, err
	}
	return slices.Clone(c.instances), c.index, nil
}

// woken counts calls and answers what it was told.
type woken struct {
	calls chan string
	err   error
}

func (w *woken) Wake(_ context.Context, service string) error {
	w.calls <- service
	return w.err
}

// atZero is a gateway whose model has an endpoint and no backend yet.
func atZero(t *testing.T, c clock.Clock, limits hold.Limits, failure error, offer discover.Offer) (*bench, *changing, *woken) {
	t.Helper()
	registry, w := newChanging(offer), &woken{calls: make(chan string, 100), err: failure}
	b := setUp(t, of{
		registry: registry, clock: c, rows: []store.Endpoint{{ID: "e", Tenant: "default", Model: "m", Service: "llm"}},
		queues: func(service string, p *balance.Pool) *hold.Queue {
			return hold.New(service, p, w, limits.OrDefaults(), c, hclog.NewNullLogger())
		},
	})
	return b, registry, w
}

func (b *bench) queue() *hold.Queue {
	b.tb.Helper()
	t, ok := b.h.table.Lookup("m")
	if !ok {
		b.tb.Fatal("the model is gone")
	}
	return t.Queue
}

// ready waits until the gateway knows so many backends.
func (b *bench) ready(n int) {
	b.tb.Helper()
	eventually2(b.tb, "the gateway knows the backends", func() bool {
		t, ok := b.h.table.Lookup("m")
		if !ok {
			return false
		}
		have, _, _ := t.Pool.Ready()
		return have == n
	})
}

// A thousand requests while the service is at zero: one call wakes it, all are answered, and the engine is asked by the
// name that only its tags tell.
func TestPW19_PW20_NoneIsLostWhileAtZero(t *testing.T) {
	t.Parallel()
	const n = 1000
	b, registry, w := atZero(t, clock.System(), hold.Limits{}, nil, discover.Offer{Served: "Qwen/Qwen3-8B", Slots: 16})
	engine := mockengine.New(t, mockengine.Behaviour{Tokens: 2})
	answers := make(chan got, n)
	for i := range n {
		go func() { answers <- b.post(chat, []string{whole, streamed}[i%2]) }()
	}
	receive(t, w.calls, "the call that wakes")
	eventually(t, "all requests are held", func() bool { return b.queue().Held() == n })
	registry.set(engine.Addr)
	for range n {
		if a := receive(t, answers, "an answer"); a.err != nil || a.status != http.StatusOK {
			t.Fatalf("%d %v %s", a.status, a.err, a.body)
		}
	}
	for range n {
		if u := b.row(); u.End != store.EndDone {
			t.Fatalf("a row: %+v", u)
		}
	}
	if len(w.calls) != 0 {
		t.Errorf("woken %d times more", len(w.calls))
	}
	for _, seen := range engine.Ledger() {
		if !strings.Contains(string(seen.Body), "Qwen/Qwen3-8B") {
			t.Fatalf("the engine was asked for %s", seen.Body)
		}
	}
}

// The only backend dies while it is still listed: the request waits for the next one instead of failing.
func TestPW19_NoneIsLostWhileBackendsChange(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{"whole": whole, "stream": streamed} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dead, alive := mockengine.New(t, mockengine.Behaviour{Reset: true}), mockengine.New(t)
			b, registry, _ := atZero(t, clock.System(), hold.Limits{}, nil, discover.Offer{})
			registry.set(dead.Addr)
			b.ready(1)
			answer := make(chan got, 1)
			go func() { answer <- b.post(chat, body) }()
			receive(t, dead.Arrived(), "the request at the dying backend")
			registry.set(alive.Addr)
			if a := receive(t, answer, "the answer"); a.status != http.StatusOK {
				t.Fatalf("%d %s", a.status, a.body)
			}
			if u := b.row(); u.End != store.EndDone || u.Tries != 2 || !strings.Contains(u.Tried, dead.Addr) {
				t.Errorf("row: %+v", u)
			}
		})
	}
}

// A stream that waits is kept alive by comments, and goes on with the engine's own bytes.
func TestHeld_StreamsGetComments(t *testing.T) {
	t.Parallel()
	now := clock.NewFake(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	b, registry, _ := atZero(t, now, hold.Limits{Wait: 24 * time.Hour}, nil, discover.Offer{})
	c := b.dial(chat, streamed)
	eventually(t, "the request is held", func() bool { return b.queue().Held() == 1 })
	lines := make(chan string, 1000)
	go func() {
		defer close(lines)
		for from := bufio.NewReader(c); ; {
			line, err := from.ReadString('\n')
			if err != nil {
				return
			}
			lines <- line
		}
	}()
	// read reads up to a text while seconds pass by the gateway's clock.
	read := func(until string) string {
		t.Helper()
		var all strings.Builder
		eventually(t, "there is "+until, func() bool {
			now.Advance(time.Second)
			for len(lines) > 0 && !strings.Contains(all.String(), until) {
				all.WriteString(<-lines)
			}
			return strings.Contains(all.String(), until)
		})
		return all.String()
	}
	if head := read(": the request waits for a backend"); !strings.Contains(head, "200 OK") || !strings.Contains(head, "text/event-stream") {
		t.Errorf("begins %q", head)
	}
	read(": the request waits for a backend")
	registry.set(mockengine.New(t).Addr)
	if rest := read("[DONE]"); strings.Contains(rest, "HTTP/1.1") || !strings.Contains(rest, `"delta"`) {
		t.Errorf("goes on %q", rest)
	}
	if u := b.row(); u.End != store.EndDone || u.Status != http.StatusOK {
		t.Errorf("row: %+v", u)
	}
}

// What goes wrong after a comment is told inside of the stream, without an end mark, and the connection is cut.
func TestHeld_ErrorInsideOfAStream(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{chat: `"code":"model_not_started"`, "/v1/messages": "event: error", "/v1/responses": "event: response.failed"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			now := clock.NewFake(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
			b, _, _ := atZero(t, now, hold.Limits{Wait: time.Minute}, nil, discover.Offer{})
			c := b.dial(path, streamed)
			eventually(t, "the request is held", func() bool { return b.queue().Held() == 1 })
			answer := make(chan got, 1)
			go func() { answer <- b.answerOf(c) }()
			eventually(t, "it ends", func() bool {
				now.Advance(time.Second)
				return b.queue().Held() == 0
			})
			a := receive(t, answer, "the answer")
			if a.status != http.StatusOK || !strings.Contains(a.body, want) || strings.Contains(a.body, "[DONE]") || a.err == nil {
				t.Errorf("%d, error %v, %q", a.status, a.err, a.body)
			}
			if u := b.row(); u.End != store.EndRefused || u.Status != http.StatusGatewayTimeout || tokens(u.PromptTokens) != 0 {
				t.Errorf("row: %+v", u)
			}
		})
	}
}

func TestHeld_Refusals(t *testing.T) {
	t.Parallel()
	none := fmt.Errorf("no job: %w", hold.ErrNothing)
	for name, c := range map[string]struct {
		limits  hold.Limits
		failure error
		header  []string
		status  int
		code    string
	}{
		"the queue is full":         {hold.Limits{Bytes: 1}, nil, nil, http.StatusTooManyRequests, "queue_full"},
		"nothing came up":           {hold.Limits{Wait: time.Millisecond}, nil, nil, http.StatusGatewayTimeout, "model_not_started"},
		"there is nothing to start": {hold.Limits{}, none, nil, http.StatusServiceUnavailable, "no_backend"},
		"a priority that is none":   {hold.Limits{}, none, []string{PriorityHeader, "high"}, http.StatusBadRequest, "invalid_priority"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, _, _ := atZero(t, clock.System(), c.limits, c.failure, discover.Offer{})
			a := b.post(chat, whole, c.header...)
			if a.status != c.status || !strings.Contains(a.body, `"code":"`+c.code+`"`) {
				t.Errorf("%d %s", a.status, a.body)
			}
			if (a.header.Get("Retry-After") == "") != (c.status == http.StatusBadRequest) {
				t.Errorf("Retry-After: %q", a.header.Get("Retry-After"))
			}
			if u := b.row(); u.End != store.EndRefused || u.Status != c.status || tokens(u.PromptTokens) != 0 {
				t.Errorf("row: %+v", u)
			}
		})
	}
}

// A client that leaves is out of the queue at once.
func TestHeld_ClientGone(t *testing.T) {
	t.Parallel()
	b, _, _ := atZero(t, clock.System(), hold.Limits{}, nil, discover.Offer{})
	for _, body := range []string{whole, streamed} {
		c := b.dial(chat, body)
		eventually(t, "the request is held", func() bool { return b.queue().Held() == 1 })
		if err := c.SetLinger(0); err != nil {
			t.Fatal(err)
		}
		c.Close()
		eventually(t, "the queue is empty", func() bool { return b.queue().Held() == 0 })
		if u := b.row(); u.End != store.EndClientGone || u.Status != relay.StatusClientGone {
			t.Errorf("row: %+v", u)
		}
	}
}

// A service that says how many requests an instance takes is given no more, and the rest wait.
func TestHeld_SlotsOfARunningService(t *testing.T) {
	t.Parallel()
	gate := make(chan bool)
	engine := mockengine.New(t, mockengine.Behaviour{Gate: gate})
	b, registry, _ := atZero(t, clock.System(), hold.Limits{}, nil, discover.Offer{Slots: 3})
	registry.set(engine.Addr)
	b.ready(1)
	answers := make(chan got, 10)
	for range 10 {
		go func() { answers <- b.post(chat, whole) }()
	}
	for range 3 {
		receive(t, engine.Arrived(), "a request")
	}
	eventually(t, "the others wait", func() bool { return b.queue().Held() == 7 })
	for range 10 {
		gate <- true
		if a := receive(t, answers, "an answer"); a.status != http.StatusOK {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	if n := len(engine.Ledger()); n != 10 {
		t.Errorf("the engine saw %d", n)
	}
}

// Limits of a service's own, by its tags.
func TestRules_OfAService(t *testing.T) {
	t.Parallel()
	silent, good := mockengine.New(t, mockengine.Behaviour{Silent: true}), mockengine.New(t)
	registry := newChanging(discover.Offer{Models: []string{"m"}, Times: discover.Times{Whole: 50 * time.Millisecond, Headers: 50 * time.Millisecond}})
	registry.set(silent.Addr, good.Addr)
	b := setUp(t, of{registry: registry})
	b.ready(2)
	for _, body := range []string{whole, streamed} {
		for range 2 { // both are tried first once
			if a := b.post(chat, body); a.status != http.StatusOK {
				t.Fatalf("%d %s", a.status, a.body)
			}
		}
	}
	once := newChanging(discover.Offer{Models: []string{"m"}, Times: discover.Times{Tries: 1}})
	once.set(mockengine.New(t, mockengine.Behaviour{Reset: true}).Addr, mockengine.New(t, mockengine.Behaviour{Reset: true}).Addr)
	b = setUp(t, of{registry: once})
	b.ready(2)
	if a := b.post(chat, whole); a.status != http.StatusBadGateway || b.row().Tries != 1 {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// Each answer says why its backend was chosen.
func TestSessionRoute(t *testing.T) {
	t.Parallel()
	b := setUp(t, of{engines: []*mockengine.Engine{mockengine.New(t), mockengine.New(t)}})
	for _, c := range []struct {
		body   string
		header []string
		want   string
	}{
		{`{"model":"m","messages":[{"role":"user","content":"one"}]}`, nil, "least_tokens"},
		{`{"model":"m","messages":[{"role":"user","content":"one"}]}`, nil, "opening"},
		{`{"model":"m","messages":[{"role":"user","content":"one"},{"role":"assistant","content":"a"},{"role":"user","content":"b"}]}`, nil, "opening"},
		{`{"model":"m","messages":[{"role":"user","content":"one"},{"role":"assistant","content":"a"},{"role":"user","content":"c"}]}`, nil, "answered"},
		{`{"model":"m","stream":true,"messages":[{"role":"user","content":"two"}]}`, []string{"X-Session-Id", "s"}, "least_tokens"},
		{`{"model":"m","stream":true,"messages":[{"role":"user","content":"three"}]}`, []string{"X-Session-Id", "s"}, "session_id"},
		{`{"model":"m","prompt_cache_key":"k","messages":[{"role":"user","content":"four"}]}`, nil, "least_tokens"},
		{`{"model":"m","prompt_cache_key":"k","messages":[{"role":"user","content":"five"}]}`, nil, "prompt_cache_key"},
		{`{"model":"m","user":"u","messages":[{"role":"user","content":"six"}]}`, nil, "least_tokens"},
		{`{"model":"m","user":"u","messages":[{"role":"user","content":"seven"}]}`, nil, "user"},
	} {
		a := b.post(chat, c.body, c.header...)
		if got := a.header.Get("X-Session-Route"); a.status != http.StatusOK || got != c.want {
			t.Errorf("%s: %d, route %q, want %q", c.body, a.status, got, c.want)
		}
	}
	if a := b.post(chat, `{"model":"other"}`); a.header.Get("X-Session-Route") != "" {
		t.Error("a request that was sent nowhere has a route")
	}
}
