package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/e2e/cluster"
)

// A task's model is fetched with its progress told, over kill -9 of the driver in the middle; the task is told ready, its
// engine is made out; one that hangs is ended by its watchdog and started anew, with the model that is there.
func TestModel(t *testing.T) {
	inference := cluster.Static(t, t.TempDir(), "cmd/heteroflow-sim-inference")
	run := func(t *testing.T, nomad string) {
		modelOfATask(&suite{Cluster: cluster.Start(t, cluster.Options{Nomad: nomad}), t: t, inference: inference})
	}
	t.Run("embedded", func(t *testing.T) { run(t, "") })
	found := cluster.RealNomads()
	for _, name := range wantedNomads {
		t.Run(name, func(t *testing.T) {
			if found[name] == "" {
				t.Skipf("no %s on PATH", name)
			}
			run(t, found[name])
		})
	}
}

// slowModel is a server whose first answer stops in the middle.
type slowModel struct {
	*httptest.Server
	body []byte
	mu   sync.Mutex
	from []string // ranges asked for
}

func newSlowModel(t *testing.T) *slowModel {
	m := &slowModel{body: bytes.Repeat([]byte("0123456789abcdef"), 256<<10)}
	m.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.mu.Lock()
		m.from = append(m.from, r.Header.Get("Range"))
		first := len(m.from) == 1
		m.mu.Unlock()
		w.Header().Set("ETag", `"1"`)
		if !first {
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(m.body))
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(m.body)))
		w.Write(m.body[:len(m.body)/2])       //nolint:errcheck // the client is killed
		http.NewResponseController(w).Flush() //nolint:errcheck // the client is killed
		<-r.Context().Done()
	}))
	t.Cleanup(m.Close)
	return m
}

func (m *slowModel) ranges() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]string(nil), m.from...)
}

func modelOfATask(s *suite) {
	m := newSlowModel(s.t)
	sum := sha256.Sum256(m.body)
	file := s.file("model.nomad.hcl", fmt.Sprintf(`
job "model" {
  group "g" {
    network {
      port "http" {}
    }
    restart {
      attempts = 5
      interval = "10m"
      delay    = "1s"
      mode     = "fail"
    }
    task "llm" {
      driver       = "heteroflow"
      kill_timeout = "2s"
      config {
        runtime = "process"
        command = %q
        args    = ["-model", "tiny", "-startup-delay", "1s"]
        model {
          source   = "%s/tiny.gguf?key=hunter2"
          checksum = "sha256:%s"
        }
        readiness {
          port     = "http"
          interval = "1s"
        }
        liveness {
          port     = "http"
          interval = "1s"
          timeout  = "1s"
          failures = 2
        }
      }
      resources {
        cpu    = 50
        memory = 64
      }
    }
  }
}
`, s.inference, m.URL, hex.EncodeToString(sum[:])))
	if out, errs, code := s.CLI("heteroflow", "job", "run", file); code != 0 && code != 2 { // 2: no node is there yet
		s.t.Fatalf("run: exit %d\n%s%s", code, out, errs)
	}
	s.awaitEvent("Fetching model tiny.gguf: 50 % (2.0 MiB of 4.0 MiB")
	s.killPlugin("heteroflow")
	s.awaitEvent("Ready after ")
	s.awaitEvent("Serving: simulated with tiny")
	if got := m.ranges(); len(got) != 2 || got[1] != fmt.Sprintf("bytes=%d-", len(m.body)/2) {
		s.t.Errorf("the model was asked for by ranges %q, want the whole and then the second half", got)
	}
	for _, pid := range s.processes(s.inference) {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			s.t.Fatal(err)
		}
	}
	s.awaitEvent("not alive, 2 checks failed: no answer within 1s")
	s.Eventually(time.Minute, "the task that hung is started anew", func() error {
		state := s.task()
		if state == nil || state.Restarts < 1 || state.State != "running" {
			return fmt.Errorf("state is %+v", state)
		}
		return nil
	})
	if got := m.ranges(); len(got) != 2 {
		s.t.Errorf("the model was fetched again: %q", got)
	}
	if strings.Contains(s.Agent.Output(), "hunter2") && s.Nomad == "" { // Nomad itself may print a job
		s.t.Error("the source's secret is in the log")
	}
	s.stop("model")
	s.awaitAllocs("model", "running", 0)
	s.Eventually(30*time.Second, "the model is given back and stays", func() error {
		uses, err := filepath.Glob(filepath.Join(s.Dir, "state", "models", "uses", "*", "*"))
		kept, keptErr := filepath.Glob(filepath.Join(s.Dir, "state", "models", "file-*", "model"))
		if err != nil || keptErr != nil || len(uses) != 0 || len(kept) != 1 {
			return fmt.Errorf("uses %v, models %v", uses, kept)
		}
		return nil
	})
}

// task is the state of the one task of job "model"; nil when there is none.
func (s *suite) task() *api.TaskState {
	s.t.Helper()
	for _, a := range s.allocs("model") {
		var alloc api.Allocation
		if err := s.Nomads(http.MethodGet, "/v1/allocation/"+a.ID, nil, &alloc); err == nil {
			return alloc.TaskStates["llm"]
		}
	}
	return nil
}

// awaitEvent waits until the task's owner is told the text. Events come and go: Nomad keeps ten.
func (s *suite) awaitEvent(text string) {
	s.t.Helper()
	s.Eventually(90*time.Second, fmt.Sprintf("the event %q", text), func() error {
		state := s.task()
		if state == nil {
			return fmt.Errorf("no task yet; %s", s.describe("model"))
		}
		var all []string
		for _, e := range state.Events {
			all = append(all, e.DisplayMessage)
			if strings.Contains(e.DisplayMessage, text) {
				return nil
			}
		}
		return fmt.Errorf("told was:\n%s", strings.Join(all, "\n"))
	})
}
