package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/api/client"
	"github.com/heteroflow/heteroflow/e2e/cluster"
	"github.com/heteroflow/heteroflow/internal/testkit/postgres"
)

const (
	burst    = 200 // submissions at once
	burstFit = 40  // shares of 4 GiB on two cards of 80 GiB
)

// Two hundred submissions at once for room for forty: never one MiB over, none lost, on both databases.
func TestBurst(t *testing.T) {
	probe := cluster.Static(t, t.TempDir(), "e2e/probe")
	t.Run("SQLite", func(t *testing.T) { burstAtTheEdge(t, probe, "") })
	t.Run("PostgreSQL", func(t *testing.T) { burstAtTheEdge(t, probe, postgres.SchemaURL(t)) })
}

func burstAtTheEdge(t *testing.T, probe, database string) {
	const sim = "card \"nvidia\" {\n  model = \"H100-80GB\"\n  count = 2\n  memory = \"80GiB\"\n}\n"
	s := &suite{Cluster: cluster.Start(t, cluster.Options{Sim: sim, Database: database}), t: t, probe: probe}
	s.awaitCards(2)
	var job map[string]any
	text := s.hcl(probeJob{id: "burst", args: []string{"hold"}, ask: `memory = "4GiB"`})
	if err := s.API(http.MethodPost, "/v1/jobs/parse", map[string]any{"JobHCL": text, "Canonicalize": true}, &job); err != nil {
		t.Fatal(err)
	}
	stop := s.watchCapacity()
	var wg sync.WaitGroup
	errs := make(chan error, burst)
	for i := range burst {
		wg.Go(func() {
			own := map[string]any{}
			for k, v := range job {
				own[k] = v
			}
			own["ID"], own["Name"] = fmt.Sprintf("burst-%03d", i), fmt.Sprintf("burst-%03d", i)
			errs <- s.API(http.MethodPut, "/v1/jobs", map[string]any{"Job": own}, nil)
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Errorf("a submission was not taken: %v", err)
		}
	}
	s.Eventually(120*time.Second, "what fits runs and the rest waits", func() error {
		states, running := s.burstStates(), s.runningTasks()
		if states["submitted"] != burstFit || states["waiting"] != burst-burstFit || running != burstFit {
			return fmt.Errorf("jobs %v, %d tasks run%s", states, running, s.notRunning())
		}
		return nil
	})
	// Half of what runs ends: as many of the waiting take its place, and no job is lost.
	for i, id := range s.burstJobs("submitted") {
		if i%2 == 0 {
			s.stop(id)
		}
	}
	s.Eventually(120*time.Second, "the freed room is taken", func() error {
		states, running := s.burstStates(), s.runningTasks()
		if states["submitted"] != burstFit || states["waiting"] != burst-burstFit-burstFit/2 || running != burstFit {
			return fmt.Errorf("jobs %v, %d tasks run%s", states, running, s.notRunning())
		}
		return nil
	})
	if err := stop(); err != nil {
		t.Error(err)
	}
	for _, state := range []string{"waiting", "submitted"} {
		for _, id := range s.burstJobs(state) {
			if err := s.API(http.MethodDelete, "/v1/job/"+id+"?purge=true", nil, nil); err != nil {
				t.Errorf("stop %s: %v", id, err)
			}
		}
	}
	s.allGivenBack()
}

// watchCapacity looks at both books, ours and the agent's, until stop is called, which reports what was over.
func (s *suite) watchCapacity() (stop func() error) {
	end, done := make(chan struct{}), make(chan error, 1)
	go func() {
		var problems []error
		for {
			select {
			case <-end:
				done <- errors.Join(problems...)
				return
			case <-time.After(20 * time.Millisecond):
			}
			for _, card := range s.gpus() {
				if m := card.Memory; m != nil && (m.UsedMiB > m.TotalMiB || m.UsedMiB+m.FreeMiB != m.TotalMiB) {
					problems = append(problems, fmt.Errorf("%s: %d of %d MiB used, %d free", card.UUID, m.UsedMiB, m.TotalMiB, m.FreeMiB))
				}
			}
			if err := s.instancesOnce(); err != nil {
				problems = append(problems, err)
			}
		}
	}()
	return func() error { close(end); return <-done }
}

// instancesOnce fails when the agent gave one instance to two live allocations.
func (s *suite) instancesOnce() error {
	var allocs []api.AllocationListStub
	if err := s.Nomads(http.MethodGet, "/v1/allocations?resources=true", nil, &allocs); err != nil {
		return fmt.Errorf("list allocations: %w", err)
	}
	owner := map[string]string{}
	for _, a := range allocs {
		if a.ClientStatus != "running" && a.ClientStatus != "pending" || a.AllocatedResources == nil {
			continue
		}
		for _, task := range a.AllocatedResources.Tasks {
			for _, d := range task.Devices {
				for _, id := range d.DeviceIDs {
					if owner[id] != "" && owner[id] != a.ID {
						return fmt.Errorf("%s is held by %s and %s", id, owner[id], a.ID)
					}
					owner[id] = a.ID
				}
			}
		}
	}
	return nil
}

// notRunning tells what became of allocations that should run and do not.
func (s *suite) notRunning() string {
	s.t.Helper()
	var all []api.AllocationListStub
	if err := s.Nomads(http.MethodGet, "/v1/allocations", nil, &all); err != nil {
		return "; " + err.Error()
	}
	var b strings.Builder
	for _, a := range all {
		if a.ClientStatus != "running" && a.DesiredStatus == "run" {
			b.WriteString("; " + s.describe(a.JobID))
		}
	}
	return b.String()
}

func (s *suite) burstJobs(state string) []string {
	s.t.Helper()
	var ids []string
	cursor := ""
	for {
		var list client.JobList
		if err := s.API(http.MethodGet, "/api/v1/jobs?limit=100&state="+state+"&cursor="+cursor, nil, &list); err != nil {
			s.t.Fatal(err)
		}
		for _, j := range list.Items {
			ids = append(ids, j.ID)
		}
		if list.NextCursor == nil || *list.NextCursor == "" {
			return ids
		}
		cursor = *list.NextCursor
	}
}

func (s *suite) burstStates() map[string]int {
	s.t.Helper()
	counts := map[string]int{}
	for _, state := range []string{"waiting", "submitting", "submitted", "refused"} {
		if n := len(s.burstJobs(state)); n > 0 {
			counts[state] = n
		}
	}
	return counts
}

// runningTasks counts the probes that run, by the processes themselves.
func (s *suite) runningTasks() int {
	n := 0
	for _, pid := range s.processes(s.probe) {
		args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && strings.Contains(string(args), "hold") {
			n++
		}
	}
	return n
}
