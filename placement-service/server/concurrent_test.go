package server_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/embedded"
	"github.com/heteroflow/heteroflow/internal/testkit/postgres"
)

// TestConcurrent_NeverOverAndNoneLost submits 200 jobs at once at the edge of what four cards of 80 GiB hold: 32 of
// them fit at a time. Nothing may ever be over capacity, and each job must run in the end.
func TestConcurrent_NeverOverAndNoneLost(t *testing.T) {
	t.Run("SQLite", func(t *testing.T) { testConcurrent(t, 1) })
	t.Run("PostgreSQL", func(t *testing.T) { testConcurrent(t, 1, database(postgres.SchemaURL(t))) })
	t.Run("PostgreSQL, two instances", func(t *testing.T) { testConcurrent(t, 2, database(postgres.SchemaURL(t))) })
}

func testConcurrent(t *testing.T, instances int, opts ...option) {
	const jobs, fit = 200, 32
	nodes := embedded.SimNodes(2, 2, accel.NVIDIA, "A100-SXM4-80GB", 81920, accel.Shared)
	e, _ := startEngine(t, nil, "", nodes)
	services := make([]*service, instances)
	for i := range services {
		services[i] = startService(t, e.Addr(), opts...).ready(4)
	}
	var all sync.WaitGroup
	for i := range jobs {
		all.Go(func() {
			s := services[i%instances]
			if _, _, err := s.nomad.Jobs().Register(share(fmt.Sprintf("job-%03d", i), 1, "10GiB"), nil); err != nil {
				t.Errorf("job %d: %v", i, err)
			}
		})
	}
	stop := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for {
			select {
			case <-stop:
				return
			default:
				checkNotOver(t, services[0])
			}
		}
	}()
	all.Wait()
	s := services[0]
	eventually(t, "the cards are full", func() bool { return s.usedUnits() == 10*fit && allocated(s) == 10*fit })
	eventually(t, "the rest waits", func() bool { return len(s.items("/api/v1/queue")) == jobs-fit })
	done := map[string]bool{}
	for len(done) < jobs {
		progress := false
		for _, job := range s.items("/api/v1/jobs?limit=1000") {
			id := job["id"].(string)
			if done[id] || len(job["placements"].([]any)) == 0 {
				continue
			}
			if _, _, err := s.nomad.Jobs().Deregister(id, false, nil); err != nil {
				t.Fatal(err)
			}
			done[id], progress = true, true
		}
		if !progress {
			want := min(fit, jobs-len(done))
			eventually(t, fmt.Sprintf("%d more jobs run (%d done)", want, len(done)), func() bool { return placed(s, done) > 0 })
		}
	}
	close(stop)
	<-watched
	for _, s := range services {
		eventually(t, "nothing is left over", func() bool { return s.usedUnits() == 0 && len(s.items("/api/v1/queue")) == 0 })
	}
}

func placed(s *service, done map[string]bool) int {
	n := 0
	for _, job := range s.items("/api/v1/jobs?limit=1000") {
		if !done[job["id"].(string)] && len(job["placements"].([]any)) > 0 {
			n++
		}
	}
	return n
}

// allocated sums what allocations hold.
func allocated(s *service) int {
	n := 0
	for _, g := range s.gpus() {
		for _, u := range g["jobs"].([]any) {
			n += int(u.(map[string]any)["units"].(float64))
		}
	}
	return n
}

func checkNotOver(t *testing.T, s *service) {
	for _, g := range s.gpus() {
		units := g["units"].(map[string]any)
		if units["used"].(float64) > units["total"].(float64) {
			var jobs []string
			for _, u := range g["jobs"].([]any) {
				jobs = append(jobs, u.(map[string]any)["job_id"].(string))
			}
			t.Errorf("card %s holds %v of %v units, allocations of %v\n%s", g["uuid"], units["used"], units["total"], jobs, claimsOn(s, g["group"]))
		}
	}
}

// claimsOn lists what the ledger has on a pool, for a failure's message.
func claimsOn(s *service, group any) string {
	var out strings.Builder
	for _, r := range s.items("/api/v1/reservations?limit=1000") {
		for _, c := range r["claims"].([]any) {
			if claim := c.(map[string]any); claim["group"] == group {
				fmt.Fprintf(&out, "  %s %s %v units, allocation %v\n", r["job_id"], r["state"], claim["units"], claim["alloc_id"])
			}
		}
	}
	return out.String()
}
