package openb

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/engine/potential"
)

// TestPipeline_ChoosesAsTheScorer: of pods that come and go, the whole pipeline gives each to a place that costs no more
// than the one that the scorer alone finds best.
func TestPipeline_ChoosesAsTheScorer(t *testing.T) {
	t.Parallel()
	for _, list := range []string{"default", "gpuspec33", "multigpu50"} {
		t.Run(list, func(t *testing.T) {
			t.Parallel()
			c := load(t, list)
			pods, ranks := c.Arrivals(42)
			on := c.pipeline(ranks, nil)
			checked := 0
			var ends []func()
			for n, i := range pods {
				p := &c.Pods[i].Shape
				want, room, fits := on.index.Choose(p)
				const oneIn = 80
				if n%oneIn == 0 && p.Cards > 0 {
					checked++
					got, claims, ok := on.choose(p)
					if d := on.engine().Decide(on.cluster.Snapshot(), requestOf(p)); d.Placed != ok || ok && !cmp.Equal(d.Groups[0].Placements[0].Tasks[0].Claims, claims) {
						t.Fatalf("pod %d: with a look at every node %+v, else %v %v", n, d, got, claims)
					}
					if ok != fits {
						t.Fatalf("pod %d: placed %v, it fits: %v", n, ok, fits)
					}
					if s := on.index.State(want); ok && got != want {
						least, _, _ := on.policy.Cost(&s, p)
						here := on.index.State(got)
						if cost, _, _ := on.policy.Cost(&here, p); cost != least {
							t.Fatalf("pod %d, %+v: on node %d with %v at cost %v, want node %d at %v", n, *p, got, claims, cost, want, least)
						}
					}
				}
				if !fits {
					continue
				}
				ends = append(ends, on.take(want, p, on.claims(want, p, room)))
				if n > len(pods)/2 { // from here on, one leaves for each that comes
					ends[0]()
					ends = ends[1:]
				}
			}
			if checked < 40 || on.regime.Level() != potential.Levels {
				t.Errorf("only %d pods were compared, up to level %d", checked, on.regime.Level())
			}
		})
	}
}

// claims are the cards of the node that the scorer takes for a pod.
func (on *pipeline) claims(node int, p *potential.Shape, least potential.Card) []engine.Claim {
	if p.Cards == 0 {
		return nil
	}
	var out []engine.Claim
	s := on.index.State(node)
	for _, c := range s.Taken(p, least) {
		for i := range on.nodes[node].Pools {
			pool := &on.nodes[node].Pools[i]
			taken := slices.ContainsFunc(out, func(have engine.Claim) bool { return have.Group == pool.Group })
			if pool.Model == modelOf(c.Model()) && pool.Free() == c.Milli() && !taken {
				out = append(out, engine.Claim{Group: pool.Group, Units: int(p.Milli)})
				break
			}
		}
	}
	return out
}
