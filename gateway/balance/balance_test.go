package balance

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/gateway/session"
	"github.com/heteroflow/heteroflow/internal/clock"
)

func backends(n int) []Backend {
	var list []Backend
	for i := range n {
		list = append(list, Backend{ID: fmt.Sprintf("b%02d", i), Addr: fmt.Sprintf("127.0.0.1:%d", 9000+i)})
	}
	return list
}

func newPool(n int) (*Pool, *clock.Fake) {
	now := clock.NewFake(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	p := NewPool(now)
	p.Set(backends(n))
	return p, now
}

// prompt is a request of a session with so many tokens, of which a later one of the same session begins with the same.
func prompt(id, tokens int) session.Prompt {
	p := session.Prompt{Keys: session.Keys{session.LevelHeader: session.Key(id)}, Tokens: tokens}
	for end := 500; end <= tokens; end += 500 {
		p.Chain = append(p.Chain, session.Block{Hash: uint64(id)<<32 + uint64(end), Tokens: end})
	}
	return p
}

func TestPW01_RoundRobinIsExactWhileTheListIsRefreshed(t *testing.T) {
	t.Parallel()
	p, _ := newPool(2)
	counts := map[string]int{}
	for i := range 1000 {
		if i%7 == 0 {
			list := backends(2)
			list[0], list[1] = list[1], list[0] // discovery gives no order
			p.Set(list)
		}
		l := p.Take(Ask{Policy: RoundRobin})
		counts[l.ID]++
		l.Done(Success)
	}
	if counts["b00"] != 500 || counts["b01"] != 500 {
		t.Errorf("want 500 each, got %v", counts)
	}
}

// Over any time in which a set of backends stays, none of them gets two requests more than another, whatever comes
// and goes beside them.
func TestRoundRobin_ExactBesideOthers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p, _ := newPool(3)
		counts := map[string]int{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "change") {
				p.Set(append(backends(3), backends(8)[3:3+rapid.IntRange(0, 5).Draw(t, "others")]...))
			}
			l := p.Take(Ask{Policy: RoundRobin})
			counts[l.ID]++
			l.Done(Success)
			a, b, c := counts["b00"], counts["b01"], counts["b02"]
			if max(a, b, c)-min(a, b, c) > 1 {
				t.Fatalf("%v", counts)
			}
		}
	})
}

func TestTake_BurstSpreads(t *testing.T) {
	t.Parallel()
	for _, policy := range []Policy{RoundRobin, LeastConnections, LeastTokens, PrefixCost} {
		p, _ := newPool(4)
		taken := map[string]int{}
		for range 100 {
			taken[p.Take(Ask{Policy: policy, Prompt: session.Prompt{Tokens: 1000}}).ID]++
		}
		for _, b := range backends(4) {
			if n := taken[b.ID]; n != 25 {
				t.Errorf("%s: %s has %d in flight, want 25", policy, b.ID, n)
			}
		}
	}
	p, _ := newPool(16)
	taken := map[string]int{}
	for range 16_000 {
		taken[p.Take(Ask{Policy: Random}).ID]++
	}
	for id, n := range taken {
		if n < 800 || n > 1200 {
			t.Errorf("random: %s has %d of 16,000, want about 1,000", id, n)
		}
	}
	if len(taken) != 16 {
		t.Errorf("random: %d of 16 backends were taken", len(taken))
	}
}

func TestLeastTokens_CountsPromptsAndNotRequests(t *testing.T) {
	t.Parallel()
	p, _ := newPool(2)
	long := p.Take(Ask{Policy: LeastTokens, Prompt: session.Prompt{Tokens: 50_000}, Stream: true})
	for range 5 {
		if l := p.Take(Ask{Policy: LeastTokens, Prompt: session.Prompt{Tokens: 1000}, Stream: true}); l.ID == long.ID {
			t.Fatal("a short prompt waits behind a long one although another backend is free")
		}
	}
	long.FirstByte()
	if l := p.Take(Ask{Policy: LeastTokens, Prompt: session.Prompt{Tokens: 1000}, Stream: true}); l.ID != long.ID {
		t.Error("after its first byte a prompt must not count")
	}
}

func TestSession_StaysUnderEveryPolicyWhenNamed(t *testing.T) {
	t.Parallel()
	for _, policy := range Policies() {
		p, _ := newPool(4)
		first := p.Take(Ask{Policy: policy, Prompt: prompt(7, 1000)})
		first.Done(Success)
		for i := range 5 {
			p.Take(Ask{Policy: policy, Prompt: prompt(100+i, 500)}).Done(Success)
			l := p.Take(Ask{Policy: policy, Prompt: prompt(7, 1000)})
			if l.ID != first.ID || l.Route != "session_id" {
				t.Errorf("%s: the session went from %s to %s by %s", policy, first.ID, l.ID, l.Route)
			}
			l.Done(Success)
		}
	}
	// What is only guessed keeps a session with the policy that is made for it alone.
	for _, policy := range Policies() {
		p, _ := newPool(4)
		seen := map[string]bool{}
		for range 8 {
			l := p.Take(Ask{Policy: policy, Prompt: session.Prompt{Keys: session.Keys{session.LevelUser: 1, session.LevelOpening: 2}, Tokens: 10}})
			seen[l.ID] = true
			l.Done(Success)
		}
		if policy == LeastTokens && len(seen) != 1 || policy != LeastTokens && policy != Random && len(seen) != 4 {
			t.Errorf("%s: equal requests without a session's name went to %v", policy, seen)
		}
	}
}

// A session leaves only for much: not for connections, not for a little waiting, but for a queue that is long.
func TestSession_LeaveRule(t *testing.T) {
	t.Parallel()
	p, _ := newPool(2)
	first := p.Take(Ask{Policy: LeastTokens, Prompt: prompt(1, 10_000), Stream: true})
	first.FirstByte()
	turn := func() *Lease {
		l := p.Take(Ask{Policy: LeastTokens, Prompt: prompt(1, 10_000), Stream: true})
		l.FirstByte()
		l.Done(Success)
		return l
	}
	for range 10 { // running answers there
		p.Take(Ask{Policy: LeastTokens, Not: map[string]bool{"b01": true}, Prompt: prompt(1, 1000), Stream: true}).FirstByte()
	}
	if l := turn(); l.ID != first.ID {
		t.Errorf("left for connections")
	}
	p.Take(Ask{Not: map[string]bool{"b01": true}, Prompt: session.Prompt{Tokens: 80_000}, Stream: true})
	if l := turn(); l.ID != first.ID {
		t.Errorf("left for less than it is worth")
	}
	p.Take(Ask{Not: map[string]bool{"b01": true}, Prompt: session.Prompt{Tokens: 80_000}, Stream: true})
	if l := turn(); l.ID == first.ID || l.Route != "least_tokens" {
		t.Errorf("stayed behind 160,000 tokens")
	}
	if l := turn(); l.ID == first.ID || l.Route != "session_id" {
		t.Errorf("did not stay where it went: %s by %s", l.ID, l.Route)
	}
}

// One session with very many answers at once is spread by the guard, since their prompts are all in the cache.
func TestSession_OneHotSessionSpreads(t *testing.T) {
	t.Parallel()
	p, _ := newPool(4)
	counts := map[string]int{}
	for range 400 {
		l := p.Take(Ask{Policy: LeastTokens, Prompt: prompt(1, 500), Stream: true})
		l.FirstByte()
		counts[l.ID]++
	}
	for id, n := range counts {
		if n > 180 {
			t.Errorf("%s has %d of 400 running answers: %v", id, n, counts)
		}
	}
	if len(counts) < 3 {
		t.Errorf("only %v were used", counts)
	}
}

func TestPrefixCost_OneHotPrefixSpreads(t *testing.T) {
	t.Parallel()
	p, _ := newPool(4)
	counts := map[string]int{}
	for range 400 {
		hot := prompt(1, 4000)
		hot.Keys = session.Keys{}
		l := p.Take(Ask{Policy: PrefixCost, Prompt: hot, Stream: true})
		l.FirstByte()
		counts[l.ID]++
	}
	for id, n := range counts {
		if n > 180 {
			t.Errorf("%s has %d of 400 running answers: %v", id, n, counts)
		}
	}
}

// Four heavy users on two backends: many conversations each, at once.
func TestSession_HeavyUsersSpread(t *testing.T) {
	t.Parallel()
	p, now := newPool(2)
	ideal, cached := 0, 0
	work := map[string]int{}
	for turn := 1; turn <= 6; turn++ {
		for conversation := range 40 {
			ask := Ask{Policy: LeastTokens, Prompt: prompt(1000+conversation, turn*2000), Stream: true}
			ask.Prompt.Keys = session.Keys{session.LevelUser: session.Key(1 + conversation%4), session.LevelOpening: session.Key(100 + conversation)}
			if turn > 1 {
				ask.Prompt.Keys[session.LevelAnswered] = session.Key(200 + conversation)
			}
			l := p.Take(ask)
			work[l.ID] += l.tokens
			ideal += (turn - 1) * 2000
			cached += turn*2000 - l.tokens
			now.Advance(time.Duration(l.ahead) * time.Second / 14_000)
			l.FirstByte()
			l.Done(Success)
		}
	}
	if busiest := 2 * float64(max(work["b00"], work["b01"])) / float64(work["b00"]+work["b01"]); busiest > 1.3 {
		t.Errorf("busiest over mean is %.2f: %v", busiest, work)
	}
	if share := float64(cached) / float64(ideal); share < 0.8 {
		t.Errorf("hits are %.2f of the ideal", share)
	}
}

func TestPW15_GoneBackendFreesItsSessionsAndNoOthers(t *testing.T) {
	t.Parallel()
	p, _ := newPool(4)
	where := map[int]string{}
	for id := 1; id <= 400; id++ {
		l := p.Take(Ask{Policy: LeastTokens, Prompt: prompt(id, 500), Stream: true})
		where[id] = l.ID
		l.FirstByte()
		l.Done(Success)
	}
	p.Set(backends(4)[1:])
	for id := 1; id <= 400; id++ {
		l := p.Take(Ask{Policy: LeastTokens, Prompt: prompt(id, 500), Stream: true})
		if l == nil || l.ID == "b00" || where[id] != "b00" && l.ID != where[id] {
			t.Fatalf("session %d went from %s to %+v", id, where[id], l)
		}
		l.FirstByte()
		l.Done(Success)
	}
	p.Set(backends(4)) // back: what left does not come back
	for id := 1; id <= 400; id++ {
		l := p.Take(Ask{Policy: LeastTokens, Prompt: prompt(id, 500), Stream: true})
		if l.ID == "b00" {
			t.Fatalf("session %d went back to a backend that had died", id)
		}
		l.FirstByte()
		l.Done(Success)
	}
	moved := backends(4)
	moved[1].Addr = "127.0.0.1:1"
	p.Set(moved)
	if _, ok := p.pins.Find(session.Keys{session.LevelHeader: session.Key(keyOn(where, "b01"))}, p.clock.Now()); ok {
		t.Error("a pin outlived a restart at another address")
	}
}

func keyOn(where map[int]string, id string) int {
	for k, there := range where {
		if there == id {
			return k
		}
	}
	return 0
}

// A request that got no answer leaves no pin and no prefix; one that was refused before Take never had any.
func TestDone_UnsentRequestLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]Outcome{"failed": Failed, "busy": Busy(time.Second)} {
		p, _ := newPool(2)
		l := p.Take(Ask{Policy: LeastTokens, Prompt: prompt(1, 5000), Stream: true})
		m := l.m
		l.Done(end)
		if p.pins.Len() != 0 || m.cache.Tokens() != 0 || m.tokens != 0 {
			t.Errorf("%s: %d pins, %d tokens of prefixes, %d outstanding", name, p.pins.Len(), m.cache.Tokens(), m.tokens)
		}
		next := p.Take(Ask{Policy: LeastTokens, Not: map[string]bool{l.ID: true}, Prompt: prompt(1, 5000), Stream: true})
		next.FirstByte()
		next.Done(Success)
		if again := p.Take(Ask{Policy: LeastTokens, Prompt: prompt(1, 5000), Stream: true}); again.ID != next.ID {
			t.Errorf("%s: the session was not pinned to where it was answered", name)
		}
	}
}

func TestLeastTokens_ShareFallsWithSpeed(t *testing.T) {
	t.Parallel()
	p, now := newPool(4)
	type running struct {
		*Lease
		end time.Time
	}
	busyUntil, queue, counts := map[string]time.Time{}, []running{}, map[string]int{}
	rates := map[string]int{"b00": 700, "b01": 7000, "b02": 7000, "b03": 7000}
	for i := range 2000 { // unique prompts, one backend of a tenth of the rate, three quarters of what all can do
		l := p.Take(Ask{Policy: LeastTokens, Prompt: session.Prompt{Tokens: 1000 + 7*(i%100)}, Stream: true})
		counts[l.ID]++
		begin := now.Now()
		if b := busyUntil[l.ID]; b.After(begin) {
			begin = b
		}
		busyUntil[l.ID] = begin.Add(time.Duration(l.tokens) * time.Second / time.Duration(rates[l.ID]))
		queue = append(queue, running{l, busyUntil[l.ID]})
		now.Advance(85 * time.Millisecond)
		kept := queue[:0]
		for _, r := range queue {
			if r.end.After(now.Now()) {
				kept = append(kept, r)
				continue
			}
			r.FirstByte()
			r.Done(Success)
		}
		queue = kept
	}
	if counts["b00"] > 2000*15/100 {
		t.Errorf("the slow backend got %d of 2,000: %v", counts["b00"], counts)
	}
	for _, s := range p.Status() {
		want := float64(rates[s.ID])
		if s.TokensPerSecond < 0.8*want || s.TokensPerSecond > 1.2*want {
			t.Errorf("%s: measured %.0f tokens/s, is %.0f", s.ID, s.TokensPerSecond, want)
		}
	}
}

// Where no first byte tells, a prompt counts for as long as it takes at the measured rate.
func TestTake_WholeAnswersAreWorkedOffByRate(t *testing.T) {
	t.Parallel()
	p, now := newPool(1)
	for range rateSamples {
		l := p.Take(Ask{Prompt: session.Prompt{Tokens: 1000}, Stream: true})
		now.Advance(time.Second)
		l.FirstByte()
		l.Done(Success)
	}
	l := p.Take(Ask{Prompt: session.Prompt{Tokens: 3000}})
	now.Advance(2 * time.Second)
	p.Take(Ask{}).Done(Neutral)
	if got := p.Status()[0].Outstanding; got != 3000 {
		t.Errorf("%d tokens outstanding after two seconds of three, want 3000", got)
	}
	now.Advance(time.Second)
	p.Take(Ask{}).Done(Neutral)
	if got := p.Status()[0]; got.Outstanding != 0 || got.InFlight != 1 {
		t.Errorf("after three seconds: %+v", got)
	}
	l.Done(Success)
	l.Done(Success)
	l.FirstByte()
	if got := p.Status()[0]; got.Outstanding != 0 || got.InFlight != 0 {
		t.Errorf("after its end: %+v", got)
	}
}

// 300 sessions of 5 turns over three gateways behind a round robin.
func TestExchange_SessionsStayAcrossGateways(t *testing.T) {
	t.Parallel()
	now := clock.NewFake(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	var pools [3]*Pool
	var marks [3]uint64
	for i := range pools {
		pools[i] = NewPool(now)
		pools[i].Set(backends(8))
	}
	last := map[int]string{}
	stayed, n := 0, 0
	for turn := 1; turn <= 5; turn++ {
		for id := 1; id <= 300; id++ {
			l := pools[n%3].Take(Ask{Policy: LeastTokens, Prompt: prompt(id, 500*turn), Stream: true})
			n++
			if last[id] == l.ID {
				stayed++
			}
			last[id] = l.ID
			now.Advance(10 * time.Millisecond)
			l.FirstByte()
			l.Done(Success)
		}
		for i, p := range pools {
			var c Changes
			c, marks[i] = p.Changes(marks[i])
			for j, other := range pools {
				if i != j {
					other.MergeLoads(fmt.Sprint(i), c.Loads)
					other.MergePins(c.Pins, 0)
				}
			}
		}
	}
	if share := float64(stayed) / 1200; share < 0.97 {
		t.Errorf("%.1f %% of follow-ups stayed, want 97 %%", 100*share)
	}
}

func TestExchange_LoadsCountUntilTheyAreOld(t *testing.T) {
	t.Parallel()
	p, now := newPool(2)
	p.MergeLoads("other", map[string]Load{"b00": {Requests: 10, Tokens: 9000}, "gone": {Requests: 1}})
	for _, policy := range []Policy{LeastTokens, LeastConnections} {
		for range 3 {
			if l := p.Take(Ask{Policy: policy, Prompt: session.Prompt{Tokens: 10}}); l.ID != "b01" {
				t.Errorf("%s: went where another gateway has more", policy)
			}
		}
	}
	now.Advance(instanceTime)
	if l := p.Take(Ask{Policy: LeastTokens, Prompt: session.Prompt{Tokens: 10}}); l.ID != "b00" {
		t.Error("loads of a gateway that told nothing for long still count")
	}
	mine, _ := p.Changes(0)
	if mine.Loads["b01"].Requests != 6 || mine.Loads["b01"].Tokens != 60 {
		t.Errorf("told %+v", mine.Loads)
	}
}

func TestParsePolicy(t *testing.T) {
	t.Parallel()
	if p, err := ParsePolicy(""); err != nil || p != LeastTokens {
		t.Errorf("default: %s, %v", p, err)
	}
	for _, want := range Policies() {
		if p, err := ParsePolicy(string(want)); err != nil || p != want {
			t.Errorf("%s: %s, %v", want, p, err)
		}
	}
	if _, err := ParsePolicy("random_walk"); err == nil || !strings.Contains(err.Error(), "least_tokens, prefix_cost, least_connections, round_robin or random") {
		t.Errorf("an unknown policy must be refused with those there are: %v", err)
	}
}

// Whatever the order of takes, first bytes, ends, failures and list changes: counts are those of the open leases, and
// none is left when all have ended.
func TestPool_CountsMatchLeases(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p, now := newPool(4)
		var open []*Lease
		end := func(i int) {
			open[i].Done(rapid.SampledFrom([]Outcome{Success, Neutral, Failed, Busy(time.Second)}).Draw(t, "outcome"))
			open = append(open[:i:i], open[i+1:]...)
		}
		check := func() {
			count, streaming, tokens := map[*member]int{}, map[*member]int{}, map[*member]int{}
			for _, l := range open {
				count[l.m]++
				tokens[l.m] += l.tokens
				if l.begun {
					streaming[l.m]++
				}
			}
			for _, m := range p.members {
				if m.inFlight != count[m] || m.streaming != streaming[m] || m.tokens != tokens[m] || m.breaker.trials < 0 || m.breaker.trials > count[m] {
					t.Fatalf("%s: %d in flight, %d streaming, %d tokens, %d trials; leases: %d, %d, %d", m.ID, m.inFlight, m.streaming, m.tokens, m.breaker.trials, count[m], streaming[m], tokens[m])
				}
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			at := rapid.IntRange(0, max(0, len(open)-1)).Draw(t, "which")
			switch rapid.IntRange(0, 6).Draw(t, "step") {
			case 0:
				p.Set(backends(rapid.IntRange(1, 5).Draw(t, "backends")))
			case 1, 2, 3:
				ask := Ask{Policy: rapid.SampledFrom(Policies()).Draw(t, "policy"), Stream: rapid.Bool().Draw(t, "stream"), Prompt: prompt(rapid.IntRange(0, 4).Draw(t, "session"), rapid.IntRange(0, 3000).Draw(t, "tokens"))}
				if l := p.Take(ask); l != nil {
					open = append(open, l)
				}
			case 4:
				if len(open) > 0 {
					open[at].FirstByte()
				}
			case 5:
				if len(open) > 0 {
					end(at)
				}
			case 6:
				now.Advance(time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond)
			}
			check()
		}
		for len(open) > 0 {
			end(0)
		}
		check()
	})
}

func BenchmarkTake(b *testing.B) {
	p := NewPool(clock.System())
	p.Set(backends(8))
	ask := Ask{Policy: LeastTokens, Stream: true, Prompt: prompt(1, 10_000)}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		ask.Prompt.Keys[session.LevelHeader] = session.Key(1 + i%10_000)
		l := p.Take(ask)
		l.FirstByte()
		l.Done(Success)
	}
}
