package limit

import (
	"fmt"
	"math/rand/v2"
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
	ended  bool
}

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
	var log []*passed
	for range 6_000 {
		f.clock.Advance(time.Duration(random.Int64N(int64(300 * time.Millisecond))))
		n := random.IntN(len(gateways))
		g := gateways[n]
		switch what := random.IntN(1000); {
		case what < 2: // killed
			for _, p := range log {
				p.ended = p.ended || p.by == g
			}
			gateways[n] = f.start()
		case what < 300:
			g.Sync(t.Context())
		case what < 600:
			for _, p := range log {
				if !p.ended && p.by == g && random.IntN(2) == 0 {
					p.ended = true
					p.tokens = random.Int64N(p.tokens + 1)
					p.r.Settle(used(p.tokens, 0))
				}
			}
		default:
			r, _ := g.reserve(ann(random.Int64N(20), random.Int64N(30)))
			if r == nil {
				continue
			}
			log = append(log, &passed{f.clock.Now(), r.need[Tokens], r, g, false})
			check(t, log, f.clock.Now(), requests, tokens, running, budget)
		}
		if t.Failed() {
			return
		}
	}
	if int64(len(log)) < min(requests, running) {
		t.Errorf("only %d requests went through, with %d a minute", len(log), requests)
	}
}

func check(t *testing.T, log []*passed, now time.Time, requests, tokens, running, budget int64) {
	t.Helper()
	var minute, minuteTokens, live, spent int64
	for _, p := range log {
		spent += p.tokens
		if !p.ended {
			live++
		}
		if now.Sub(p.at) < time.Minute {
			minute++
			minuteTokens += p.tokens
		}
	}
	if minute > requests || minuteTokens > tokens || live > running || spent > budget {
		t.Errorf("%d of %d requests and %d of %d tokens in a minute, %d of %d at once, %d of %d tokens in the month", minute, requests, minuteTokens, tokens, live, running, spent, budget)
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
