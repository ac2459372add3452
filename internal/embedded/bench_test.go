package embedded_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/embedded"
)

// BenchmarkStart is the figure: it starts an engine with 5,000 simulated nodes of 8 cards each, up to the answer of its
// first request. The bar is 5 seconds and 1 GiB.
func BenchmarkStart(b *testing.B) {
	for _, form := range []accel.Form{accel.Whole, accel.Shared} {
		b.Run(string(form), func(b *testing.B) {
			var slowest time.Duration
			for b.Loop() {
				began := time.Now()
				ctx, cancel := context.WithCancel(context.Background())
				e, err := embedded.New(embedded.Config{SimNodes: embedded.SimNodes(5000, 8, accel.NVIDIA, "A100-SXM4-80GB", 81920, form)})
				if err != nil {
					b.Fatal(err)
				}
				done := make(chan error, 1)
				go func() { done <- e.Run(ctx) }()
				<-e.Ready()
				c, err := api.NewClient(&api.Config{Address: e.Addr()})
				if err != nil {
					b.Fatal(err)
				}
				if nodes, _, err := c.Nodes().List(nil); err != nil || len(nodes) != 5000 {
					b.Fatalf("%d nodes, %v", len(nodes), err)
				}
				slowest = max(slowest, time.Since(began))
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				b.ReportMetric(float64(m.Sys)/(1<<20), "MiB-from-OS")
				b.StopTimer()
				runtime.GC()
				runtime.ReadMemStats(&m)
				b.ReportMetric(float64(m.HeapAlloc)/(1<<20), "MiB-live")
				cancel()
				if err := <-done; err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			b.ReportMetric(slowest.Seconds(), "slowest-s")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkRegister registers jobs of one allocation and waits until each is placed, over more and more nodes.
func BenchmarkRegister(b *testing.B) {
	for _, n := range []int{1, 1000, 5000} {
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			e, err := embedded.New(embedded.Config{SimNodes: embedded.SimNodes(n, 8, accel.NVIDIA, "A100-SXM4-80GB", 81920, accel.Shared)})
			if err != nil {
				b.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- e.Run(ctx) }()
			<-e.Ready()
			c, err := api.NewClient(&api.Config{Address: e.Addr()})
			if err != nil {
				b.Fatal(err)
			}
			i := 0
			for b.Loop() {
				i++
				j := job(fmt.Sprintf("j%d", i), 1, device("nvidia/vgpu", 1))
				j.Type, j.Update = new("batch"), nil
				out, _, err := c.Jobs().Register(j, nil)
				if err != nil {
					b.Fatal(err)
				}
				q := &api.QueryOptions{}
				for {
					ev, meta, err := c.Evaluations().Info(out.EvalID, q)
					if err != nil {
						b.Fatal(err)
					}
					if ev.Status == "complete" {
						break
					}
					q.WaitIndex = meta.LastIndex
				}
				if i%100 == 0 { // give the room back
					b.StopTimer()
					for k := i - 99; k <= i; k++ {
						if _, _, err := c.Jobs().Deregister(fmt.Sprintf("j%d", k), true, nil); err != nil {
							b.Fatal(err)
						}
					}
					b.StartTimer()
				}
			}
			cancel()
			if err := <-done; err != nil {
				b.Fatal(err)
			}
		})
	}
}
