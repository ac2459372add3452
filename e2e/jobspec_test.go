package e2e

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/api/client"
)

// example is the path of an example job of the repository.
func example(name string) string {
	_, here, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(here), "..", "jobspecs", name)
}

// runExample submits an example with variables, by the CLI that users have.
func (s *suite) runExample(name string, vars ...string) {
	s.t.Helper()
	args := []string{"job", "run"}
	for _, v := range vars {
		args = append(args, "-var", v)
	}
	out, errs, code := s.CLI("heteroflow", append(args, example(name))...)
	if code != 0 && code != 2 { // 2: it waits, for example until a card has changed its form
		s.t.Fatalf("run %s: exit %d\n%s%s", name, code, out, errs)
	}
}

// asProcess are the variables that run an example without a container.
func (s *suite) asProcess(program string) []string {
	return []string{"runtime=process", "command=" + program}
}

// provider is where services are registered, and so where the gateway looks.
func (s *suite) provider() string {
	if s.Consuls != "" {
		return "provider=consul"
	}
	return "provider=nomad"
}

// Every example is run: in containers where there is a Docker daemon, else as processes.
func jobspecExamples(s *suite) {
	batch := []string{`args=["train", "-steps", "3"]`}
	if s.Docker != "" {
		batch = append(batch, "image=heteroflow/probe:e2e", "command=/probe")
	} else {
		batch = append(batch, s.asProcess(s.probe)...)
	}
	s.runExample("whole-card-batch.nomad.hcl", batch...)
	alloc := s.awaitAllocs("train", "complete", 1)[0]
	s.Eventually(20*time.Second, "the log is whole", func() error {
		if log := s.log(alloc.ID, "main"); !strings.Contains(log, "step 3 of 3") {
			return fmt.Errorf("log: %q", log)
		}
		return nil
	})
	s.runExample("process.nomad.hcl")
	alloc = s.awaitAllocs("process-example", "complete", 1)[0]
	s.Eventually(20*time.Second, "the process shows its share", func() error {
		if log := s.log(alloc.ID, "main"); !strings.Contains(log, "memory: 8192 MiB") || !strings.Contains(log, "cards: SIM-") {
			return fmt.Errorf("log: %q", log)
		}
		return nil
	})
	s.runExample("shared-inference.nomad.hcl", append(s.engine(), s.provider())...)
	s.awaitAllocs("sim-llm", "running", 2)
}

// engine are the variables of the inference example for what this machine has.
func (s *suite) engine() []string {
	if s.Docker != "" {
		return nil // the defaults are containers
	}
	return s.asProcess(s.inference)
}

// The driver takes the image of the brand whose card was granted, and moves to the other brand when one is full.
func twoBrands(s *suite) {
	s.runExample("two-brand-service.nomad.hcl", s.provider())
	alloc := s.awaitAllocs("two-brand", "running", 1)[0]
	var card client.GPU
	for _, c := range s.gpus() {
		for _, use := range c.Jobs {
			if use.JobID == "two-brand" {
				card = c
			}
		}
	}
	if card.UUID == "" {
		s.t.Fatalf("no card shows the job: %s", s.describe("two-brand"))
	}
	image := s.containerImage(alloc.ID)
	if want := "heteroflow/sim-inference:" + card.Vendor; image != want {
		s.t.Errorf("granted a card of %s, image %s, want %s", card.Vendor, image, want)
	}
}

// containerImage is the image of the container that runs an allocation.
func (s *suite) containerImage(alloc string) string {
	s.t.Helper()
	containers := s.containers(alloc)
	if len(containers) != 1 {
		s.t.Fatalf("want one container of %s, got %v", alloc, containers)
	}
	return containers[0].Image
}

// countTokens sums a counter over a page of metrics.
func countTokens(metrics, name string) float64 {
	total := 0.0
	for _, line := range strings.Split(metrics, "\n") {
		if strings.HasPrefix(line, name+"{") {
			var v float64
			if _, err := fmt.Sscan(line[strings.LastIndex(line, " ")+1:], &v); err == nil {
				total += v
			}
		}
	}
	return total
}
