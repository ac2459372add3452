package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/e2e/cluster"
	"github.com/heteroflow/heteroflow/internal/testkit/postgres"
)

// bridge is the name of the test's own bridge, so that one of the machine's Nomad stays as it is.
const bridge = "hfbridge"

// The folders in which distributions put the CNI plugins, and Nomad's default.
var cniFolders = []string{"/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"}

// The tasks of a group with a network of its own reach each other at localhost and are reached at the port that Nomad
// published, also after the agent was killed and started, and nothing of the network is left behind. The embedded engine makes
// no such networks.
func TestBridge(t *testing.T) {
	probe := cluster.Static(t, t.TempDir(), "e2e/probe")
	found := cluster.RealNomads()
	for _, name := range wantedNomads {
		t.Run(name, func(t *testing.T) {
			if found[name] == "" {
				t.Skipf("no %s on PATH: no group had a network of its own under it", name)
			}
			cni := ""
			for _, dir := range cniFolders {
				if _, err := os.Stat(filepath.Join(dir, "bridge")); err == nil {
					cni = dir
				}
			}
			if cni == "" {
				t.Skipf("no CNI plugins in %v", cniFolders)
			}
			daemon, err := cluster.StartDaemon(t)
			if errors.Is(err, cluster.ErrNoDaemon) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			cluster.Image(t, daemon.Host, "heteroflow/probe:e2e", probe)
			t.Cleanup(func() { exec.Command("ip", "link", "delete", bridge).Run() }) //nolint:errcheck // there is none when the test ended early
			s := &suite{
				Cluster: cluster.Start(t, cluster.Options{
					Nomad: found[name], Database: postgres.SchemaURL(t), Docker: daemon.Host, Sim: simNode, CNI: cni, Bridge: bridge,
				}), t: t, probe: probe,
			}
			s.awaitCards(simCards)
			s.bridged()
		})
	}
}

const bridgedJob = `
job "bridged" {
  group "g" {
    network {
      mode = "bridge"
      port "http" { to = 8080 }
    }
    task "serve" {
      driver       = "heteroflow"
      kill_timeout = "2s"
      config {
        image   = "heteroflow/probe:e2e"
        command = "/probe"
        args    = ["serve"]
        accelerator {
          vendor = ["nvidia"]
          memory = "4GiB"
        }
      }
      resources {
        cpu    = 50
        memory = 32
      }
    }
    task "ask" {
      driver       = "heteroflow"
      kill_timeout = "2s"
      config {
        image   = "heteroflow/probe:e2e"
        command = "/probe"
        args    = ["ask", "-from", "http://localhost:8080"]
      }
      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
`

func (s *suite) bridged() {
	out, errs, code := s.CLI("heteroflow", "job", "run", s.file("bridged.nomad.hcl", bridgedJob))
	if code != 0 && code != 2 { // 2: it waits for a card that changes its form
		s.t.Fatalf("exit %d\n%s%s", code, out, errs)
	}
	running := s.awaitAllocs("bridged", "running", 1)[0]
	var alloc api.Allocation
	if err := s.Nomads(http.MethodGet, "/v1/allocation/"+running.ID, nil, &alloc); err != nil {
		s.t.Fatal(err)
	}
	if alloc.AllocatedResources == nil || len(alloc.AllocatedResources.Shared.Ports) != 1 {
		s.t.Fatalf("the ports of the group are %+v", alloc.AllocatedResources)
	}
	port := alloc.AllocatedResources.Shared.Ports[0]
	published := fmt.Sprintf("http://%s:%d/", port.HostIP, port.Value)
	answers := func() error {
		answer, err := http.Get(published)
		if err != nil {
			return err
		}
		return answer.Body.Close()
	}
	s.Eventually(30*time.Second, "the port is published", answers)
	s.Eventually(30*time.Second, "the other task has an answer at localhost", func() error {
		if log := s.log(running.ID, "ask"); log != "answered with 200 OK\n" {
			return fmt.Errorf("its log is %q", log)
		}
		return nil
	})

	s.Agent.Kill()
	s.StartAgent()
	s.awaitCards(simCards)
	if again := s.awaitAllocs("bridged", "running", 1)[0]; again.ID != running.ID {
		s.t.Errorf("after a start of the agent another allocation runs")
	}
	if err := answers(); err != nil {
		s.t.Errorf("after a start of the agent: %v", err)
	}

	s.allGivenBack()
	s.Eventually(60*time.Second, "nothing is left of the network", func() error {
		if left, err := s.everyContainer(); err != nil || len(left) > 0 {
			return fmt.Errorf("containers %v, %w", left, err)
		}
		joined, err := filepath.Glob("/sys/class/net/" + bridge + "/brif/*")
		if err == nil && len(joined) > 0 {
			err = fmt.Errorf("%v are still connected", joined)
		}
		return err
	})
}

// everyContainer is the names of all containers of the daemon, those that hold networks too.
func (s *suite) everyContainer() (names []string, err error) {
	docker, err := client.NewClientWithOpts(client.WithHost(s.Docker), client.WithAPIVersionNegotiation())
	if err != nil {
		return nil, err
	}
	defer docker.Close()
	list, err := docker.ContainerList(context.Background(), container.ListOptions{All: true})
	for _, c := range list {
		names = append(names, c.Names...)
	}
	return names, err
}
