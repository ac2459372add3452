package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/api/client"
	"github.com/heteroflow/heteroflow/e2e/cluster"
	"github.com/heteroflow/heteroflow/internal/testkit/postgres"
)

// What the service leans on may be away: /ready says which part, calls wait or are refused with a reason, and a job
// that was taken is not lost.
func TestOutages(t *testing.T) {
	database, err := postgres.Start(t.Context())
	if errors.Is(err, postgres.ErrNotInstalled) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := database.Stop(); err != nil {
			t.Error(err)
		}
	})
	consul, err := exec.LookPath("consul")
	if err != nil {
		t.Skip("no consul on PATH: outages were not tried")
	}
	s := &suite{t: t, probe: cluster.Static(t, t.TempDir(), "e2e/probe")}
	s.Cluster = cluster.Start(t, cluster.Options{Sim: simNode, Database: database.URL(), Consul: consul})
	s.awaitCards(simCards)
	s.Eventually(20*time.Second, "everything is ready", func() error { return s.readyBut() })
	s.mustSubmit(probeJob{id: "waits", args: []string{"hold"}, ask: "memory = \"40GiB\"\nmodel = [\"S4000\"]", count: 2})
	s.mustSubmit(probeJob{id: "runs", args: []string{"hold"}, ask: `memory = "4GiB"`})
	s.awaitAllocs("runs", "running", 1)

	s.nomadAway()
	s.databaseAway(database)
	s.Consuld.Kill()
	s.Eventually(30*time.Second, "/ready names consul", func() error { return s.readyBut("consul") })

	if j := s.job("waits"); j.State != "waiting" {
		t.Errorf("the job that waited is %s now", j.State)
	}
	for _, id := range []string{"runs", "patient"} {
		s.awaitAllocs(id, "running", 1)
	}
	s.stop("waits")
	s.allGivenBack()
}

// nomadAway submits a job while the engine is dead: it is taken, and runs once the engine is back.
func (s *suite) nomadAway() {
	s.t.Helper()
	s.Agent.Kill()
	s.Eventually(30*time.Second, "/ready names nomad", func() error { return s.readyBut("nomad") })
	out, code := s.submit(probeJob{id: "patient", args: []string{"hold"}, ask: `memory = "4GiB"`})
	if code == 1 || !strings.Contains(out, "Nomad") {
		s.t.Errorf("a job sent while Nomad is away must be kept, with a word about Nomad: exit %d\n%s", code, out)
	}
	s.StartAgent()
	s.Eventually(60*time.Second, "everything is ready again", func() error { return s.readyBut() })
	s.awaitAllocs("patient", "running", 1)
	s.awaitAllocs("runs", "running", 1)
}

// databaseAway stops PostgreSQL under the service: calls are refused with a reason, and all is there afterwards.
func (s *suite) databaseAway(database *postgres.Cluster) {
	s.t.Helper()
	if err := database.Halt(); err != nil {
		s.t.Fatal(err)
	}
	s.Eventually(30*time.Second, "/ready names the database", func() error { return s.readyBut("database") })
	err := s.API(http.MethodGet, "/api/v1/jobs", nil, nil)
	if err == nil || !strings.Contains(err.Error(), ": 503: ") || !strings.Contains(err.Error(), "database") {
		s.t.Errorf("want 503 that names the database, got %v", err)
	}
	if err := database.Resume(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	s.Eventually(60*time.Second, "everything is ready again", func() error { return s.readyBut() })
}

// readyBut is nil when /ready names exactly the given parts as away.
func (s *suite) readyBut(away ...string) error {
	resp, err := http.Get(s.URL + "/ready")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var ready client.Ready
	if err := json.NewDecoder(resp.Body).Decode(&ready); err != nil {
		return err
	}
	var missing []string
	for _, p := range ready.Parts {
		if !p.OK {
			missing = append(missing, string(p.Name))
		}
	}
	if diff := cmp.Diff(away, missing); diff != "" {
		return fmt.Errorf("parts away (-want +got):\n%s", diff)
	}
	if want := len(away) == 0; ready.Ready != want || (resp.StatusCode == http.StatusOK) != want {
		return fmt.Errorf("ready %v with status %d", ready.Ready, resp.StatusCode)
	}
	return nil
}
