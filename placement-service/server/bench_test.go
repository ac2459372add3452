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
// place share the processors. machine-p99-ms is how much longer than meant plain reckoning of that length takes, which
// asks nobody and waits for nothing: what the machine and the collector of garbage add to anything as long.
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
			var straight, through, alone []time.Duration
			i := 0
			for b.Loop() {
				i++
				straight = append(straight, register(direct, fmt.Sprintf("d-%d", i)))
				through = append(through, register(s.nomad, fmt.Sprintf("s-%d", i)))
				if typical := percentile(through, 50); len(through)%2 == 0 {
					alone = append(alone, reckon(typical)-typical)
				}
			}
			b.ReportMetric(float64(percentile(alone, 99).Microseconds())/1000, "machine-p99-ms")
			for _, p := range []int{50, 99} {
				a, t := percentile(straight, p), percentile(through, p)
				b.ReportMetric(float64((t-a).Microseconds())/1000, fmt.Sprintf("added-p%d-ms", p))
				b.ReportMetric(float64(a.Microseconds())/1000, fmt.Sprintf("direct-p%d-ms", p))
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// reckon reckons until it has had the processor for about that long, and says how long it took. What takes the
// processor away shows as a gap between two looks at the clock, which does not count.
func reckon(length time.Duration) time.Duration {
	const gap = 100 * time.Microsecond
	began := time.Now()
	last := began
	for had := time.Duration(0); had < length; {
		now := time.Now()
		if step := now.Sub(last); step < gap {
			had += step
		}
		last = now
	}
	return last.Sub(began)
}

func percentile(all []time.Duration, p int) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[min(len(sorted)-1, len(sorted)*p/100)]
}
