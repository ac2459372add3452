package balance

import (
	"testing"
	"time"
)

// PW02: of sixteen replicas each gets its share, whatever the policy.
func TestPW02_SixteenReplicasGetTheSame(t *testing.T) {
	t.Parallel()
	for _, policy := range Policies() {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			each := 500
			if policy == Random {
				each = 10_000 // so that a tenth is ten times the spread
			}
			p, _ := newPool(16)
			got := map[string]int{}
			for range 16 * each {
				l := p.Take(Ask{Policy: policy, Stream: true})
				got[l.ID]++
				l.FirstByte()
				l.Done(Success)
			}
			within := each / 10
			if policy == RoundRobin {
				within = 1
			}
			for _, b := range backends(16) {
				if n := got[b.ID]; n < each-within || n > each+within {
					t.Errorf("%s got %d, want %d ± %d", b.ID, n, each, within)
				}
			}
		})
	}
}

// PW04: a replica that takes ten times as long for each request gets at most 15 % of them under least_connections.
func TestPW04_SlowReplicaGetsLess(t *testing.T) {
	t.Parallel()
	type running struct {
		lease *Lease
		until time.Time
	}
	p, now := newPool(4)
	var all []running
	slow, n := 0, 2000
	for range n {
		now.Advance(300 * time.Millisecond) // nearly as many as the three others can take
		kept := all[:0]
		for _, r := range all {
			if r.until.After(now.Now()) {
				kept = append(kept, r)
				continue
			}
			r.lease.FirstByte()
			r.lease.Done(Success)
		}
		all = kept
		l := p.Take(Ask{Policy: LeastConnections})
		took := time.Second
		if l.ID == "b00" {
			slow++
			took *= 10
		}
		all = append(all, running{l, now.Now().Add(took)})
	}
	if share := float64(slow) / float64(n); share > 0.15 {
		t.Errorf("the slow replica got %.1f %%", 100*share)
	}
}

// PW16: prompts that never come again take no more memory than what a pool and its backends may remember.
func TestPW16_DistinctPromptsAreBounded(t *testing.T) {
	t.Parallel()
	p, _ := newPool(2)
	for id := 1; id <= 2*maxPins; id++ {
		l := p.Take(Ask{Policy: PrefixCost, Prompt: prompt(id, 1000), Stream: true})
		l.FirstByte()
		l.Done(Success)
	}
	if n := p.Pins(); n > maxPins {
		t.Errorf("%d sessions are remembered, %d may be", n, maxPins)
	}
	for _, m := range p.members {
		if n := m.cache.Tokens(); n > cacheTokens {
			t.Errorf("%d tokens are taken to be in the cache of %s, it holds %d", n, m.ID, cacheTokens)
		}
	}
}
