package sharetest

import (
	"fmt"
	"testing"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/task-driver/share"
)

func TestSample_PassesTheSuite(t *testing.T) {
	t.Parallel()
	ask := func(task string, mib uint64) share.Ask {
		return share.Ask{
			ID: share.NewID(task, accel.NVIDIA, "GPU-1"), TaskID: task, Vendor: accel.NVIDIA, Form: accel.Shared,
			Card: grant.Card{UUID: "GPU-1", MemoryMiB: 81920, Units: 10}, MemoryMiB: mib, Of: 1, Container: true,
		}
	}
	Run(t, Suite{
		Machine: func(t testing.TB) Machine {
			cards := NewCards()
			return Machine{
				Tool: cards, Root: t.TempDir(),
				Things: func() []string {
					var out []string
					for _, p := range cards.Parts() {
						out = append(out, fmt.Sprint(p))
					}
					return out
				},
				Foreign: func() { cards.Add(Part{Name: "somebody", Card: "GPU-1", MemoryMiB: 1024}) },
			}
		},
		New:  func(h share.Host) share.Backend { return NewSample(h, accel.NVIDIA, "sample") },
		Asks: []share.Ask{ask("a/t/1", 10240), ask("b/t/2", 20480)},
	})
}
