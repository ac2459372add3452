package balance

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/gateway/session"
)

// send gives n requests the same end and counts them by backend.
func send(p *Pool, policy Policy, n int, end func(id string) Outcome) map[string]int {
	counts := map[string]int{}
	for range n {
		l := p.Take(Ask{Policy: policy, Prompt: session.Prompt{Tokens: 100}})
		counts[l.ID]++
		l.Done(end(l.ID))
	}
	return counts
}

func well(string) Outcome { return Success }

func broken(id string) func(string) Outcome {
	return func(at string) Outcome {
		if at == id {
			return Failed
		}
		return Success
	}
}

func TestBreaker_OutAfterFaultsAndBackByOneRequest(t *testing.T) {
	t.Parallel()
	for _, policy := range Policies() {
		p, now := newPool(3)
		if n := send(p, policy, 300, broken("b00"))["b00"]; n != faultsToOpen {
			t.Errorf("%s: a backend that always fails got %d requests, want %d", policy, n, faultsToOpen)
		}
		if s := p.Status()[0]; s.State != Open {
			t.Errorf("%s: %+v", policy, s)
		}
		now.Advance(firstRest)
		// Half open: one request at a time, and none while that is out.
		var trial *Lease
		for range 300 {
			if l := p.Take(Ask{Policy: policy, Prompt: session.Prompt{Tokens: 100}}); l.ID == "b00" {
				if trial != nil {
					t.Fatalf("%s: two requests at once to a half-open backend", policy)
				}
				trial = l
			}
		}
		if trial == nil {
			t.Fatalf("%s: nobody tried the backend again", policy)
		}
		trial.Done(Neutral)
		if s := p.Status()[0]; s.State != HalfOpen {
			t.Errorf("%s: a neutral answer decided: %+v", policy, s)
		}
		p.Take(Ask{Policy: policy, Not: map[string]bool{"b01": true, "b02": true}}).Done(Success)
		if s := p.Status()[0]; s.State != Closed || s.Share >= 1 {
			t.Errorf("%s: after a good answer it is back with less than its share: %+v", policy, s)
		}
		now.Advance(SlowStart)
		if s := p.Status()[0]; s.Share != 1 {
			t.Errorf("%s: after the slow start: %+v", policy, s)
		}
	}
}

// Though all requests belong to a session that has a backend, one is spent on finding out that another is back.
func TestBreaker_TriedThoughSessionsStayElsewhere(t *testing.T) {
	t.Parallel()
	p, now := newPool(2)
	for range faultsToOpen {
		p.Take(Ask{Not: map[string]bool{"b01": true}}).Done(Failed)
	}
	turn := func(end Outcome) *Lease {
		l := p.Take(Ask{Policy: LeastTokens, Prompt: prompt(1, 5000)})
		l.Done(end)
		return l
	}
	turn(Success)
	now.Advance(firstRest)
	if l := turn(Failed); l.ID != "b00" || l.Route != "trial" {
		t.Errorf("%s by %s, want a trial", l.ID, l.Route)
	}
	if l := turn(Success); l.ID != "b01" {
		t.Error("a failed trial took the session with it")
	}
	now.Advance(longestRest)
	turn(Success)
	if s := p.Status()[0]; s.State != Closed {
		t.Errorf("%+v", s)
	}
}

// However long a backend was away, a request finds it within ten seconds of its return.
func TestBreaker_FoundWithinTenSeconds(t *testing.T) {
	t.Parallel()
	p, now := newPool(2)
	for range 120 {
		send(p, RoundRobin, 6, broken("b00"))
		now.Advance(500 * time.Millisecond)
	}
	back := now.Now()
	for send(p, RoundRobin, 2, well)["b00"] == 0 {
		now.Advance(250 * time.Millisecond)
		if now.Now().Sub(back) > 10*time.Second {
			t.Fatal("not found within ten seconds")
		}
	}
}

func TestBreaker_ClientsFaultsDoNotOpenIt(t *testing.T) {
	t.Parallel()
	p, _ := newPool(2)
	send(p, RoundRobin, 200, func(string) Outcome { return Neutral })
	for _, s := range p.Status() {
		if s.State != Closed {
			t.Errorf("%+v", s)
		}
	}
	// Nor do they hide that a backend fails.
	p, _ = newPool(1)
	for i := range 2*faultsToOpen - 1 {
		end := Failed
		if i%2 == 1 {
			end = Neutral
		}
		p.Take(Ask{}).Done(end)
	}
	if s := p.Status()[0]; s.State != Open {
		t.Errorf("neutral answers reset the count of faults: %+v", s)
	}
}

func TestBusy_LessForAsLongAsAskedAndClosed(t *testing.T) {
	t.Parallel()
	for _, policy := range []Policy{RoundRobin, Random, LeastConnections, LeastTokens, PrefixCost} {
		p, now := newPool(3)
		for range 5 {
			p.Take(Ask{Policy: policy, Not: map[string]bool{"b01": true, "b02": true}}).Done(Busy(2 * time.Second))
		}
		if s := p.Status()[0]; s.State != Closed || s.Share != busyShare {
			t.Errorf("%s: %+v", policy, s)
		}
		counts := map[string]int{}
		for range 300 { // all in flight at once, so that loads count
			counts[p.Take(Ask{Policy: policy, Prompt: session.Prompt{Tokens: 100}}).ID]++
		}
		if n := counts["b00"]; n > 40 {
			t.Errorf("%s: a busy backend got %d of 300: %v", policy, n, counts)
		}
		now.Advance(2 * time.Second)
		if s := p.Status()[0]; s.Share != 1 {
			t.Errorf("%s: still busy: %+v", policy, s)
		}
	}
	p, now := newPool(1)
	p.Take(Ask{}).Done(Busy(time.Hour))
	if l := p.Take(Ask{}); l == nil {
		t.Error("the last backend is used although it is busy")
	}
	now.Advance(longestBusy)
	if s := p.Status()[0]; s.Share != 1 {
		t.Errorf("busy for longer than is believed: %+v", s)
	}
}

func TestTake_LastBackendIsBetterThanNone(t *testing.T) {
	t.Parallel()
	p, _ := newPool(2)
	for range 5 {
		p.Probed("b00", false)
		p.Probed("b01", false)
		send(p, RoundRobin, 4, func(string) Outcome { return Failed })
	}
	if l := p.Take(Ask{}); l == nil {
		t.Error("no backend, though two are listed")
	}
	if l := p.Take(Ask{Not: map[string]bool{"b00": true, "b01": true}}); l != nil {
		t.Error("a tried backend must not be tried again")
	}
}

func TestProbed(t *testing.T) {
	t.Parallel()
	p, _ := newPool(2)
	miss := func(n int) {
		for range n {
			p.Probed("b00", false)
		}
	}
	miss(missesToRemove - 1)
	p.Probed("b00", true)
	miss(missesToRemove - 1)
	if n := send(p, RoundRobin, 10, well)["b00"]; n != 5 {
		t.Errorf("fewer misses in a row than %d removed it: %d of 10", missesToRemove, n)
	}
	running := p.Take(Ask{Not: map[string]bool{"b01": true}, Stream: true})
	running.FirstByte()
	miss(23)
	if n := send(p, RoundRobin, 10, well)["b00"]; n != 5 {
		t.Errorf("a backend that sends answers was removed by probes: %d of 10", n)
	}
	running.Done(Success)
	miss(missesToRemove)
	if n := send(p, RoundRobin, 10, well)["b00"]; n != 0 || !p.Status()[0].Missing {
		t.Errorf("%d of 10 went to a backend that probes miss", n)
	}
	p.Set(backends(1))
	if l := p.Take(Ask{}); l == nil {
		t.Error("probes alone removed the last backend")
	} else {
		l.Done(Success)
	}
	p.Probed("b00", true)
	if s := p.Status()[0]; s.Missing || s.Share >= 1 {
		t.Errorf("back: %+v", s)
	}
	p.Probed("nobody", false)
}

// A probe that is answered has a request sent at once, but does not close a breaker by itself.
func TestProbed_OpenBreakerIsTriedEarlier(t *testing.T) {
	t.Parallel()
	p, _ := newPool(2)
	send(p, RoundRobin, 20, broken("b00"))
	p.Probed("b00", true)
	if s := p.Status()[0]; s.State != HalfOpen {
		t.Errorf("%+v", s)
	}
}

// Any walk of the breaker against what must hold: it opens only by a fault, closes only by a good answer, lets one
// trial out at a time while another backend is there, and never stays closed to requests for longer than it may.
func TestBreaker_Walk(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		b := breaker{}
		var trials []bool // of the requests out
		faults := 0
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			before := b.at(now)
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0:
				if !b.usable(now) {
					if before == HalfOpen && b.trials == 0 && !b.missing {
						t.Fatal("half open without a trial lets none through")
					}
					continue
				}
				trial := b.take(now)
				if trial != (before != Closed) {
					t.Fatalf("%s: trial %v", before, trial)
				}
				trials = append(trials, trial)
			case 1, 2:
				if len(trials) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(trials)-1).Draw(t, "which")
				trial := trials[i]
				trials = append(trials[:i:i], trials[i+1:]...)
				o := rapid.SampledFrom([]Outcome{Success, Neutral, Failed, Failed, Busy(time.Second)}).Draw(t, "outcome")
				b.done(o, trial, now)
				after := b.at(now)
				if after != before && (o.verdict == neutral || o.verdict == busy) {
					t.Fatalf("%v moved it from %s to %s", o, before, after)
				}
				if after == Closed && before != Closed && (o.verdict != success || !trial) {
					t.Fatalf("closed by %v, trial %v", o, trial)
				}
				if after == Open && before != Open && o.verdict != failed {
					t.Fatalf("opened by %v", o)
				}
				switch {
				case before == Closed && o.verdict == failed:
					if faults++; (faults >= faultsToOpen) != (after == Open) {
						t.Fatalf("%d faults in a row: %s", faults, after)
					}
				case before == Closed && o.verdict == success:
					faults = 0
				}
				if after != Closed {
					faults = 0
				}
			case 3:
				b.probe(rapid.Bool().Draw(t, "ok"), rapid.Bool().Draw(t, "alive"), now)
			case 4:
				now = now.Add(time.Duration(rapid.IntRange(0, 9000).Draw(t, "ms")) * time.Millisecond)
			}
			if wait := b.until.Sub(now); b.at(now) == Open && (wait <= 0 || wait > longestRest) {
				t.Fatalf("open for another %s", wait)
			}
			out := 0
			for _, trial := range trials {
				if trial {
					out++
				}
			}
			if out > 1 && b.usable(now) && b.at(now) != Closed || out != b.trials {
				t.Fatalf("%d trials out, %d counted", out, b.trials)
			}
			if s := b.share(now); s <= 0 || s > 1 {
				t.Fatalf("share %v", s)
			}
		}
	})
}
