package share

import (
	"fmt"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
)

// BenchmarkPrepareAndRelease is what a share costs beside its backend, on this machine's disk: four synced writes of the
// ledger, and one look at all of it.
func BenchmarkPrepareAndRelease(b *testing.B) {
	for _, others := range []int{0, 50} {
		b.Run(fmt.Sprintf("beside %d", others), func(b *testing.B) {
			m := NewManager(Options{Registry: NewRegistry(newStub("mps", accel.Silver)), Dir: b.TempDir(), Alive: func(string) bool { return true }})
			for i := range others {
				card := fmt.Sprintf("GPU-other-%d", i)
				a := sliceOf("other", card, 1, accel.Silver)
				if err := m.ledger.put(Entry{Ask: a, Backend: "mps", State: Confirmed, Since: time.Unix(1e9, 0)}); err != nil {
					b.Fatal(err)
				}
			}
			a := sliceOf("task", "GPU-1", 1024, accel.Silver)
			a.Card = grant.Card{UUID: "GPU-1", MemoryMiB: 81920}
			for b.Loop() {
				if _, err := m.Prepare(b.Context(), []Ask{a}, func(string) {}); err != nil {
					b.Fatal(err)
				}
				if err := m.Release(b.Context(), "task"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
