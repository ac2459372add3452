package limit

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/internal/store"
)

// passed is a request that went through.
type passed struct {
	at     time.Time
	tokens int64 // reserved, then used
	r      *Reservation
	by     *instance
}

// played is what went through until now.
type played struct {
	log, live []*passed
	spent     int64
}

func (p *played) pass(q *passed) {
	p.log, p.live = append(p.log, q), append(p.live, q)
	p.spent += q.tokens
}

// end ends the requests that the function tells.
func (p *played) end(ended func(*passed) bool) { p.live = slices.DeleteFunc(p.live, ended) }

// TestFleet_NeverOverTheLimit: instances come, are killed and come again, requests end in any way, exchanges happen or
// not, and in no minute is more let through than the limit, in no moment do more run, and in no month is more spent.
func TestFleet_NeverOverTheLimit(t *testing.T) {
	t.Parallel()
	for seed := range uint64(16) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			playFleet(t, seed)
		})
	}
}

func playFleet(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 7))
	requests, tokens, running, budget := 1+random.Int64N(200), 50+random.Int64N(5000), 1+random.Int64N(20), 1000+random.Int64N(30_000)
	f := newFleet(t, of(store.ScopeTenant, "research", store.Caps{
		RequestsPerMinute: &requests, TokensPerMinute: &tokens, Concurrency: &running, TokensPerMonth: &budget,
	}))
	gateways := make([]*instance, 1+random.IntN(5))
	for n := range gateways {
		gateways[n] = f.start()
	}
	p := &played{}
	for range 6_000 {
		f.clock.Advance(time.Duration(random.Int64N(int64(300 * time.Millisecond))))
		n := random.IntN(len(gateways))
		g := gateways[n]
		switch what := random.IntN(1000); {
		case what < 2: // killed
			p.end(func(q *passed) bool { return q.by == g })
			gateways[n] = f.start()
		case what < 300:
			g.Sync(t.Context())
		case what < 600:
			p.end(func(q *passed) bool {
				if q.by != g || random.IntN(2) == 0 {
					return false
				}
				p.spent -= q.tokens
				q.tokens = random.Int64N(q.tokens + 1)
				p.spent += q.tokens
				q.r.Settle(used(q.tokens, 0))
				return true
			})
		default:
			r, _ := g.reserve(ann(random.Int64N(20), random.Int64N(30)))
			if r == nil {
				continue
			}
			p.pass(&passed{f.clock.Now(), r.need[Tokens], r, g})
			p.check(t, f.clock.Now(), requests, tokens, running, budget)
		}
		if t.Failed() {
			return
		}
	}
	if int64(len(p.log)) < min(requests, running) {
		t.Errorf("only %d requests went through, with %d a minute", len(p.log), requests)
	}
}

func (p *played) check(t *testing.T, now time.Time, requests, tokens, running, budget int64) {
	t.Helper()
	var minute, minuteTokens int64
	for _, q := range slices.Backward(p.log) {
		if now.Sub(q.at) >= time.Minute {
			break
		}
		minute++
		minuteTokens += q.tokens
	}
	if live := int64(len(p.live)); minute > requests || minuteTokens > tokens || live > running || p.spent > budget {
		t.Errorf("%d of %d requests and %d of %d tokens in a minute, %d of %d at once, %d of %d tokens in the month", minute, requests, minuteTokens, tokens, live, running, p.spent, budget)
	}
}

// TestFleet_TheDeadLoseNoMoreThanTheyHeld: after an instance is killed, the others have all of the limit but that.
func TestFleet_TheDeadLoseNoMoreThanTheyHeld(t *testing.T) {
	t.Parallel()
	f := newFleet(t, of(store.ScopeKey, "k1", store.Caps{RequestsPerMinute: ptr[int64](100), Concurrency: ptr[int64](10), TokensPerMonth: ptr[int64](10_000)}))
	dead, lives := f.start(), f.start()
	for range 5 {
		dead.reserve(ann(1, 9))
		f.clock.Advance(syncEvery)
		dead.Sync(t.Context())
	}
	_, s := f.store.state("key k1")
	held := s.Holds[dead.instanceName()].Of
	if held[Concurrency] < 5 {
		t.Fatalf("it holds %v", held)
	}
	f.clock.Advance(holdFor + time.Second)
	through := int64(0)
	for range 200 {
		if r, _ := lives.reserve(ann(1, 9)); r != nil {
			through++
			r.Settle(used(1, 9))
		}
	}
	if want := 100 - 5 - held[Requests]; through != want {
		t.Errorf("%d went through, want %d: it held %v", through, want, held)
	}
	f.clock.Advance(2 * time.Minute)
	through = 0
	for range 2000 {
		if r, _ := lives.reserve(ann(1, 9)); r != nil {
			through++
			r.Settle(used(1, 9))
		}
		f.clock.Advance(time.Second)
	}
	got, _ := f.store.state("key k1")
	if lost := 10_000 - got.Tokens; lost < 0 || lost >= 10+held[MonthTokens] {
		t.Errorf("%d of the budget are out of reach", lost)
	}
}

func (i *instance) instanceName() string { return i.Limiter.instance }

// TestFleet_WhoComesBackLosesNothing: one that was cut off for longer than its hold counts as having used it, until it
// tells what it used indeed.
func TestFleet_WhoComesBackLosesNothing(t *testing.T) {
	t.Parallel()
	f := newFleet(t, of(store.ScopeKey, "k1", store.Caps{RequestsPerMinute: ptr[int64](1000), TokensPerMonth: ptr[int64](100_000)}))
	slow, other := f.start(), f.start()
	for range 20 {
		for _, g := range []*instance{slow, other} {
			r, _ := g.reserve(ann(5, 5))
			r.Settle(used(5, 5))
		}
		f.clock.Advance(syncEvery)
		slow.Sync(t.Context())
		other.Sync(t.Context())
	}
	r, _ := slow.reserve(ann(5, 5)) // of what it holds; nobody is told
	r.Settle(used(5, 5))
	f.clock.Advance(holdFor + time.Second)
	r, _ = other.reserve(ann(5, 5))
	r.Settle(used(5, 5))
	if got, _ := f.store.state("key k1"); got.Tokens <= 42*10 {
		t.Fatalf("the hold of one that is not heard of is not counted: %d", got.Tokens)
	}
	f.rest(slow, other)
	if got, _ := f.store.state("key k1"); got.Tokens != 42*10 {
		t.Errorf("%d tokens are counted, 420 were used", got.Tokens)
	}
}
