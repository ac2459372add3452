package simulate

import (
	"container/heap"
	"container/list"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/gateway/balance"
	"github.com/heteroflow/heteroflow/gateway/peers"
	"github.com/heteroflow/heteroflow/gateway/peers/peerstest"
	"github.com/heteroflow/heteroflow/gateway/session"
	"github.com/heteroflow/heteroflow/internal/clock"
)

// setting is one run of the model: engines with a prefix cache each, that work off prompts one after the other and
// decode in parallel.
type setting struct {
	policy   balance.Policy
	rates    []float64 // prompt tokens/s, one for each backend
	cache    int       // tokens that an engine's prefix cache holds
	gateways int
	lag      time.Duration // after which the other gateways know; 0 is never
	sessions bool          // the request's keys are known to the gateway
	chains   bool          // and its prefix
	levels   []int         // of keys; nil is what a body without the client's own names gives
	speed    float64       // of the arrivals
	blind    bool          // to how fast backends are
	kill     time.Duration // after which one backend is gone; 0 is never
}

const (
	prefillRate = 7000 // tokens/s
	decodeToken = 30 * time.Millisecond
	cacheSize   = 1_000_000
)

// usual is the setting of which others are variations.
func usual(p balance.Policy) setting {
	s := setting{policy: p, cache: cacheSize, gateways: 1, sessions: true, chains: true, speed: 1}
	for range 8 {
		s.rates = append(s.rates, prefillRate)
	}
	return s
}

// result is what came of a run.
type result struct {
	hit, followHit float64 // shares of blocks
	mean           float64 // time to first token, s
	p50, p90, p99  float64
	busiest        float64 // requests of the busiest backend over the mean
	stayed         float64 // share of follow-ups that went where the session's last request went
	failed         int
}

func (r result) String() string {
	return fmt.Sprintf("%5.1f  %5.1f | %6.2f %6.2f %6.2f %6.2f   |   %5.3f |  %5.1f", 100*r.hit, 100*r.followHit, r.mean, r.p50, r.p90, r.p99, r.busiest, 100*r.stayed)
}

// engine is one backend.
type engine struct {
	rate    float64
	queue   []*call
	working *call
	cache   blockCache
	dead    bool
	count   int
}

// call is one request at an engine.
type call struct {
	request
	lease   *balance.Lease
	arrived time.Duration
	engine  *engine
	gateway int
}

// blockCache is an engine's: whole blocks, the latest used are kept, the beginning of a prompt longer than its end.
type blockCache struct {
	size  int // blocks
	order *list.List
	at    map[uint64]*list.Element
}

func newBlockCache(tokens int) blockCache {
	return blockCache{size: tokens / blockTokens, order: list.New(), at: map[uint64]*list.Element{}}
}

// use counts the leading blocks that are held, and then holds all.
func (c *blockCache) use(blocks []uint64) (hits int) {
	for hits < len(blocks) && c.at[blocks[hits]] != nil {
		hits++
	}
	for i := len(blocks) - 1; i >= 0; i-- {
		if e := c.at[blocks[i]]; e != nil {
			c.order.MoveToFront(e)
			continue
		}
		c.at[blocks[i]] = c.order.PushFront(blocks[i])
	}
	for c.order.Len() > c.size {
		last := c.order.Back()
		delete(c.at, c.order.Remove(last).(uint64))
	}
	return hits
}

type event struct {
	at   time.Duration
	seq  int
	what func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].seq < e[j].seq
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	last := old[len(old)-1]
	*e = old[:len(old)-1]
	return last
}

type simulation struct {
	setting
	now     time.Duration
	clock   *clock.Fake
	pending events
	seq     int
	pools   []*balance.Pool
	engines map[string]*engine

	first                            []float64
	blocks, hits, following, followH int
	last                             map[int]string
	follow, stayed, failed           int
}

func (s *simulation) after(d time.Duration, what func()) {
	s.seq++
	heap.Push(&s.pending, event{s.now + d, s.seq, what})
}

func run(requests []request, in setting) result {
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := &simulation{setting: in, clock: clock.NewFake(began), engines: map[string]*engine{}, last: map[int]string{}}
	var backends []balance.Backend
	for i, rate := range in.rates {
		id := fmt.Sprintf("b%02d", i)
		backends = append(backends, balance.Backend{ID: id, Addr: id})
		s.engines[id] = &engine{rate: rate, cache: newBlockCache(in.cache)}
	}
	for range in.gateways {
		p := balance.NewPool(s.clock)
		p.Set(backends)
		s.pools = append(s.pools, p)
	}
	left := len(requests)
	for i, r := range requests {
		s.after(time.Duration(float64(r.at)/in.speed), func() {
			s.arrive(&call{request: r, arrived: s.now, gateway: i % in.gateways}, nil)
			left--
		})
	}
	if in.kill > 0 {
		s.after(in.kill, func() { s.die(backends, len(backends)/2) })
	}
	if in.lag > 0 && in.gateways > 1 {
		ledger := peerstest.NewMemory()
		var all []*peers.Exchange
		for i, p := range s.pools {
			pools := map[string]*balance.Pool{"llm": p}
			all = append(all, peers.New(fmt.Sprint("gateway ", i), ledger, func() map[string]*balance.Pool { return pools }, s.clock, hclog.NewNullLogger()))
		}
		var exchange func()
		exchange = func() {
			for range 2 { // the first one of them hears what the last one tells only at its next beat
				for _, e := range all {
					if err := e.Beat(context.Background()); err != nil {
						panic(fmt.Sprintf("simulate: a ledger in memory fails: %v", err))
					}
				}
			}
			if left > 0 {
				s.after(in.lag, exchange)
			}
		}
		s.after(in.lag, exchange)
	}
	for len(s.pending) > 0 {
		e := heap.Pop(&s.pending).(event)
		s.clock.Advance(e.at - s.now)
		s.now = e.at
		e.what()
	}
	return s.result()
}

// arrive sends a request to the backend that its gateway chooses.
func (s *simulation) arrive(c *call, not map[string]bool) {
	ask := balance.Ask{Policy: s.policy, Not: not, Stream: !s.blind, Prompt: s.prompt(c.request)}
	c.lease = s.pools[c.gateway].Take(ask)
	if c.lease == nil {
		s.failed++
		return
	}
	if not == nil && c.turn > 0 {
		s.follow++
		if s.last[c.session] == c.lease.ID {
			s.stayed++
		}
	}
	s.last[c.session] = c.lease.ID
	c.engine = s.engines[c.lease.ID]
	if c.engine.dead {
		c.lease.Done(balance.Failed)
		s.again(c, not)
		return
	}
	c.engine.count++
	c.engine.queue = append(c.engine.queue, c)
	s.work(c.engine)
}

func (s *simulation) again(c *call, not map[string]bool) {
	tried := map[string]bool{c.lease.ID: true}
	for id := range not {
		tried[id] = true
	}
	s.arrive(c, tried)
}

// prompt is what the gateway would read out of the request's body.
func (s *simulation) prompt(r request) session.Prompt {
	p := session.Prompt{Tokens: r.input}
	if s.chains {
		for i, b := range r.blocks {
			p.Chain = append(p.Chain, session.Block{Hash: b, Tokens: (i + 1) * blockTokens})
		}
	}
	if !s.sessions {
		return p
	}
	levels := s.levels
	if levels == nil {
		levels = []int{session.LevelAnswered, session.LevelOpening}
	}
	for _, level := range levels {
		if level != session.LevelAnswered || r.turn > 0 {
			p.Keys[level] = session.Key(r.session*session.Levels + level + 1)
		}
	}
	return p
}

// work begins the next prompt of an engine that has none in work.
func (s *simulation) work(e *engine) {
	if e.working != nil || len(e.queue) == 0 {
		return
	}
	c := e.queue[0]
	e.queue, e.working = e.queue[1:], c
	hits := e.cache.use(c.blocks)
	s.blocks, s.hits = s.blocks+len(c.blocks), s.hits+hits
	if c.turn > 0 {
		s.following, s.followH = s.following+len(c.blocks), s.followH+hits
	}
	took := float64(c.input-hits*blockTokens) / e.rate
	s.after(time.Duration(took*float64(time.Second)), func() {
		if e.dead {
			return
		}
		e.working = nil
		c.lease.FirstByte()
		s.first = append(s.first, (s.now - c.arrived).Seconds())
		s.after(time.Duration(c.output)*decodeToken, func() { c.lease.Done(balance.Success) })
		s.work(e)
	})
}

// die ends a backend: what it has not begun to answer is tried elsewhere, and the registry says so three seconds later.
func (s *simulation) die(backends []balance.Backend, i int) {
	e := s.engines[backends[i].ID]
	e.dead = true
	lost := e.queue
	if e.working != nil {
		lost = append([]*call{e.working}, lost...)
	}
	for _, c := range lost {
		c.lease.Done(balance.Failed)
		s.again(c, nil)
	}
	s.after(3*time.Second, func() {
		for _, p := range s.pools {
			p.Set(slices.Delete(slices.Clone(backends), i, i+1))
		}
	})
}

func (s *simulation) result() result {
	slices.Sort(s.first)
	at := func(q float64) float64 { return s.first[min(len(s.first)-1, int(q*float64(len(s.first))))] }
	r := result{p50: at(0.5), p90: at(0.9), p99: at(0.99), failed: s.failed}
	r.hit, r.followHit = share(s.hits, s.blocks), share(s.followH, s.following)
	for _, t := range s.first {
		r.mean += t / float64(len(s.first))
	}
	total, most := 0, 0
	for _, e := range s.engines {
		total, most = total+e.count, max(most, e.count)
	}
	r.busiest = float64(most) * float64(len(s.engines)) / float64(total)
	r.stayed = share(s.stayed, s.follow)
	return r
}

func share(part, of int) float64 {
	if of == 0 {
		return 0
	}
	return float64(part) / float64(of)
}
