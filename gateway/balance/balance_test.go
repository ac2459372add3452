package balance

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/internal/clock"
)

func backends(n int) []Backend {
	var list []Backend
	for i := range n {
		list = append(list, Backend{ID: fmt.Sprintf("b%02d", i), Addr: fmt.Sprintf("127.0.0.1:%d", 9000+i)})
	}
	return list
}

func TestRoundRobin_ExactWhileTheListIsRefreshed(t *testing.T) {
	t.Parallel()
	p := NewPool(clock.System())
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

func TestLeastConnections_BurstSpreads(t *testing.T) {
	t.Parallel()
	p := NewPool(clock.System())
	p.Set(backends(4))
	taken := map[string]int{}
	for range 100 {
		taken[p.Take(Ask{Policy: LeastConnections}).ID]++
	}
	for _, b := range backends(4) {
		if n := taken[b.ID]; n != 25 {
			t.Errorf("%s: want 25 in flight, got %d", b.ID, n)
		}
	}
}

func TestTake_FailedBackendRestsAndReturns(t *testing.T) {
	t.Parallel()
	now := clock.NewFake(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	p := NewPool(now)
	p.Set(backends(2))
	first := p.Take(Ask{Policy: RoundRobin})
	first.Done(Failed)
	for range 4 {
		l := p.Take(Ask{Policy: RoundRobin})
		if l.ID == first.ID {
			t.Fatal("a backend that just failed must rest while another is there")
		}
		l.Done(Success)
	}
	if l := p.Take(Ask{Policy: RoundRobin, Not: map[string]bool{"b00": true, "b01": true}}); l != nil {
		t.Error("a tried backend must not be tried again")
	}
	if l := p.Take(Ask{Policy: RoundRobin, Not: map[string]bool{"b01": true}}); l == nil || l.ID != "b00" {
		t.Error("the only backend left is used although it rests")
	} else {
		l.Done(Failed)
	}
	now.Advance(Rest)
	seen := map[string]bool{}
	for range 2 {
		l := p.Take(Ask{Policy: RoundRobin})
		seen[l.ID] = true
		l.Done(Success)
	}
	if !seen["b00"] {
		t.Error("a backend must come back after its rest")
	}
}

func TestParsePolicy(t *testing.T) {
	t.Parallel()
	if p, err := ParsePolicy(""); err != nil || p != RoundRobin {
		t.Errorf("default: %s, %v", p, err)
	}
	if _, err := ParsePolicy("random_walk"); err == nil {
		t.Error("an unknown policy must be refused")
	}
}

// Whatever the order of takes, ends, failures and list changes: counts are never negative, and the count of a
// backend that stays is the number of its open leases.
func TestPool_CountsMatchLeases(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := NewPool(clock.System())
		p.Set(backends(4))
		var open []*Lease
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				p.Set(backends(rapid.IntRange(1, 5).Draw(t, "backends")))
			case 1, 2:
				policy := rapid.SampledFrom([]Policy{RoundRobin, LeastConnections}).Draw(t, "policy")
				if l := p.Take(Ask{Policy: policy}); l != nil {
					open = append(open, l)
				}
			case 3:
				if len(open) > 0 {
					open[0].Done(rapid.SampledFrom([]Outcome{Success, Neutral, Failed, Busy(time.Second)}).Draw(t, "outcome"))
					open = open[1:]
				}
			}
			held := map[*member]int{}
			for _, l := range open {
				held[l.m]++
			}
			for _, m := range p.backends {
				if m.inFlight != held[m] {
					t.Fatalf("%s: %d in flight, %d leases", m.ID, m.inFlight, held[m])
				}
			}
		}
	})
}
