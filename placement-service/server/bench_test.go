package server_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/embedded"
)

// BenchmarkProxyAdded is the figure: it registers the same job in turn straight at Nomad's API and through the service,
// in one run, so that both meet the same machine, and reports what the service adds at the median and at the 99th
// percentile. What goes straight gets no card, since nobody admits it: Nomad takes it as it is. What goes through
// comes to Nomad with a device block, a constraint and a grant. Client, service, SQLite and the engine in Nomad's
// place share the processors.
func BenchmarkProxyAdded(b *testing.B) {
	for _, nodes := range []int{10, 1000} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			s, e := start(b, embedded.SimNodes(nodes, 8, accel.NVIDIA, "A100-SXM4-80GB", 81920, accel.Shared))
			direct, err := api.NewClient(&api.Config{Address: e.Addr()})
			if err != nil {
				b.Fatal(err)
			}
			register := func(c *api.Client, id string) time.Duration {
				job := share(id, 1, "1GiB")
				began := time.Now()
				if _, _, err := c.Jobs().Register(job, nil); err != nil {
					b.Fatal(err)
				}
				return time.Since(began)
			}
			var straight, through []time.Duration
			i := 0
			for b.Loop() {
				i++
				straight = append(straight, register(direct, fmt.Sprintf("d-%d", i)))
				through = append(through, register(s.nomad, fmt.Sprintf("s-%d", i)))
			}
			for _, p := range []int{50, 99} {
				a, t := percentile(straight, p), percentile(through, p)
				b.ReportMetric(float64((t-a).Microseconds())/1000, fmt.Sprintf("added-p%d-ms", p))
				b.ReportMetric(float64(a.Microseconds())/1000, fmt.Sprintf("direct-p%d-ms", p))
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

func percentile(all []time.Duration, p int) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[min(len(sorted)-1, len(sorted)*p/100)]
}
