//go:build linux

package engine

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// crowded is a cluster in which most cards are nearly full, half of the nodes shared and half whole.
func crowded(nodes, cards int) Snapshot {
	random := rand.New(rand.NewPCG(1, 2))
	models := []testCard{
		{Vendor: accel.NVIDIA, Model: "A100-SXM4-80GB", GiB: 80, Modes: []string{"mps"}},
		{Vendor: accel.Ascend, Model: "910B3", GiB: 64},
		{Vendor: accel.NVIDIA, Model: "H100-SXM5-80GB", GiB: 80, Modes: []string{"mps"}},
		{Vendor: accel.Hygon, Model: "K100", GiB: 64, Modes: []string{"hami"}},
	}
	var all []testNode
	for i := range nodes {
		n := testNode{Name: fmt.Sprintf("node-%04d", i), Attrs: map[string]string{"attr.kernel.name": "linux"}}
		card := models[i%len(models)]
		if i%2 == 0 {
			for range cards {
				card.Used = card.GiB - random.IntN(12)
				if random.IntN(40) == 0 {
					card.Used = random.IntN(card.GiB)
				}
				n.Cards = append(n.Cards, card)
			}
		} else {
			card.Form, card.Count, card.Used = accel.Whole, cards, cards-random.IntN(2)
			card.Auto = i%10 == 1
			n.Cards = append(n.Cards, card)
		}
		all = append(all, n)
	}
	return snapshotOf(all...)
}

// question is a request to one of the clusters of 1,000 nodes of 8 cards.
type question struct {
	name string
	s    Snapshot
	r    Request
	want Code // of the refusal
}

// questions are asks of which some fit, some wait and some need a switch, and the clusters that are worst for them.
func questions() []question {
	busy := crowded(1000, 8)
	return []question{
		{"share", busy, ask(1, accel.Ask{MemoryMiB: 4 << 10}), ""},
		{"share×8", busy, ask(8, accel.Ask{MemoryMiB: 4 << 10}), ""},
		{"share-waits", busy, ask(1, accel.Ask{Count: 4, MemoryMiB: 40 << 10}), CodeCount},
		{"share-switch", busy, ask(1, accel.Ask{MemoryMiB: 8 << 10, Models: []string{"910B*"}}), CodeFormSwitch},
		{"share-model", busy, ask(2, accel.Ask{MemoryMiB: 8 << 10, Models: []string{"A100*", "910B*"}, QoS: accel.Silver}), ""},
		{"shares-2", busy, ask(1, accel.Ask{Count: 2, MemoryMiB: 6 << 10}), ""},
		{"whole", busy, ask(1, accel.Ask{Vendors: []accel.Vendor{accel.Hygon}}), ""},
		{"whole-8-waits", busy, ask(1, accel.Ask{Count: 8}), CodeCount},
		// Every card would do, so that every card is scored.
		{"empty", alike(1000, 8, testCard{}), ask(1, accel.Ask{MemoryMiB: 1 << 10}), ""},
		// A new cluster's first share: every card is whole, empty and switchable.
		{"new", alike(1000, 1, testCard{Form: accel.Whole, Count: 8, Auto: true}), ask(1, accel.Ask{MemoryMiB: 4 << 10}), CodeFormSwitch},
		// Two tasks for one node where each fits alone and both never do.
		{"together", oneCardFree(1000, 8), twice(ask(1, accel.Ask{MemoryMiB: 30 << 10})), CodeOneNode},
	}
}

func alike(nodes, cards int, card testCard) Snapshot {
	var all []testNode
	for i := range nodes {
		n := testNode{Name: fmt.Sprintf("node-%04d", i), Attrs: map[string]string{"attr.kernel.name": "linux"}}
		for range cards {
			n.Cards = append(n.Cards, card)
		}
		all = append(all, n)
	}
	return snapshotOf(all...)
}

// oneCardFree has nodes of full cards, but for half of the first.
func oneCardFree(nodes, cards int) Snapshot {
	s := alike(nodes, cards, testCard{Used: 79})
	for i := range s.Nodes {
		s.Nodes[i].Pools[0].Used = 40
	}
	return s
}

// twice is the request with its task twice in the group.
func twice(r Request) Request {
	g := &r.Groups[0]
	g.Tasks = append(g.Tasks, g.Tasks[0])
	g.Tasks[1].Name = "other"
	return r
}

// BenchmarkDecision is the figure: every question in turn, with the 99th percentile of the worst of them. It counts
// the processor time of the thread that decides: what else the machine does meanwhile does not count.
func BenchmarkDecision(b *testing.B) {
	all := questions()
	took := make([][]time.Duration, len(all))
	e := New(Config{})
	for b.Loop() {
		for i, q := range all {
			took[i] = append(took[i], q.decide(b, e))
		}
	}
	worst := 0.0
	for _, t := range took {
		slices.Sort(t)
		worst = max(worst, milliseconds(t[len(t)*99/100]))
	}
	every := slices.Sorted(slices.Values(slices.Concat(took...)))
	b.ReportMetric(milliseconds(every[len(every)/2]), "p50-ms")
	b.ReportMetric(worst, "worst-p99-ms")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkDecide1000x8 is each question by itself.
func BenchmarkDecide1000x8(b *testing.B) {
	for _, q := range questions() {
		b.Run(q.name, func(b *testing.B) {
			e := New(Config{})
			var took []time.Duration
			b.ReportAllocs()
			for b.Loop() {
				took = append(took, q.decide(b, e))
			}
			slices.Sort(took)
			b.ReportMetric(milliseconds(took[len(took)/2]), "p50-ms")
			b.ReportMetric(milliseconds(took[len(took)*99/100]), "p99-ms")
		})
	}
}

// BenchmarkExplain is a refusal with the smallest changes that would start the job, each of them tried, in processor
// time of the worst question.
func BenchmarkExplain(b *testing.B) {
	all := questions()
	took := make([][]time.Duration, len(all))
	e := New(Config{})
	tried := 0
	for b.Loop() {
		for i, q := range all {
			if q.want != "" {
				runtime.LockOSThread()
				began := processorTime(b)
				e.Decide(q.s, q.r)
				tried += len(e.Suggest(q.s, q.r))
				took[i] = append(took[i], processorTime(b)-began)
				runtime.UnlockOSThread()
			}
		}
	}
	worst := 0.0
	for _, t := range took {
		if len(t) > 0 {
			worst = max(worst, milliseconds(slices.Max(t)))
		}
	}
	b.ReportMetric(float64(tried)/float64(b.N), "suggestions")
	b.ReportMetric(worst, "worst-ms")
	b.ReportMetric(0, "ns/op")
}

// decide answers the question and says what processor time that took.
func (q question) decide(b *testing.B, e *Engine) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	q.r.Groups[0].Constraints = []Constraint{{"${attr.kernel.name}", "linux", "="}}
	began := processorTime(b)
	d := e.Decide(q.s, q.r)
	took := processorTime(b) - began
	var got Code
	if !d.Placed {
		got = d.Refusal.Code
	}
	if got != q.want {
		b.Fatalf("%s: code %q, want %q", q.name, got, q.want)
	}
	return took
}

func processorTime(b *testing.B) time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		b.Fatal(err)
	}
	return time.Duration(now.Nano())
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
