package e2e

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"
)

// newerVersion is what the other build of the plugins calls itself.
const newerVersion = "0.2.0-e2e"

// pluginFiles are the plugins of an agent, with the binary that each is made of.
var pluginFiles = map[string]string{"heteroflow-device": "heteroflow-device", "heteroflow": "heteroflow-driver"}

// Under eight running tasks with a card each, both plugins crash, are replaced by another build and started again, and go
// back to the former build with a restart of the agent. No task stops, and none changes its allocation, its process or its
// card. Afterwards the plugins still do their work.
func pluginsEnd(s *suite, b *box, newer string) {
	s.mustSubmit(probeJob{id: "eight", args: []string{"hold"}, ask: `model = ["A40"]`, count: 8})
	s.awaitAllocs("eight", "running", 8)
	tasks := map[string]string{}
	s.Eventually(30*time.Second, "eight tasks run", func() (err error) {
		tasks, err = s.running("eight")
		return err
	})
	former := s.plugins()
	older := s.versionOf(former["heteroflow"])
	for _, step := range []struct {
		name, version string
		do            func()
	}{
		{"kill -9 of both plugins", older, func() { s.signal(former, syscall.SIGKILL) }},
		{"upgrade", newerVersion, func() {
			s.replacePlugins(newer)
			s.signal(former, syscall.SIGTERM)
		}},
		{"kill -9 of both plugins after the upgrade", newerVersion, func() { s.signal(former, syscall.SIGKILL) }},
		{"downgrade with a restart of the agent", older, func() {
			s.replacePlugins(os.Getenv("HETEROFLOW_BIN"))
			s.Agent.Stop()
			s.StartAgent()
		}},
	} {
		step.do()
		s.Eventually(60*time.Second, "other plugins run after "+step.name, func() error {
			now := s.plugins()
			for file, pid := range former {
				if now[file] == 0 || now[file] == pid {
					return fmt.Errorf("%s: %d became %d", file, pid, now[file])
				}
				if version := s.versionOf(now[file]); version != step.version {
					return fmt.Errorf("%s is version %q, want %s", file, version, step.version)
				}
			}
			return nil
		})
		s.awaitOffered(nil)
		former = s.plugins()
		s.Eventually(60*time.Second, "the tasks run on after "+step.name, func() error {
			now, err := s.running("eight")
			if err != nil {
				return err
			}
			if diff := cmp.Diff(tasks, now); diff != "" {
				return fmt.Errorf("(-before +after):\n%s", diff)
			}
			return nil
		})
		s.t.Logf("after %s the tasks run on with the same processes and cards", step.name)
	}
	// What the node offers may still be what it offered before the restart: a plugin that never saw the card well knows
	// it by its place alone.
	queries := func() (n int) {
		for _, args := range b.tools["nvidia-smi"].Calls(s.t) {
			if strings.Contains(args, "--query-gpu") {
				n++
			}
		}
		return n
	}
	before := queries()
	s.Eventually(60*time.Second, "the new plugin has read the cards", func() error {
		if n := queries() - before; n < 2 {
			return fmt.Errorf("%d readings", n)
		}
		return nil
	})
	defer b.mend(s.t)
	// The stream still tells what befalls cards in use, and tasks that were adopted can be stopped.
	b.playNVIDIA(s.t, false, 0)
	s.awaitOffered(map[string]string{deadCard: "nvidia-smi: Unknown Error"})
	b.mend(s.t)
	s.awaitOffered(nil)
	if now, err := s.running("eight"); err != nil || cmp.Diff(tasks, now) != "" {
		s.t.Errorf("a card that was sick for a moment changed its task: %v\n%s", err, cmp.Diff(tasks, now))
	}
	s.stop("eight")
	s.Eventually(30*time.Second, "no process is left", func() error {
		if left := s.processes(s.probe); len(left) != 0 {
			return fmt.Errorf("%v are left", left)
		}
		return nil
	})
}

func (s *suite) replacePlugins(dir string) {
	s.t.Helper()
	for file, program := range pluginFiles {
		s.ReplacePlugin(file, filepath.Join(dir, program))
	}
}

// plugins are the running plugin processes of the agent, by file. A supervisor of a task is none, nor is a child of a
// plugin that has not become a tool yet.
func (s *suite) plugins() map[string]int {
	s.t.Helper()
	pids := map[string]int{}
	for file := range pluginFiles {
		for _, pid := range s.processes(filepath.Join(s.Dir, "plugins", file)) {
			if parentOf(pid) == s.Agent.PID() {
				pids[file] = pid
			}
		}
	}
	return pids
}

// parentOf is 0 for a process that is gone.
func parentOf(pid int) int {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(stat), ") ") // the name before may have blanks
	fields := strings.Fields(after)
	if len(fields) < 2 {
		return 0
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return 0
	}
	return parent
}

func (s *suite) signal(plugins map[string]int, signal syscall.Signal) {
	s.t.Helper()
	for file, pid := range plugins {
		if err := syscall.Kill(pid, signal); err != nil {
			s.t.Errorf("end %s: %v", file, err)
		}
	}
}

// versionOf is what a running process says of its version: of its own file, not of the one at its place by now.
func (s *suite) versionOf(pid int) string {
	out, err := exec.Command(fmt.Sprintf("/proc/%d/exe", pid), "version").Output()
	if err != nil {
		return err.Error()
	}
	_, version, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	return version
}

// running is all that must stay as it is about the tasks of a job, by allocation: the devices, start and restarts as the
// agent tells them, and the process and its cards as the kernel does.
func (s *suite) running(job string) (map[string]string, error) {
	processes := map[string]string{}
	for _, pid := range s.processes(s.probe) {
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil {
			return nil, err
		}
		env := map[string]string{}
		for pair := range strings.SplitSeq(string(environ), "\x00") {
			name, value, _ := strings.Cut(pair, "=")
			env[name] = value
		}
		processes[env["NOMAD_ALLOC_ID"]] += fmt.Sprintf("pid %d sees %s;", pid, env["NVIDIA_VISIBLE_DEVICES"])
	}
	tasks, seen := map[string]string{}, map[string]bool{}
	for _, stub := range s.withStatus(job, "running") {
		var alloc api.Allocation
		if err := s.Nomads(http.MethodGet, "/v1/allocation/"+stub.ID, nil, &alloc); err != nil {
			return nil, err
		}
		state := alloc.TaskStates["probe"]
		if state == nil || state.State != "running" {
			return nil, fmt.Errorf("the task of %s does not run: %+v", stub.ID, state)
		}
		line := processes[stub.ID] + " started " + state.StartedAt.UTC().Format(time.RFC3339Nano) + " restarts " + strconv.FormatUint(state.Restarts, 10)
		for _, d := range alloc.AllocatedResources.Tasks["probe"].Devices {
			line += " has " + strings.Join(d.DeviceIDs, ",")
			for _, id := range d.DeviceIDs {
				if seen[id] || !strings.Contains(processes[stub.ID], id) {
					return nil, fmt.Errorf("%s has %s twice, or does not see it: %s", stub.ID, id, line)
				}
				seen[id] = true
			}
		}
		tasks[stub.ID] = line
	}
	if len(tasks) != 8 || len(processes) != 8 || len(seen) != 8 {
		return nil, fmt.Errorf("%d tasks run in %d processes with %d cards, want 8; %s", len(tasks), len(processes), len(seen), s.describe(job))
	}
	return tasks, nil
}
