package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/e2e/cluster"
)

func copyAll(w io.Writer, r io.Reader) (int64, error) { return io.Copy(w, r) }

// Two shares of 20 GiB run together on one 80 GiB card; a third of 50 GiB waits with a reason that names the need,
// the best card and the gap, and starts when one of the others ends.
func sharesOfOneCard(s *suite) {
	share := func(id, memory string) probeJob {
		return probeJob{id: id, args: []string{"hold"}, ask: fmt.Sprintf("memory = %q\nmodel = [\"H100*\"]", memory)}
	}
	for _, id := range []string{"share-a", "share-b"} {
		s.mustSubmit(share(id, "20GiB"))
		s.awaitAllocs(id, "running", 1)
	}
	a, b := s.env(s.awaitAllocs("share-a", "running", 1)[0].ID), s.env(s.awaitAllocs("share-b", "running", 1)[0].ID)
	if a["HETEROFLOW_CARDS"] == "" || a["HETEROFLOW_CARDS"] != b["HETEROFLOW_CARDS"] || a["NVIDIA_VISIBLE_DEVICES"] != a["HETEROFLOW_CARDS"] {
		s.t.Errorf("both shares must see the same one card: %q and %q, visible %q", a["HETEROFLOW_CARDS"], b["HETEROFLOW_CARDS"], a["NVIDIA_VISIBLE_DEVICES"])
	}
	if a["HETEROFLOW_MEMORY_MIB"] != "20480" {
		s.t.Errorf("share of %s MiB, want 20480", a["HETEROFLOW_MEMORY_MIB"])
	}

	out, code := s.submit(share("share-c", "50GiB"))
	if code != 2 {
		s.t.Errorf("a job that waits: want exit 2, got %d\n%s", code, out)
	}
	waiting := s.job("share-c")
	if waiting.State != "waiting" || waiting.Reason == nil {
		s.t.Fatalf("want it to wait with a reason: %+v", waiting)
	}
	for _, want := range []string{"50 GiB", "H100-80GB", "40 GiB", "10 GiB"} {
		if !strings.Contains(*waiting.Reason, want) || !strings.Contains(out, want) {
			s.t.Errorf("the reason must name %s: %q; the CLI said\n%s", want, *waiting.Reason, out)
		}
	}
	var stub []api.JobListStub
	if err := s.API(http.MethodGet, "/v1/jobs?prefix=share-c", nil, &stub); err != nil || len(stub) != 1 || stub[0].Status != "pending" {
		s.t.Errorf("Nomad's list must show it as pending: %+v, %v", stub, err)
	}

	// Not purged: its allocation's end is read below.
	if out, errs, code := s.CLI("heteroflow", "job", "stop", "share-a"); code != 0 {
		s.t.Fatalf("stop: exit %d\n%s%s", code, out, errs)
	}
	third := s.awaitAllocs("share-c", "running", 1)[0]
	ended := s.lastEnd("share-a")
	gap := time.Unix(0, third.CreateTime).Sub(ended)
	s.t.Logf("room appeared %s before the waiting job's allocation", gap)
	if gap > time.Second {
		s.t.Errorf("the waiting job's allocation came %s after the room appeared, want at most a second", gap)
	}
	if used := s.usedOn("H100-80GB"); used != 70*1024 {
		s.t.Errorf("used on the card: %d MiB, want 20 + 50 GiB", used)
	}
}

// lastEnd is when Nomad knew that the job's allocation had ended.
func (s *suite) lastEnd(job string) time.Time {
	s.t.Helper()
	var all []api.AllocationListStub
	if err := s.Nomads(http.MethodGet, "/v1/allocations", nil, &all); err != nil {
		s.t.Fatal(err)
	}
	var end time.Time
	for _, a := range all {
		if a.JobID == job {
			if at := time.Unix(0, a.ModifyTime); at.After(end) {
				end = at
			}
		}
	}
	return end
}

func (s *suite) usedOn(model string) int64 {
	s.t.Helper()
	var used int64
	for _, card := range s.gpus() {
		if card.Model == model && card.Memory != nil {
			used += card.Memory.UsedMiB
		}
	}
	return used
}

// Every nomad CLI found works against the placement service as against Nomad itself.
func nomadCLI(s *suite) {
	clis := cluster.RealNomads()
	if len(clis) == 0 {
		s.t.Skip("no nomad on PATH: the unmodified CLI was not tried")
	}
	for name, path := range clis {
		id := "cli-" + strings.ReplaceAll(name, ".", "-")
		file := s.file(id+".nomad.hcl", s.hcl(probeJob{id: id, args: []string{"hold"}, ask: "memory = \"4GiB\"\nvendor = [\"amd\"]"}))
		if out, errs, code := s.CLI(path, "job", "validate", file); code != 0 {
			s.t.Errorf("%s validate: exit %d\n%s%s", name, code, out, errs)
		}
		if out, errs, code := s.CLI(path, "job", "plan", file); code != 1 || !strings.Contains(out, "Job: \""+id+"\"") {
			s.t.Errorf("%s plan of a new job: exit %d\n%s%s", name, code, out, errs)
		}
		if out, errs, code := s.CLI(path, "job", "run", file); code != 0 && code != 2 {
			s.t.Fatalf("%s run: exit %d\n%s%s", name, code, out, errs)
		}
		alloc := s.awaitAllocs(id, "running", 1)[0]
		if out, errs, code := s.CLI(path, "job", "status", id); code != 0 || !strings.Contains(out, "running") || !strings.Contains(out, alloc.ID[:8]) {
			s.t.Errorf("%s status: exit %d\n%s%s", name, code, out, errs)
		}
		out, errs, code := s.CLI(path, "job", "plan", file)
		if code != 0 || strings.Contains(out, "+/-") || strings.Contains(out, "create") {
			s.t.Errorf("%s plan after run must show no change: exit %d\n%s%s", name, code, out, errs)
		}
		if out, errs, code := s.CLI(path, "job", "run", file); code != 0 {
			s.t.Errorf("%s run again: exit %d\n%s%s", name, code, out, errs)
		}
		if again := s.awaitAllocs(id, "running", 1)[0]; again.ID != alloc.ID || again.TaskStates["probe"].Restarts != 0 {
			s.t.Errorf("%s: the same file run twice must restart nothing: %s became %s", name, alloc.ID, again.ID)
		}
		s.Eventually(20*time.Second, name+" alloc logs shows the probe", func() error {
			out, errs, code := s.CLI(path, "alloc", "logs", alloc.ID)
			if code != 0 || !strings.Contains(out, "HETEROFLOW_CARDS") {
				return fmt.Errorf("exit %d\n%s%s", code, out, errs)
			}
			return nil
		})
		if out, errs, code := s.CLI(path, "job", "stop", "-purge", id); code != 0 {
			s.t.Errorf("%s stop: exit %d\n%s%s", name, code, out, errs)
		}
		s.awaitAllocs(id, "running", 0)
	}
}

// A task sees its grant and nothing else, whatever its env, a template or its image say.
func visibleCards(s *suite) {
	widen := `
env {
  NVIDIA_VISIBLE_DEVICES    = "all"
  ASCEND_RT_VISIBLE_DEVICES = "0,1,2,3"
}
template {
  data        = "NVIDIA_VISIBLE_DEVICES=all\nCUDA_VISIBLE_DEVICES=0,1,2\nHIP_VISIBLE_DEVICES=0"
  destination = "local/widen.env"
  env         = true
}`
	s.checkVisible(probeJob{id: "visible", kind: "batch", args: []string{"env"}, ask: "memory = \"8GiB\"\nvendor = [\"nvidia\"]", extra: widen}, true)
	s.checkVisible(probeJob{id: "blind", kind: "batch", args: []string{"env"}, extra: widen}, false)
}

func visibleCardsInContainers(s *suite) {
	widen := "env {\n  NVIDIA_VISIBLE_DEVICES = \"all\"\n}"
	s.checkVisible(probeJob{id: "visible-box", kind: "batch", args: []string{"env"}, image: "heteroflow/probe-all:e2e", ask: "memory = \"8GiB\"\nvendor = [\"nvidia\"]", extra: widen}, true)
	s.checkVisible(probeJob{id: "visible-image", kind: "batch", args: []string{"env"}, image: "heteroflow/probe-all:e2e", ask: "memory = \"8GiB\"\nvendor = [\"nvidia\"]"}, true)
	s.checkVisible(probeJob{id: "blind-box", kind: "batch", args: []string{"env"}, image: "heteroflow/probe-all:e2e"}, false)
}

func (s *suite) checkVisible(j probeJob, granted bool) {
	s.t.Helper()
	s.mustSubmit(j)
	env := s.env(s.awaitAllocs(j.id, "complete", 1)[0].ID)
	want := map[string]string{"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": "-1"}
	if granted {
		card := env["HETEROFLOW_CARDS"]
		if card == "" || strings.Contains(card, ",") {
			s.t.Errorf("%s: granted cards %q, want one", j.id, card)
		}
		want = map[string]string{"NVIDIA_VISIBLE_DEVICES": card, "CUDA_VISIBLE_DEVICES": card}
	} else if env["HETEROFLOW_CARDS"] != "" {
		s.t.Errorf("%s asked for nothing and was granted %s", j.id, env["HETEROFLOW_CARDS"])
	}
	for _, hidden := range []string{"HIP_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "MUSA_VISIBLE_DEVICES", "MLU_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"} {
		want[hidden] = "-1"
	}
	for name, value := range want {
		if env[name] != value {
			s.t.Errorf("%s: %s=%q, want %q", j.id, name, env[name], value)
		}
	}
}
