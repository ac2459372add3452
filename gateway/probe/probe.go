// Package probe asks backends whether they are ready and how busy they are, each on the path of its kind of engine. What
// follows from an answer is decided in gateway/balance; what an engine answers is known in internal/inference.
package probe

import (
	"cmp"
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/heteroflow/heteroflow/gateway/balance"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/inference"
)

// Service is one whose backends are probed.
type Service struct {
	Name   string
	Engine string // kind, as internal/inference names it; empty when it is not said
	Pool   *balance.Pool
}

// Every is how often a backend is probed where nothing else is said.
const Every = 10 * time.Second

const (
	// steps is how many looks there are in an interval at what is due.
	steps = 20
	// jitter is the part of an interval by which a probe may come early, so that they do not all come at once.
	jitter = 0.2
	// doubt is the part of an interval after which a backend is asked again that is not well.
	doubt  = 0.2
	atOnce = 64 // probes on their way
)

// Prober probes until Run ends.
type Prober struct {
	services func() []Service
	client   *http.Client
	clock    clock.Clock
	every    time.Duration
	slots    chan struct{}

	mu     sync.Mutex
	probes map[target]*probed
	looked time.Time // when it was last looked at who is due
}

// target is a backend at an address: one that comes back elsewhere is another.
type target struct {
	service string
	balance.Backend
}

type probed struct {
	due     time.Time
	asking  bool
	reading inference.Reading
}

// New makes a prober that asks each backend once in so long.
func New(services func() []Service, every time.Duration, transport http.RoundTripper, c clock.Clock) *Prober {
	return &Prober{
		services: services, clock: c, every: every, slots: make(chan struct{}, atOnce), probes: map[target]*probed{},
		client: &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}
}

// Run probes until the context ends, and returns once the last answer has come or was given up.
func (p *Prober) Run(ctx context.Context) error {
	tick := p.clock.NewTicker(p.every / steps)
	defer tick.Stop()
	var asking sync.WaitGroup
	defer asking.Wait()
	for {
		for _, d := range p.due() {
			asking.Go(func() { p.ask(ctx, d) })
		}
		select {
		case <-tick.C():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

type job struct {
	target
	state  *probed
	pool   *balance.Pool
	habits inference.Habits
}

// due lists whom to ask now, and forgets those who are not there any more.
func (p *Prober) due() (list []job) {
	now := p.clock.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	next := make(map[target]*probed, len(p.probes))
	for _, s := range p.services() {
		for _, b := range s.Pool.Status() {
			at := target{s.Name, b.Backend}
			state := p.probes[at]
			if state == nil {
				// The first one comes somewhere in the interval, as one that is new was found well by the registry.
				state = &probed{due: now.Add(time.Duration(rand.Float64() * float64(p.every)))} //nolint:gosec // nothing secret is drawn
			}
			next[at] = state
			if well := b.State == balance.Closed && !b.Missing; !well {
				if soon := now.Add(time.Duration(doubt * float64(p.every))); state.due.After(soon) {
					state.due = soon
				}
			}
			if !state.asking && !state.due.After(now) {
				state.asking = true
				list = append(list, job{at, state, s.Pool, inference.HabitsOf(s.Engine)})
			}
		}
	}
	p.probes, p.looked = next, now
	return list
}

// ask probes one backend.
func (p *Prober) ask(ctx context.Context, j job) {
	p.slots <- struct{}{}
	defer func() { <-p.slots }()
	ctx, cancel := context.WithTimeout(ctx, p.every/2)
	defer cancel()
	ok := p.ready(ctx, j)
	var reading inference.Reading
	if ok {
		reading = p.read(ctx, j)
	}
	if ctx.Err() == nil || !ok && context.Cause(ctx) == context.DeadlineExceeded {
		j.pool.Probed(j.ID, ok)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	early := jitter * rand.Float64() * float64(p.every) //nolint:gosec // nothing secret is drawn
	j.state.asking, j.state.due, j.state.reading = false, p.clock.Now().Add(p.every-time.Duration(early)), reading
}

// ready asks whether the backend can take requests.
func (p *Prober) ready(ctx context.Context, j job) bool {
	resp, err := p.get(ctx, cmp.Or(j.Ready, j.Addr), j.habits.Ready)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) //nolint:errcheck // so that the connection may be used again
	return j.habits.IsReady(resp.StatusCode)
}

// read asks how busy the backend is. Many engines do not tell.
func (p *Prober) read(ctx context.Context, j job) inference.Reading {
	if len(j.habits.Running)+len(j.habits.Waiting)+len(j.habits.KVUse) == 0 {
		return inference.Reading{}
	}
	resp, err := p.get(ctx, cmp.Or(j.Metrics, j.Addr), j.habits.Metrics)
	if err != nil {
		return inference.Reading{}
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return inference.Reading{}
	}
	reading, err := j.habits.Read(resp.Body)
	if err != nil {
		return inference.Reading{}
	}
	return reading
}

func (p *Prober) get(ctx context.Context, addr, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		return nil, err
	}
	return p.client.Do(req)
}

// Reading sums up what the engines of a service told last: requests running and waiting over all, and the use of the
// fullest cache. Nil is what none of them tells.
func (p *Prober) Reading(service string) (sum inference.Reading) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for at, state := range p.probes {
		if at.service != service {
			continue
		}
		r := state.reading
		sum.Running, sum.Waiting = plus(sum.Running, r.Running), plus(sum.Waiting, r.Waiting)
		if r.KVUse != nil && (sum.KVUse == nil || *r.KVUse > *sum.KVUse) {
			sum.KVUse = r.KVUse
		}
	}
	return sum
}

func plus(a, b *int) *int {
	if a == nil || b == nil {
		if a == nil {
			return b
		}
		return a
	}
	return new(*a + *b)
}
