package balance

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/gateway/session"
)

// Policy is the way in which a backend is chosen.
type Policy string

const (
	// RoundRobin takes backends in turn, exactly, also while the list of backends is refreshed.
	RoundRobin Policy = "round_robin"
	// Random takes any backend.
	Random Policy = "random"
	// LeastConnections takes the backend with the fewest requests in flight.
	LeastConnections Policy = "least_connections"
	// LeastTokens keeps a session on its backend, and gives a new one to that which will have the fewest prompt tokens to
	// work off, without those that its cache probably holds; in seconds where backends differ in speed.
	LeastTokens Policy = "least_tokens"
	// PrefixCost does for every request what LeastTokens does for a new session.
	PrefixCost Policy = "prefix_cost"
)

// DefaultPolicy is meant where none is named.
const DefaultPolicy = LeastTokens

// rule is one policy. Of usable backends the one with the least cost is taken, equals in turn; without a cost they
// are taken in turn.
type rule struct {
	name Policy
	cost func(m *member, a *Ask, now time.Time) float64
	// levels up to here keep a session on its backend: the client's own names for it under each policy, what is guessed
	// from the request only where the policy is made for it.
	levels int
	// byCache says that the cost is low where a cache holds the prompt, which may be one backend for all.
	byCache bool
}

// rules are listed as users read them.
var rules = []rule{
	{LeastTokens, tokensCost, session.Levels, true},
	{PrefixCost, prefixCost, session.LevelCacheKey + 1, true},
	{LeastConnections, connectionsCost, session.LevelCacheKey + 1, false},
	{RoundRobin, nil, session.LevelCacheKey + 1, false},
	{Random, randomCost, session.LevelCacheKey + 1, false},
}

// Policies lists the policies, the default first.
func Policies() []Policy {
	var names []Policy
	for _, r := range rules {
		names = append(names, r.name)
	}
	return names
}

// ParsePolicy reads a policy; empty is the default.
func ParsePolicy(s string) (Policy, error) {
	if s == "" {
		return DefaultPolicy, nil
	}
	names := Policies()
	if slices.Contains(names, Policy(s)) {
		return Policy(s), nil
	}
	var list []string
	for _, n := range names {
		list = append(list, string(n))
	}
	last := len(list) - 1
	return "", fmt.Errorf("unknown policy %q: write %s or %s", s, strings.Join(list[:last], ", "), list[last])
}

func ruleOf(p Policy) rule {
	for _, r := range rules {
		if r.name == p {
			return r
		}
	}
	return rules[0]
}

func connectionsCost(m *member, _ *Ask, now time.Time) float64 {
	return float64(m.running()+1) / m.breaker.share(now)
}

// tokensCost is when the prompt will have been worked off: what is outstanding there, and of its own what the cache
// does not hold.
func tokensCost(m *member, a *Ask, now time.Time) float64 {
	return m.work(m.outstanding()+m.uncached(a), now)
}

// perRunning is what one running answer costs, in prompt tokens: a little, so that it decides between equals.
const perRunning = 32

func prefixCost(m *member, a *Ask, now time.Time) float64 {
	return m.work(m.outstanding()+m.uncached(a)+perRunning*m.running(), now)
}

// randomCost draws so that a backend with half a share wins half as often: the least of exponential times.
func randomCost(m *member, _ *Ask, now time.Time) float64 {
	return -math.Log(1-rand.Float64()) / m.breaker.share(now) //nolint:gosec // nothing secret is drawn
}

// A session leaves its backend for one that would have worked off its prompt earlier by more than the time of so many
// tokens. That is late: to leave costs the fleet what the cache saves, now and for every session that the work delays.
// Found in gateway/simulate: a quarter of the prompt alone costs a fifth of the hits and gains nothing.
const (
	stayPrompts = 8
	stayTokens  = 20_000
)

// margin is how much earlier another backend must be. The field user holds together conversations that share little, so
// it keeps one only where nothing else decides.
func margin(level int, a *Ask) float64 {
	if level == session.LevelUser {
		return float64(a.Prompt.Tokens) / 4
	}
	return float64(stayPrompts*a.Prompt.Tokens + stayTokens)
}

const (
	crowdSigmas = 3
	crowdFloor  = 16
)

// crowd is how many requests the usable backends have: their number, sum and sum of squares.
type crowd struct{ n, sum, squares float64 }

func (p *Pool) crowd(c *choice) (all crowd) {
	for _, m := range p.members {
		if c.usable(m) {
			r := float64(m.running())
			all = crowd{all.n + 1, all.sum + r, all.squares + r*r}
		}
	}
	return all
}

// has reports whether a backend has far more requests than the others, by their mean and spread: the guard against one
// hot session or prefix, whose answers cost no prompt tokens.
func (c *crowd) has(m *member) bool {
	if c.n < 2 {
		return false
	}
	r := float64(m.running())
	mean := (c.sum - r) / (c.n - 1) // of the others
	// Requests come at random, so that a spread below the root of the mean is chance; one above the mean comes from a
	// second crowded backend, which must not excuse the first.
	sigma := math.Sqrt(max((c.squares-r*r)/(c.n-1)-mean*mean, mean))
	return r >= mean+min(crowdSigmas*sigma, mean)+crowdFloor
}
