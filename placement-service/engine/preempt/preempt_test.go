package preempt

import (
	"slices"
	"strings"
	"testing"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/placement-service/engine"
)

func TestFind_Scenarios(t *testing.T) {
	t.Parallel()
	const gpu, vgpu = "nvidia/gpu/A100", "nvidia/vgpu/c0"
	one := accel.Ask{Count: 1}
	for name, tc := range map[string]struct {
		nodes   func(*world)
		running []Allocation
		request engine.Request
		change  func(*Question)
		want    []string    // victims
		code    engine.Code // of the refusal
		says    string      // in the refusal
	}{
		"nothing is evicted for what fits anyway": {
			running: []Allocation{take("a", "n1", gpu, 3, 10)}, request: asks(50, 1, one),
		},
		"the lowest priority goes first": {
			running: []Allocation{take("a", "n1", gpu, 2, 30), take("b", "n1", gpu, 2, 10)}, request: asks(50, 1, accel.Ask{Count: 2}), want: []string{"b"},
		},
		"few cards go before low priority": {
			running: []Allocation{take("a", "n1", gpu, 1, 40), take("b", "n1", gpu, 3, 10)}, request: asks(50, 1, one), want: []string{"a"},
		},
		"of equals the one goes that loses least": {
			running: []Allocation{
				take("a", "n1", gpu, 2, 10), take("b", "n1", gpu, 2, 10, func(a *Allocation) { a.StartedAt = now - 3600 }),
			},
			request: asks(50, 1, one), want: []string{"b"},
		},
		"equal priority stays": {
			running: []Allocation{take("a", "n1", gpu, 4, 50)}, request: asks(50, 1, one), code: CodeNoVictims, says: "1 allocation stays: 1 of priority 50 or more",
		},
		"what began a short time ago stays": {
			running: []Allocation{take("a", "n1", gpu, 4, 10, func(a *Allocation) { a.StartedAt = now - 300 })},
			request: asks(50, 1, one), code: CodeNoVictims, says: "1 not past the least running time",
		},
		"a job may ask for more running time": {
			running: []Allocation{take("a", "n1", gpu, 4, 10, func(a *Allocation) { a.MinRuntime = 2 * 86400 })},
			request: asks(50, 1, one), code: CodeNoVictims, says: "least running time",
		},
		"what was evicted a short time ago stays": {
			running: []Allocation{take("a", "n1", gpu, 4, 10, func(a *Allocation) { a.EvictedAt = now - 1000 })},
			request: asks(50, 1, one), code: CodeNoVictims, says: "evicted less than 1800 s ago",
		},
		"gold stays": {
			running: []Allocation{take("a", "n1", gpu, 4, 10, func(a *Allocation) { a.Gold = true })}, request: asks(50, 1, one), code: CodeNoVictims, says: "under qos gold",
		},
		"what cannot be started again stays": {
			running: []Allocation{take("a", "n1", gpu, 4, 10, func(a *Allocation) { a.Pinned = true })}, request: asks(50, 1, one), code: CodeNoVictims,
		},
		"off": {
			running: []Allocation{take("a", "n1", gpu, 4, 10)}, request: asks(50, 1, one), change: func(q *Question) { q.Policy.Mode = Off }, code: CodeOff,
		},
		"queue only leaves what runs": {
			running: []Allocation{take("a", "n1", gpu, 4, 10)}, request: asks(50, 1, one), change: func(q *Question) { q.Policy.Mode = QueueOnly }, code: CodeNoVictims,
		},
		"queue only takes what does not run yet": {
			running: []Allocation{take("a", "n1", gpu, 2, 10), take("b", "n1", gpu, 2, 20, func(a *Allocation) { a.StartedAt = 0 })},
			request: asks(50, 1, one), change: func(q *Question) { q.Policy.Mode = QueueOnly }, want: []string{"b"},
		},
		"a gang goes whole": {
			running: []Allocation{
				take("a1", "n1", gpu, 2, 10, ofGang("a")), take("a2", "n1", gpu, 2, 10, ofGang("a")),
			},
			request: asks(50, 1, one), want: []string{"a1", "a2"},
		},
		"a gang of which one is young stays": {
			running: []Allocation{
				take("a1", "n1", gpu, 2, 10, ofGang("a")), take("a2", "n1", gpu, 2, 10, ofGang("a"), func(a *Allocation) { a.StartedAt = now - 10 }),
			},
			request: asks(50, 1, one), code: CodeNoVictims, says: "in gangs of which something else stays",
		},
		"not out of proportion": {
			running: []Allocation{take("a", "n1", gpu, 4, 10)}, request: asks(50, 1, one), change: func(q *Question) { q.Policy.Excess = 1.1 },
			code: CodeExcess, says: "takes 4 cards from a for the 1 card asked for, more than 1.1 for each",
		},
		"a part of a card may take a whole one": {
			running: []Allocation{take("a", "n1", gpu, 4, 10), take("b", "n2", vgpu, 80, 10)},
			nodes: func(w *world) {
				w.node("n1", 64000, whole("A100", 4))
				w.node("n2", 64000, shared("c0", 80))
			},
			request: asks(50, 1, accel.Ask{Count: 1, MemoryMiB: 20 << 10}), change: func(q *Question) { q.Policy.Excess = 1.1 }, want: []string{"b"},
		},
		"no more than the tenant may lose": {
			running: []Allocation{
				take("a", "n1", gpu, 2, 10, func(a *Allocation) { a.Tenant = "poor" }), take("b", "n1", gpu, 2, 20, func(a *Allocation) { a.Tenant = "rich" }),
			},
			request: asks(50, 1, one), change: func(q *Question) { q.Policy.Budget, q.Lost = 4, map[string]float64{"poor": 3} }, want: []string{"b"},
		},
		"even all of it would not do": {
			running: []Allocation{take("a", "n1", gpu, 2, 10), take("b", "n1", gpu, 2, 90)}, request: asks(50, 1, accel.Ask{Count: 3}),
			code: CodeNoHelp, says: "1 allocation with 2 cards, would not make room: needs 3 whole cards of one model on one node; best is node n1 with 2 free A100: 1 short; 1 allocation stays: 1 of priority 50 or more",
		},
		"room for a share on one card": {
			nodes: func(w *world) { w.node("n1", 64000, shared("c0", 80), shared("c1", 80)) },
			running: []Allocation{
				take("a", "n1", vgpu, 40, 10), take("b", "n1", vgpu, 40, 10), take("c", "n1", "nvidia/vgpu/c1", 50, 10), take("d", "n1", "nvidia/vgpu/c1", 30, 10),
			},
			request: asks(50, 1, accel.Ask{Count: 1, MemoryMiB: 20 << 10}), want: []string{"d"},
		},
		"processor beside free cards": {
			nodes:   func(w *world) { w.node("n1", 250, whole("A100", 8)) },
			running: []Allocation{take("a", "n1", gpu, 2, 10), take("b", "n1", gpu, 1, 10)}, request: asks(50, 1, one), want: []string{"b"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &world{}
			if tc.nodes == nil {
				w.node("n1", 64000, whole("A100", 4))
			} else {
				tc.nodes(w)
			}
			for _, a := range tc.running {
				w.runs(a)
			}
			q := w.question(tc.request)
			if tc.change != nil {
				tc.change(&q)
			}
			p := Find(q)
			if !slices.Equal(p.Victims, tc.want) {
				t.Errorf("victims are %v, want %v", p.Victims, tc.want)
			}
			switch {
			case (p.Refusal == nil) != (tc.code == ""):
				t.Errorf("refusal is %+v, want %q", p.Refusal, tc.code)
			case p.Refusal == nil:
				if !p.Decision.Placed {
					t.Errorf("the request is not placed: %+v", p.Decision.Refusal)
				}
			case p.Refusal.Code != tc.code || !strings.Contains(p.Refusal.Sentence, tc.says):
				t.Errorf("refused as %s, %q; want %s and %q", p.Refusal.Code, p.Refusal.Sentence, tc.code, tc.says)
			}
		})
	}
}

func TestPlan_SaysWhatItEvicts(t *testing.T) {
	t.Parallel()
	w := &world{}
	w.node("n1", 64000, shared("c0", 80), shared("c1", 80))
	w.runs(take("a", "n1", "nvidia/vgpu/c0", 60, 10))
	w.runs(take("b", "n1", "nvidia/vgpu/c1", 80, 10))
	p := Find(w.question(asks(50, 1, accel.Ask{Count: 1, MemoryMiB: 40 << 10})))
	if got, want := p.Sentence(), "would start by evicting 1 allocation of a, 0.75 cards for the 0.5 cards asked for"; got != want {
		t.Errorf("sentence is %q, want %q", got, want)
	}
}

// Whose jobs go is no business of other tenants.
func TestPlan_NamesOnlyJobsOfTheSameTenant(t *testing.T) {
	t.Parallel()
	w := &world{}
	w.node("n1", 64000, whole("A100", 6))
	for i, tenant := range []string{"mine", "theirs", "mine", "theirs", "mine", "mine"} {
		w.runs(take(string(rune('a'+i)), "n1", "nvidia/gpu/A100", 1, 10, func(a *Allocation) { a.Tenant = tenant }))
	}
	for cards, want := range map[int]string{
		1: "a", 2: "a and 1 job of another tenant", 6: "a, c, e, 1 more and 2 jobs of other tenants",
	} {
		r := asks(50, 1, accel.Ask{Count: cards})
		r.Tenant = "mine"
		if p := Find(w.question(r)); p.Whom() != want {
			t.Errorf("%d cards are taken from %q, want %q", cards, p.Whom(), want)
		}
	}
}
