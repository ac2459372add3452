package e2e

import (
	"fmt"
	"net/http"
	"net/url"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/e2e/cluster"
	"github.com/heteroflow/heteroflow/internal/testkit/postgres"
)

// BenchmarkProxyAdded registers the same job in turn straight at Nomad's API and through the placement service, the built
// programs against each real Nomad on PATH and the embedded engine, and reports what the service adds at the median and at the
// 99th percentile. What goes straight asks for no card: without the service's grant the driver would give it none. A task ends at once, and the next job is sent when
// nothing runs any more.
func BenchmarkProxyAdded(b *testing.B) {
	ends, err := exec.LookPath("true")
	if err != nil {
		b.Skip("no program true on PATH")
	}
	found := cluster.RealNomads()
	for _, name := range append([]string{"embedded"}, wantedNomads...) {
		b.Run(name, func(b *testing.B) {
			o := cluster.Options{Nomad: found[name], Sim: simNode, Anyone: true}
			if name != "embedded" {
				if o.Nomad == "" {
					b.Skipf("no %s on PATH", name)
				}
				o.Database = postgres.SchemaURL(b)
			}
			c := cluster.Start(b, o)
			c.Eventually(90*time.Second, "the card is seen", func() error {
				var list struct{ Items []any }
				if err := c.API(http.MethodGet, "/api/v1/gpus", nil, &list); err != nil || len(list.Items) != simCards {
					return fmt.Errorf("%d cards, %w", len(list.Items), err)
				}
				return nil
			})
			direct, through := nomadClient(b, c.AgentURL), nomadClient(b, c.URL)
			register := func(to *api.Client, id string, ask any) time.Duration {
				job := endingJob(id, ends, ask)
				began := time.Now()
				if _, _, err := to.Jobs().Register(job, nil); err != nil {
					b.Fatal(err)
				}
				took := time.Since(began)
				c.Eventually(time.Minute, id+" has ended", func() error {
					var allocs []api.AllocationListStub
					if err := c.Nomads(http.MethodGet, "/v1/job/"+url.PathEscape(id)+"/allocations", nil, &allocs); err != nil {
						return err
					}
					if len(allocs) != 1 || allocs[0].ClientStatus != api.AllocClientStatusComplete {
						return fmt.Errorf("%d allocations", len(allocs))
					}
					return nil
				})
				return took
			}
			share := []map[string]any{{"vendor": []string{"nvidia"}, "memory": "1GiB"}}
			var straight, added []time.Duration
			for i := 0; b.Loop(); i++ {
				straight = append(straight, register(direct, fmt.Sprintf("d-%d", i), nil))
				added = append(added, register(through, fmt.Sprintf("s-%d", i), share))
			}
			b.ReportMetric(0, "ns/op")
			for _, p := range []int{50, 99} {
				d, t := percentile(straight, p), percentile(added, p)
				b.ReportMetric(float64((t-d).Microseconds())/1000, fmt.Sprintf("added-p%d-ms", p))
				b.ReportMetric(float64(d.Microseconds())/1000, fmt.Sprintf("direct-p%d-ms", p))
			}
		})
	}
}

func nomadClient(b *testing.B, address string) *api.Client {
	b.Helper()
	c, err := api.NewClient(&api.Config{Address: address})
	if err != nil {
		b.Fatal(err)
	}
	return c
}

func endingJob(id, program string, ask any) *api.Job {
	job := api.NewBatchJob(id, id, "global", 50)
	group := api.NewTaskGroup("g", 1)
	task := api.NewTask("t", "heteroflow")
	task.Config = map[string]any{"runtime": "process", "command": program}
	if ask != nil {
		task.Config["accelerator"] = ask
	}
	cpu, memory := 10, 16
	task.Resources = &api.Resources{CPU: &cpu, MemoryMB: &memory}
	group.AddTask(task)
	job.AddTaskGroup(group)
	return job
}

func percentile(all []time.Duration, p int) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[min(len(sorted)-1, len(sorted)*p/100)]
}
