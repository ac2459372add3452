package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/e2e/cluster"
	"github.com/heteroflow/heteroflow/internal/testkit/postgres"
)

// Nomad's server is away while tasks end: how they ended is told when it is back, and what ran on is the same allocation.
// HETEROFLOW_E2E_LONG keeps it away for an hour. The embedded engine is server and client in one.
func TestServerAway(t *testing.T) {
	probe := cluster.Static(t, t.TempDir(), "e2e/probe")
	found, docker := cluster.RealNomads(), cluster.Docker()
	if docker != "" {
		cluster.Image(t, docker, "heteroflow/probe:e2e", probe)
	}
	for _, name := range wantedNomads {
		t.Run(name, func(t *testing.T) {
			if found[name] == "" {
				t.Skipf("no %s on PATH: no task ended without a server of it", name)
			}
			t.Parallel()
			o := cluster.Options{Nomad: found[name], Database: postgres.SchemaURL(t), Docker: docker, Sim: simNode}
			s := &suite{Cluster: cluster.Start(t, o), t: t, probe: probe}
			s.awaitCards(simCards)
			s.serverAway()
		})
	}
}

func (s *suite) serverAway() {
	dir := s.t.TempDir()
	end := filepath.Join(dir, "end")
	jobs := []probeJob{{id: "ends", kind: "batch", args: []string{"exit", "-code", "7", "-after", end}, ask: "vendor = [\"nvidia\"]\nmemory = \"4GiB\""}}
	if s.Docker != "" {
		jobs = append(jobs, probeJob{
			id: "ends-in-a-container", kind: "batch", image: "heteroflow/probe:e2e", args: []string{"exit", "-code", "8", "-after", "/claims/end"},
			config: fmt.Sprintf("network_mode = \"none\"\nvolumes = [%q]", dir+":/claims"),
		})
	}
	stays := probeJob{id: "stays", args: []string{"hold"}}
	for _, j := range append(jobs, stays) {
		s.mustSubmit(j)
		s.awaitAllocs(j.id, api.AllocClientStatusRunning, 1)
	}
	stayed := s.awaitAllocs(stays.id, api.AllocClientStatusRunning, 1)[0].ID
	s.NomadServer.Kill()
	write(s.t, end, "", 0o644)
	if os.Getenv("HETEROFLOW_E2E_LONG") != "" {
		time.Sleep(time.Hour) // this is what is tested
	}
	s.StartNomadServer()
	for i, j := range jobs {
		want := fmt.Sprintf("Exit Code: %d", 7+i)
		s.Eventually(3*time.Minute, j.id+" is told with "+want, func() error {
			if said := s.describe(j.id); !strings.Contains(said, want) {
				return fmt.Errorf("%s", said)
			}
			return nil
		})
	}
	if again := s.awaitAllocs(stays.id, api.AllocClientStatusRunning, 1)[0].ID; again != stayed {
		s.t.Errorf("another allocation runs: %s, not %s", again, stayed)
	}
	s.allGivenBack()
}
