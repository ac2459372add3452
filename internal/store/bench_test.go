package store_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/internal/store/storetest"
)

// BenchmarkReserve reserves two claims and releases them, from many callers at once, on 1,000 pools. The private
// PostgreSQL of the tests does not sync to disk; SQLite does.
func BenchmarkReserve(b *testing.B) {
	for name, open := range storetest.Engines() {
		b.Run(name, func(b *testing.B) {
			s := open(b)
			const nodes = 125
			for n := range nodes {
				var pools []store.Pool
				for g := range 8 {
					pools = append(pools, store.Pool{NodeID: fmt.Sprint("n", n), Group: fmt.Sprint("g", g), Capacity: 80, UnitMiB: 1024})
				}
				if err := s.PutPools(b.Context(), fmt.Sprint("n", n), pools); err != nil {
					b.Fatal(err)
				}
			}
			var next atomic.Int64
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					i := next.Add(1)
					node := fmt.Sprint("n", i%nodes)
					job := fmt.Sprint("job", i)
					err := s.Reserve(b.Context(), store.Reservation{
						ID: store.NewID(), Tenant: "research", Namespace: "default", JobID: job,
						Claims: []store.Claim{{NodeID: node, Group: "g1", Units: 20}, {NodeID: node, Group: "g2", Units: 20}},
					})
					if err == nil {
						err = s.Release(b.Context(), "default", job)
					}
					if err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

// BenchmarkSettle repeats what the store knows already, as the event watcher does.
func BenchmarkSettle(b *testing.B) {
	for name, open := range storetest.Engines() {
		b.Run(name, func(b *testing.B) {
			s := open(b)
			live := []store.Claim{{NodeID: "n1", Group: "g1", Units: 20, TaskGroup: "serve", Task: "vllm", AllocID: "al1"}}
			for b.Loop() {
				if err := s.Settle(b.Context(), "default", "llm", live, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
