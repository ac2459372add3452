package e2e

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// stockDevice is the device block of a job that was written for Nomad's own NVIDIA plugin.
const stockDevice = `
resources {
  cpu    = 50
  memory = 32
  device "nvidia/gpu" {
    count = 2
    constraint {
      attribute = "${device.attr.memory}"
      operator  = ">="
      value     = "20 GiB"
    }
  }
}`

// stockDriver is the same job under a driver of Nomad's own, which knows nothing of us. The embedded engine has none.
func (s *suite) stockDriver(id string) string {
	return fmt.Sprintf(`
job %q {
  group "g" {
    task "probe" {
      driver = "raw_exec"
      config {
        command = %q
        args    = ["hold"]
      }
      %s
    }
  }
}
`, id, s.probe, stockDevice)
}

// stock is a job with plain device blocks and without any word of ours but the driver's name.
func (s *suite) stock(id, resources string, count int) string {
	return fmt.Sprintf(`
job %q {
  group "g" {
    count = %d
    task "probe" {
      driver       = "heteroflow"
      kill_timeout = "2s"
      config {
        runtime = "process"
        command = %q
        args    = ["hold"]
      }
      %s
    }
  }
}
`, id, count, s.probe, resources)
}

// straight registers a job with Nomad itself, past the placement service.
func (s *suite) straight(hcl string) {
	s.t.Helper()
	var job map[string]any
	if err := s.Nomads(http.MethodPost, "/v1/jobs/parse", map[string]any{"JobHCL": hcl, "Canonicalize": true}, &job); err != nil {
		s.t.Fatal(err)
	}
	if err := s.Nomads(http.MethodPost, "/v1/jobs", map[string]any{"Job": job}, nil); err != nil {
		s.t.Fatal(err)
	}
}

// The device block of Nomad's own NVIDIA plugin runs unchanged on whole cards, sent to Nomad and to the placement
// service alike: the task sees two cards, both big enough.
func stockJobspec(s *suite, _ *box) {
	s.straight(s.stock("stock-straight", stockDevice, 1))
	out, errs, code := s.CLI("heteroflow", "job", "run", s.file("stock-served.nomad.hcl", s.stock("stock-served", stockDevice, 1)))
	if code != 0 {
		s.t.Fatalf("run: exit %d\n%s%s", code, out, errs)
	}
	jobs := []string{"stock-straight", "stock-served"}
	if s.Nomad != "" {
		s.straight(s.stockDriver("stock-driver"))
		jobs = append(jobs, "stock-driver")
	}
	memory := map[string]int{}
	for _, c := range boxCards {
		if c.vendor == "nvidia" {
			memory[c.uuid] = c.memory
		}
	}
	taken := map[string]string{}
	for _, job := range jobs {
		visible := s.env(s.awaitAllocs(job, "running", 1)[0].ID)["NVIDIA_VISIBLE_DEVICES"]
		cards := strings.Split(visible, ",")
		if len(cards) != 2 {
			s.t.Errorf("%s sees %q, want two cards", job, visible)
		}
		for _, uuid := range cards {
			if other := taken[uuid]; other != "" {
				s.t.Errorf("%s sees %s, which %s has", job, uuid, other)
			}
			taken[uuid] = job
			if memory[uuid] < 20<<10 {
				s.t.Errorf("%s sees %s with %d MiB, want 20 GiB or more", job, uuid, memory[uuid])
			}
		}
	}
}

// Cards that waiting jobs need go sick while the jobs wait: one that is sent straight to Nomad and waits for every card of
// a model, and one that waits at the placement service. When the cards are well again, both start.
func sickCardAndWaitingJobs(s *suite, b *box) {
	device := func(n int) string {
		return fmt.Sprintf("resources {\n  cpu = 50\n  memory = 32\n  device \"nvidia/gpu/A40\" {\n    count = %d\n  }\n}", n)
	}
	s.straight(s.stock("holds-plain", device(1), 1))
	s.mustSubmit(probeJob{id: "holds-block", args: []string{"hold"}, ask: `vendor = ["kunlunxin"]`})
	s.awaitAllocs("holds-plain", "running", 1)
	s.awaitAllocs("holds-block", "running", 1)
	s.straight(s.stock("waits-plain", device(8), 1))
	s.mustSubmit(probeJob{id: "waits-block", args: []string{"hold"}, ask: "count = 8\nmodel = [\"P800*\"]"})
	s.awaitRefusal("waits-plain", func(m *api.AllocationMetric) bool { return len(m.DimensionExhausted) > 0 })

	defer b.mend(s.t)
	b.playNVIDIA(s.t, false, 0)
	b.present(s.t, false)
	s.awaitOffered(map[string]string{deadCard: "nvidia-smi: Unknown Error", sickP800: "the card does not answer on the PCI bus"})
	s.straight(s.stock("late-plain", device(8), 1))
	// From now on Nomad holds that no node of this class has what the job needs, and asks none of them again.
	s.awaitRefusal("late-plain", func(m *api.AllocationMetric) bool { return m.ConstraintFiltered["missing devices"] > 0 })
	s.stop("holds-plain")
	s.stop("holds-block")
	s.Eventually(detectionSettle, "the cards are given back", func() error {
		if n := len(s.processes(s.probe)); n != 0 {
			return fmt.Errorf("%d tasks run", n)
		}
		return nil
	})
	if j := s.job("waits-block"); j.State != "waiting" || j.Reason == nil {
		s.t.Errorf("with a sick card the job must wait for a reason: %+v", j)
	}

	b.mend(s.t)
	s.hasEight("waits-block", "HETEROFLOW_CARDS")
	// Of the two that wait for the same eight cards one runs, and the other when it ends.
	first := ""
	s.Eventually(detectionSettle, "one of the waiting jobs starts", func() error {
		for _, job := range []string{"waits-plain", "late-plain"} {
			if len(s.withStatus(job, "running")) > 0 {
				first = job
				return nil
			}
		}
		return fmt.Errorf("%s; %s", s.describe("waits-plain"), s.describe("late-plain"))
	})
	s.hasEight(first, "NVIDIA_VISIBLE_DEVICES")
	s.stop(first)
	for _, job := range []string{"waits-plain", "late-plain"} {
		if job != first {
			s.hasEight(job, "NVIDIA_VISIBLE_DEVICES")
		}
	}
}

// hasEight waits until a job's task runs, with eight cards.
func (s *suite) hasEight(job, variable string) {
	s.t.Helper()
	cards := strings.Split(s.env(s.awaitAllocs(job, "running", 1)[0].ID)[variable], ",")
	if slices.Sort(cards); len(slices.Compact(cards)) != 8 {
		s.t.Errorf("%s has the cards %v, want 8", job, cards)
	}
}

// awaitRefusal waits until the last word about a job without an allocation is this.
func (s *suite) awaitRefusal(job string, is func(*api.AllocationMetric) bool) {
	s.t.Helper()
	s.Eventually(detectionSettle, job+" is refused for the reason", func() error {
		var evals []api.Evaluation
		if err := s.Nomads(http.MethodGet, "/v1/job/"+url.PathEscape(job)+"/evaluations", nil, &evals); err != nil {
			return err
		}
		var last *api.AllocationMetric
		var newest uint64
		for _, e := range evals {
			if m := e.FailedTGAllocs["g"]; m != nil && e.ModifyIndex > newest {
				last, newest = m, e.ModifyIndex
			}
		}
		if last == nil || !is(last) {
			return fmt.Errorf("%d evaluations, the last refusal is %+v; %s", len(evals), last, s.describe(job))
		}
		return nil
	})
}
