package simulate

import (
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/gateway/balance"
	"github.com/heteroflow/heteroflow/gateway/session"
)

// full says that whole traces are run and their figures held; else eight minutes of each are, with looser ones.
var full = os.Getenv("HETEROFLOW_GATEWAY_SIM") == "full"

const header = "                                    hit  follow |   mean    p50    p90    p99 s | busiest | stayed"

// part is a trace, or its beginning in the short form.
func part(t *testing.T, name string) []request {
	list := trace(t, name)
	if !full {
		n := 0
		for n < len(list) && list[n].at < 8*time.Minute {
			n++
		}
		list = list[:n]
	}
	return list
}

// either is a limit of the whole trace or of its beginning, in which caches are cold.
func either(whole, short float64) float64 {
	if full {
		return whole
	}
	return short
}

func show(t *testing.T, name string, r result) {
	t.Helper()
	t.Logf("%-34s %v", name, r)
}

func atMost(t *testing.T, what string, got, limit float64) {
	t.Helper()
	if !(got <= limit) {
		t.Errorf("%s: %.3f, at most %.3f", what, got, limit)
	}
}

func atLeast(t *testing.T, what string, got, limit float64) {
	t.Helper()
	if !(got >= limit) {
		t.Errorf("%s: %.3f, at least %.3f", what, got, limit)
	}
}

// TestPolicies: 8 backends of 7,000 tokens/s with a cache of a million tokens each.
func TestPolicies(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"conversation", "synthetic"} {
		requests := part(t, name)
		t.Logf("%s, %d requests\n%s", name, len(requests), header)
		of := map[balance.Policy]result{}
		for _, p := range balance.Policies() {
			of[p] = run(requests, usual(p))
			show(t, string(p), of[p])
			if of[p].failed > 0 {
				t.Errorf("%s: %d requests failed", p, of[p].failed)
			}
		}
		turn, ours := of[balance.RoundRobin], of[balance.LeastTokens]
		atMost(t, "round robin, busiest over mean", turn.busiest, 1.01)
		atLeast(t, name+": hit share over round robin's", ours.hit/turn.hit, either(3.1, 2.5))
		atMost(t, name+": mean time to first token over round robin's", ours.mean/turn.mean, 0.45)
		if name == "conversation" {
			atLeast(t, "conversation: hit share of follow-ups", ours.followHit, either(0.59, 0.59))
			atMost(t, "conversation: busiest over mean", ours.busiest, either(1.05, 1.1))
		} else {
			atLeast(t, "synthetic: hit share of follow-ups", ours.followHit, either(0.82, 0.78))
		}
		atMost(t, name+": prefix_cost, mean time to first token over round robin's", of[balance.PrefixCost].mean/turn.mean, 0.45)
	}
}

// TestGateways: three gateways behind a round robin, that tell one another what they know after a while.
func TestGateways(t *testing.T) {
	t.Parallel()
	requests := part(t, "conversation")
	one := run(requests, usual(balance.LeastTokens))
	t.Log("\n" + header)
	show(t, "one gateway", one)
	s := usual(balance.LeastTokens)
	s.gateways = 3
	alone := run(requests, s)
	show(t, "three that know nothing", alone)
	atMost(t, "what three gateways keep that know nothing", alone.hit/one.hit, 0.8)
	for _, lag := range []time.Duration{100 * time.Millisecond, time.Second, 30 * time.Second} {
		s.lag = lag
		r := run(requests, s)
		show(t, "three, after "+lag.String(), r)
		atLeast(t, "hit share that three gateways keep, after "+lag.String(), r.hit/one.hit, either(0.97, 0.88))
	}
}

// TestFleets: cards of several speeds. Without the first byte of streams nothing measures how fast a backend is.
func TestFleets(t *testing.T) {
	t.Parallel()
	requests := part(t, "conversation")
	t.Log("\n" + header)
	for _, fleet := range []struct {
		name  string
		rates []float64
		limit float64 // of the p90 with rates over that without
	}{
		{"4 of 2,000, 4 of 14,000", []float64{2000, 2000, 2000, 2000, 14000, 14000, 14000, 14000}, 0.6},
		{"2,000 to 14,000", []float64{2000, 3500, 5000, 6500, 8000, 9500, 11000, 14000}, 0.85},
		{"one of half the rate", []float64{3500, 7000, 7000, 7000, 7000, 7000, 7000, 7000}, 1.02},
	} {
		s := usual(balance.LeastTokens)
		s.rates = fleet.rates
		measured := run(requests, s)
		s.blind = true
		blind := run(requests, s)
		show(t, fleet.name, measured)
		show(t, "  rates not measured", blind)
		atMost(t, fleet.name+": p90 with rates over that without", measured.p90/blind.p90, fleet.limit)
	}
}

// TestKilled: one of eight backends dies at half time.
func TestKilled(t *testing.T) {
	t.Parallel()
	requests := part(t, "conversation")
	t.Log("\n" + header)
	for _, p := range []balance.Policy{balance.LeastTokens, balance.PrefixCost, balance.RoundRobin} {
		s := usual(p)
		s.kill = requests[len(requests)-1].at / 2
		r := run(requests, s)
		show(t, string(p), r)
		if r.failed > 0 {
			t.Errorf("%s: %d requests found no backend", p, r.failed)
		}
		if p == balance.LeastTokens {
			atMost(t, "p99 with a backend killed", r.p99, 20)
			atLeast(t, "hit share of follow-ups with a backend killed", r.followHit, 0.55)
		}
	}
}

// TestAblations keeps the rest honest: what must not help does not, and what must not hurt does not.
func TestAblations(t *testing.T) {
	t.Parallel()
	requests := part(t, "conversation")
	t.Log("\n" + header)
	hashed := run(requests, usual(balance.LeastTokens))
	show(t, "hashed levels alone", hashed)
	s := usual(balance.LeastTokens)
	s.levels = []int{session.LevelHeader}
	named := run(requests, s)
	show(t, "X-Session-Id alone", named)
	atLeast(t, "hits by hashed levels over those by names", hashed.hit/named.hit, 0.99)
	s = usual(balance.LeastTokens)
	s.chains = false
	show(t, "sessions without prefixes", run(requests, s))
	s.chains, s.sessions = true, false
	show(t, "prefixes without sessions", run(requests, s))

	// In another order the turns of a session are strewn over the hour.
	shuffled := append([]request(nil), requests...)
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(shuffled), func(i, j int) { //nolint:gosec // a test's order
		shuffled[i], shuffled[j] = shuffled[j], shuffled[i]
		shuffled[i].at, shuffled[j].at = shuffled[j].at, shuffled[i].at
	})
	with := run(shuffled, usual(balance.LeastTokens))
	show(t, "in shuffled order", with)
	if full {
		atMost(t, "hits in shuffled order over those in order", with.hit/hashed.hit, 0.6)
	}

	// Prompts that share nothing: affinity must cost nothing.
	unique := append([]request(nil), requests...)
	next := uint64(1 << 40)
	for i := range unique {
		unique[i].session, unique[i].turn = i, 0
		unique[i].blocks = make([]uint64, len(unique[i].blocks))
		for j := range unique[i].blocks {
			unique[i].blocks[j] = next
			next++
		}
	}
	affine := run(unique, usual(balance.LeastTokens))
	s = usual(balance.LeastTokens)
	s.sessions, s.chains = false, false
	plain := run(unique, s)
	show(t, "unique prompts", affine)
	show(t, "  by outstanding tokens alone", plain)
	atMost(t, "unique prompts: mean time to first token over that without affinity", affine.mean/plain.mean, 1.02)

	// One long system prompt for all: no backend may become the one that has it.
	shared := append([]request(nil), unique...)
	for i := range shared {
		blocks := append([]uint64(nil), shared[i].blocks...)
		for j := range min(8, len(blocks)) {
			blocks[j] = uint64(j + 1)
		}
		shared[i].blocks = blocks
	}
	hot := run(shared, usual(balance.LeastTokens))
	show(t, "one system prompt for all", hot)
	atMost(t, "one system prompt for all: busiest over mean", hot.busiest, 1.15)
}

// TestGrid: other numbers of backends, sizes of caches (which the gateway does not know) and speeds of arrival.
func TestGrid(t *testing.T) {
	t.Parallel()
	if !full {
		t.Skip("make gateway-sim runs the grid")
	}
	requests := part(t, "conversation")
	t.Log("\n" + header)
	for _, backends := range []int{4, 16} {
		s := usual(balance.LeastTokens)
		s.rates = make([]float64, backends)
		for i := range s.rates {
			s.rates[i] = 8 * prefillRate / float64(backends)
		}
		r := run(requests, s)
		s.policy = balance.RoundRobin
		turn := run(requests, s)
		show(t, "backends: "+[]string{4: "4", 16: "16"}[backends], r)
		atMost(t, "mean over round robin's", r.mean/turn.mean, 0.6)
	}
	for _, cache := range []int{300_000, 3_000_000} {
		s := usual(balance.LeastTokens)
		s.cache = cache
		r := run(requests, s)
		s.policy = balance.RoundRobin
		turn := run(requests, s)
		show(t, map[int]string{300_000: "cache of 0.3 M tokens", 3_000_000: "cache of 3 M tokens"}[cache], r)
		atMost(t, "mean over round robin's", r.mean/turn.mean, 0.6)
	}
	for _, speed := range []float64{0.8, 1.3} {
		s := usual(balance.LeastTokens)
		s.speed = speed
		r := run(requests, s)
		s.policy = balance.RoundRobin
		turn := run(requests, s)
		show(t, map[float64]string{0.8: "0.8 of the arrivals", 1.3: "1.3 of the arrivals"}[speed], r)
		atMost(t, "mean over round robin's", r.mean/turn.mean, 0.6)
	}
}
