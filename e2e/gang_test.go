package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/e2e/cluster"
	"github.com/heteroflow/heteroflow/internal/testkit/postgres"
)

const gangCards = 4

var gangNode = fmt.Sprintf(`
seed = 1
card "nvidia" {
  model  = "H100-80GB"
  count  = %d
  memory = "80GiB"
}
`, gangCards)

// Gangs on every engine at once: members start together or not at all, each with its rank; one that is lost has the gang begin
// anew, one that ends with success does not, and one that Nomad does not bring back ends the job.
func TestGangs(t *testing.T) {
	probe := cluster.Static(t, t.TempDir(), "e2e/probe")
	found := cluster.RealNomads()
	var engines sync.WaitGroup
	defer engines.Wait()
	for _, name := range append([]string{"embedded"}, wantedNomads...) {
		engines.Go(func() {
			t.Run(name, func(t *testing.T) {
				o := cluster.Options{Nomad: found[name], Sim: gangNode}
				if name != "embedded" {
					if o.Nomad == "" {
						t.Skipf("no %s on PATH: gangs met no such real Nomad", name)
					}
					o.Database = postgres.SchemaURL(t)
				}
				s := &suite{Cluster: cluster.Start(t, o), t: t, probe: probe}
				s.awaitCards(gangCards)
				s.gangs()
			})
		})
	}
}

func (s *suite) gangs() {
	s.t.Helper()
	s.mustRun("train", s.gang("train", gangCards, "restart_gang"))
	members := s.awaitAllocs("train", "running", gangCards)
	s.together(members, "default/train-1")

	// Another has no room for all, and holds nothing.
	s.mustRun("rival", s.gang("rival", 2, "restart_gang"))
	s.Eventually(30*time.Second, "the rival waits as a whole", func() error {
		if j := s.job("rival"); string(j.State) != "waiting" || j.Reason == nil || !strings.Contains(*j.Reason, "the gang needs 2 members") {
			return fmt.Errorf("%s", s.describe("rival"))
		}
		return nil
	})
	if list := s.allocs("rival"); len(list) > 0 {
		s.t.Errorf("the rival has allocations: %s", s.describe("rival"))
	}
	s.stop("rival")

	// One is lost: the others are called back before it is there again, and all start anew.
	s.tell(members[1].ID, "SIGKILL")
	s.awaitAllocs("train", "failed", 1)
	again := s.awaitAllocs("train", "running", gangCards)
	s.together(again, "default/train-2")

	// Lost once more, it is not brought back by its group's blocks, and the job ends.
	for _, a := range again {
		if !slices.ContainsFunc(members, func(m api.AllocationListStub) bool { return m.ID == a.ID }) {
			s.tell(a.ID, "SIGKILL")
		}
	}
	s.Eventually(60*time.Second, "the job has ended", func() error {
		if j := s.job("train"); string(j.State) != "stopped" {
			return fmt.Errorf("%s", s.describe("train"))
		}
		return nil
	})
	s.awaitAllocs("train", "running", 0)
	s.allGivenBack()

	// Members that end with success leave the others alone.
	s.mustRun("parts", s.gang("parts", gangCards, "restart_gang"))
	members = s.awaitAllocs("parts", "running", gangCards)
	s.together(members, "default/parts-1")
	s.tell(members[2].ID, "SIGUSR1")
	s.awaitAllocs("parts", "complete", 1)
	rest := s.awaitAllocs("parts", "running", gangCards-1)
	s.tell(rest[0].ID, "SIGUSR1")
	s.awaitAllocs("parts", "complete", 2)
	for _, a := range s.awaitAllocs("parts", "running", gangCards-2) {
		if n := a.TaskStates["probe"].Restarts; n > 0 {
			s.t.Errorf("a member was restarted %d times since others ended with success", n)
		}
	}
	s.allGivenBack()
}

// gang is a job whose members are lost when they fail, and are replaced once.
func (s *suite) gang(id string, members int, onLost string) string {
	return fmt.Sprintf(`
job %q {
  type = "batch"
  group "g" {
    count = %d
    network {
      port "master" {}
    }
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts       = 1
      interval       = "1h"
      delay          = "5s"
      delay_function = "constant"
      unlimited      = false
    }
    task "probe" {
      driver       = "heteroflow"
      kill_timeout = "2s"
      config {
        runtime = "process"
        command = %q
        args    = ["hold"]
        accelerator {
          count = 1
        }
        gang {
          on_lost = %q
        }
      }
      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
`, id, members, s.probe, onLost)
}

func (s *suite) mustRun(id, hcl string) {
	s.t.Helper()
	out, errs, code := s.CLI("heteroflow", "job", "run", s.file(id+".nomad.hcl", hcl))
	if code != 0 && code != 2 { // 2: it waits
		s.t.Fatalf("run %s: exit %d\n%s%s", id, code, out, errs)
	}
}

func (s *suite) tell(alloc, name string) {
	s.t.Helper()
	body := map[string]string{"Task": "probe", "Signal": name}
	if err := s.Nomads(http.MethodPost, "/v1/client/allocation/"+alloc+"/signal", body, nil); err != nil {
		s.t.Fatalf("send %s to %s: %v", name, alloc, err)
	}
}

// together checks what the members of one start were told.
func (s *suite) together(members []api.AllocationListStub, rendezvous string) {
	s.t.Helper()
	ranks := map[string]bool{}
	where := ""
	for _, a := range members {
		env := s.envOf(a.ID, rendezvous)
		ranks[env["RANK"]] = true
		at := env["MASTER_ADDR"] + ":" + env["MASTER_PORT"]
		if where == "" {
			where = at
		}
		if env["WORLD_SIZE"] != fmt.Sprint(len(members)) || at != where || env["MASTER_ADDR"] == "" || env["MASTER_PORT"] == "" {
			s.t.Errorf("rank %s of %s meets at %s; want %d at %s", env["RANK"], env["WORLD_SIZE"], at, len(members), where)
		}
	}
	if len(ranks) != len(members) {
		s.t.Errorf("%d ranks of %d members, which meet at %q", len(ranks), len(members), where)
	}
}

// envOf is the environment that a probe printed in the start of that rendezvous.
func (s *suite) envOf(alloc, rendezvous string) map[string]string {
	s.t.Helper()
	var env map[string]string
	s.Eventually(30*time.Second, "the probe printed its environment", func() error {
		for line := range strings.Lines(s.log(alloc, "probe")) {
			env = nil
			if json.Unmarshal([]byte(line), &env) == nil && env["PET_RDZV_ID"] == rendezvous {
				return nil
			}
		}
		return fmt.Errorf("none for %s yet, the last is %s", rendezvous, env["PET_RDZV_ID"])
	})
	return env
}
