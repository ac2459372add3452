package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

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

// BenchmarkDecide1000x8 decides share and whole asks, of which some fit, some wait and some need a switch.
func BenchmarkDecide1000x8(b *testing.B) {
	s := crowded(1000, 8)
	requests := map[string]Request{
		"share":        ask(1, accel.Ask{MemoryMiB: 4 << 10}),
		"share×8":      ask(8, accel.Ask{MemoryMiB: 4 << 10}),
		"share-waits":  ask(1, accel.Ask{Count: 4, MemoryMiB: 40 << 10}),
		"share-switch": ask(1, accel.Ask{MemoryMiB: 8 << 10, Models: []string{"910B*"}}),
		"share-model":  ask(2, accel.Ask{MemoryMiB: 8 << 10, Models: []string{"A100*", "910B*"}, QoS: accel.Silver}),
		"shares-2":     ask(1, accel.Ask{Count: 2, MemoryMiB: 6 << 10}),
		"whole":        ask(1, accel.Ask{Vendors: []accel.Vendor{accel.Hygon}}),
		"whole-8-wait": ask(1, accel.Ask{Count: 8}),
	}
	want := map[string]Code{"share-waits": CodeCount, "share-switch": CodeFormSwitch, "whole-8-wait": CodeCount}
	for name, r := range requests {
		r.Groups[0].Constraints = []Constraint{{"${attr.kernel.name}", "linux", "="}}
		requests[name] = r
		var got Code
		if d := New(Config{}).Decide(s, r); !d.Placed {
			got = d.Refusal.Code
		}
		if got != want[name] {
			b.Fatalf("%s: code %q, want %q", name, got, want[name])
		}
	}
	for _, name := range []string{"share", "share×8", "share-waits", "share-switch", "share-model", "shares-2", "whole", "whole-8-wait"} {
		r := requests[name]
		b.Run(name, func(b *testing.B) {
			measure(b, s, r)
		})
	}
}

// measure reports the median and the 99th percentile of deciding.
func measure(b *testing.B, s Snapshot, r Request) {
	b.Helper()
	e := New(Config{})
	took := make([]time.Duration, 0, b.N)
	b.ReportAllocs()
	for b.Loop() {
		start := time.Now()
		e.Decide(s, r)
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

// BenchmarkSwitch1000x8 asks for a share where every card is whole, empty and switchable: a new cluster's first share.
func BenchmarkSwitch1000x8(b *testing.B) {
	var nodes []testNode
	for i := range 1000 {
		nodes = append(nodes, testNode{Name: fmt.Sprintf("node-%04d", i), Cards: []testCard{{Form: accel.Whole, Count: 8, Auto: true}}})
	}
	measure(b, snapshotOf(nodes...), ask(1, accel.Ask{MemoryMiB: 4 << 10}))
}

// BenchmarkTogether1000x8 asks for two tasks on one node where each fits alone and both never do.
func BenchmarkTogether1000x8(b *testing.B) {
	var nodes []testNode
	for i := range 1000 {
		n := testNode{Name: fmt.Sprintf("node-%04d", i)}
		for range 8 {
			n.Cards = append(n.Cards, testCard{Used: 79})
		}
		n.Cards[0].Used = 40
		nodes = append(nodes, n)
	}
	r := ask(1, accel.Ask{Count: 1, MemoryMiB: 30 << 10})
	r.Groups[0].Tasks = append(r.Groups[0].Tasks, r.Groups[0].Tasks[0])
	r.Groups[0].Tasks[1].Name = "other"
	measure(b, snapshotOf(nodes...), r)
}
