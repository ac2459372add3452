package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"
)

// kill -9 of the placement service, of either plugin and of the agent: running tasks keep running with the same
// cards, and every view agrees again.
func killNine(s *suite) {
	jobs := []probeJob{
		{id: "stay-share", args: []string{"hold"}, ask: "memory = \"20GiB\"\nvendor = [\"nvidia\"]"},
		{id: "stay-whole", args: []string{"hold"}, ask: `vendor = ["ascend"]`},
	}
	if s.Docker != "" {
		jobs = append(jobs, probeJob{id: "stay-box", args: []string{"hold"}, image: "heteroflow/probe:e2e", ask: "memory = \"10GiB\"\nvendor = [\"amd\"]"})
	}
	before := map[string]held{}
	for _, j := range jobs {
		s.mustSubmit(j)
		before[j.id] = s.held(j.id)
	}
	for _, step := range []struct {
		name string
		kill func()
	}{
		{"the placement service", func() { s.Server.Kill(); s.StartServer() }},
		{"the device plugin", func() { s.killPlugin("heteroflow-device") }},
		{"the task driver", func() { s.killPlugin("heteroflow") }},
		{"the agent", func() { s.Agent.Kill(); s.StartAgent() }},
	} {
		step.kill()
		s.Eventually(60*time.Second, "every view agrees after kill -9 of "+step.name, func() error {
			for _, j := range jobs {
				now, err := s.holds(j.id)
				if err != nil {
					return err
				}
				if now != before[j.id] {
					return fmt.Errorf("%s: %+v became %+v", j.id, before[j.id], now)
				}
			}
			return nil
		})
		s.t.Logf("after kill -9 of %s the tasks run on with the same cards", step.name)
	}
	// What was adopted can still be stopped, and its exit is seen.
	for _, j := range jobs {
		s.stop(j.id)
		s.awaitAllocs(j.id, "running", 0)
	}
	s.Eventually(30*time.Second, "no process or container is left", func() error {
		for _, p := range s.processes(s.probe) {
			return fmt.Errorf("process %d is left", p)
		}
		if s.Docker != "" {
			if left := s.containers(""); len(left) != 0 {
				return fmt.Errorf("%d containers are left", len(left))
			}
		}
		return nil
	})
}

// held is what a job has: its allocation, the task's start and the cards, in the views of the agent, of the service
// and of the task itself.
type held struct {
	alloc, devices, started, cards string
	restarts                       uint64
	usedMiB                        int64
}

func (s *suite) held(job string) held {
	s.t.Helper()
	s.awaitAllocs(job, "running", 1)
	var h held
	s.Eventually(60*time.Second, job+" holds cards", func() (err error) {
		h, err = s.holds(job)
		return err
	})
	return h
}

func (s *suite) holds(job string) (held, error) {
	var h held
	running := s.withStatus(job, "running")
	if len(running) != 1 {
		return h, fmt.Errorf("%d allocations run: %s", len(running), s.describe(job))
	}
	var alloc api.Allocation
	if err := s.Nomads(http.MethodGet, "/v1/allocation/"+running[0].ID, nil, &alloc); err != nil {
		return h, err
	}
	h.alloc = alloc.ID
	for _, task := range alloc.AllocatedResources.Tasks {
		for _, d := range task.Devices {
			h.devices += d.Vendor + "/" + d.Type + "/" + d.Name + " " + strings.Join(d.DeviceIDs, ",") + ";"
		}
	}
	state := alloc.TaskStates["probe"]
	if state == nil {
		return h, fmt.Errorf("no task state of %s", job)
	}
	h.started, h.restarts = state.StartedAt.UTC().Format(time.RFC3339Nano), state.Restarts
	for _, card := range s.gpus() {
		for _, use := range card.Jobs {
			if use.JobID == job {
				h.cards += card.UUID + ";"
				if card.Memory != nil {
					h.usedMiB += card.Memory.UsedMiB
				}
			}
		}
	}
	if h.cards == "" {
		return h, fmt.Errorf("no card shows %s", job)
	}
	return h, nil
}

// killPlugin kills the plugin processes of this cluster's agent.
func (s *suite) killPlugin(file string) {
	s.t.Helper()
	killed := 0
	for _, pid := range s.processes(filepath.Join(s.Dir, "plugins", file)) {
		args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || strings.Contains(string(args), "supervise") {
			continue // the supervisors of running tasks are no plugin
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err == nil {
			killed++
		}
	}
	if killed == 0 {
		s.t.Errorf("no process of %s to kill", file)
	}
}

// processes are the pids of what runs a program of this cluster.
func (s *suite) processes(program string) []int {
	s.t.Helper()
	entries, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		s.t.Fatal(err)
	}
	var pids []int
	for _, exe := range entries {
		target, err := os.Readlink(exe)
		if err != nil || strings.TrimSuffix(target, " (deleted)") != program {
			continue
		}
		if pid, err := strconv.Atoi(strings.Split(exe, "/")[2]); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
