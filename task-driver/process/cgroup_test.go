package process

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func write(t *testing.T, path, body string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(body), 0o644)); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	body, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestDetect(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files map[string]string
		want  Mode
	}{
		"version 2":                  {map[string]string{"cgroup.controllers": "cpuset cpu io memory pids\n", "cgroup.procs": ""}, V2},
		"version 2 without memory":   {map[string]string{"cgroup.controllers": "cpuset cpu\n", "cgroup.procs": ""}, Unlimited},
		"version 1":                  {map[string]string{"memory/cgroup.procs": "", "cpu/cgroup.procs": ""}, V1},
		"version 1 without cpu":      {map[string]string{"memory/cgroup.procs": ""}, Unlimited},
		"nothing, as in a container": {nil, Unlimited},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			for file, body := range c.files {
				write(t, filepath.Join(root, file), body)
			}
			if got := Detect(root); got != c.want {
				t.Errorf("Detect = %s, want %s", got, c.want)
			}
		})
	}
}

// A folder that only looks like a cgroup tree shows which files are written, not that the kernel obeys.
func TestMake_Version2(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	given := filepath.Join(root, "nomad.slice", "share.slice", "alloc.task.scope")
	write(t, filepath.Join(given, "cgroup.procs"), "")
	write(t, filepath.Join(given, "task-k", "memory.swap.max"), "max")
	g := GroupFor(root, V2, given, "k")
	if want := filepath.Join(given, "task-k"); g.Paths[0] != want {
		t.Fatalf("leaf %s, want %s", g.Paths[0], want)
	}
	for range 2 {
		if err := g.Make(Limits{MemoryBytes: 64 << 20, MemoryReserveBytes: 32 << 20, CPUShares: 1024, CPUQuotaUS: 50000, CPUPeriodUS: 100000}); err != nil {
			t.Fatal(err)
		}
	}
	for file, want := range map[string]string{"memory.max": "67108864", "memory.swap.max": "0", "memory.low": "33554432", "cpu.weight": "39", "cpu.max": "50000 100000"} {
		if got := read(t, filepath.Join(g.Paths[0], file)); got != want {
			t.Errorf("%s = %q, want %q", file, got, want)
		}
	}
	if got := read(t, filepath.Join(given, "cgroup.subtree_control")); got != "+cpu +memory" {
		t.Errorf("subtree_control = %q", got)
	}
	other := GroupFor(root, V2, "", "k")
	if other.Paths[0] != filepath.Join(root, "heteroflow", "task-k") {
		t.Errorf("without a given cgroup: %v", other.Paths)
	}
	if err := other.Make(Limits{Pids: 9}); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"cgroup.subtree_control": "+pids", "heteroflow/cgroup.subtree_control": "+pids", "heteroflow/task-k/pids.max": "9"} {
		if got := read(t, filepath.Join(root, file)); got != want {
			t.Errorf("%s = %q, want %q", file, got, want)
		}
	}
	write(t, filepath.Join(g.Paths[0], "memory.events"), "low 0\noom 1\noom_kill 1\n")
	if !g.OOMKilled() {
		t.Error("an out-of-memory kill was not seen")
	}
	write(t, filepath.Join(g.Paths[0], "memory.events"), "oom 3\noom_kill 0\n")
	if g.OOMKilled() {
		t.Error("a kill was seen that was none")
	}
}

func TestMake_Version1(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, c := range []string{"memory", "cpu", "pids"} {
		write(t, filepath.Join(root, c, "cgroup.procs"), "")
	}
	write(t, filepath.Join(root, "memory/heteroflow/k/memory.memsw.limit_in_bytes"), "-1")
	g := GroupFor(root, V1, filepath.Join(root, "cpuset/nomad/shared"), "k")
	for range 2 {
		if err := g.Make(Limits{MemoryBytes: 64 << 20, MemoryReserveBytes: 32 << 20, Pids: 9, CPUShares: 1, CPUQuotaUS: 50000, CPUPeriodUS: 100000}); err != nil {
			t.Fatal(err)
		}
	}
	for file, want := range map[string]string{
		"memory/heteroflow/k/memory.limit_in_bytes": "67108864", "memory/heteroflow/k/memory.memsw.limit_in_bytes": "67108864",
		"memory/heteroflow/k/memory.soft_limit_in_bytes": "33554432", "cpu/heteroflow/k/cpu.shares": "2",
		"cpu/heteroflow/k/cpu.cfs_quota_us": "50000", "cpu/heteroflow/k/cpu.cfs_period_us": "100000", "pids/heteroflow/k/pids.max": "9",
	} {
		if got := read(t, filepath.Join(root, file)); got != want {
			t.Errorf("%s = %q, want %q", file, got, want)
		}
	}
	write(t, filepath.Join(g.Paths[0], "memory.oom_control"), "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
	if !g.OOMKilled() {
		t.Error("an out-of-memory kill was not seen")
	}
	bare := t.TempDir()
	if err := GroupFor(bare, V1, "", "k").Make(Limits{Pids: 9}); err == nil || !strings.Contains(err.Error(), "leave pids_limit out") {
		t.Errorf("a limit that cannot be kept: %v", err)
	}
}

func TestLimits_Processes(t *testing.T) {
	t.Parallel()
	mode := Detect("/sys/fs/cgroup")
	if mode == Unlimited {
		t.Skip("the cgroups of this machine cannot be written to: limits are not enforced here")
	}
	g := GroupFor("/sys/fs/cgroup", mode, "", "test-pids-"+time.Now().Format("150405.000000"))
	if mode == V1 && len(g.Paths) < 3 {
		t.Skip("this machine has no cgroups of the controller pids")
	}
	t.Cleanup(func() {
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
	})
	c := shell(t, "sleep 60 & sleep 60 & sleep 60 & sleep 60 & kill 0")
	c.Group, c.Limits = g, Limits{Pids: 3}
	exit, out := runTask(t, c)
	if exit.Code == 0 || !strings.Contains(strings.ToLower(out), "fork") {
		t.Errorf("a task over its processes ended with %+v:\n%s", exit, out)
	}
}

func TestGroup_RemoveOfNothing(t *testing.T) {
	t.Parallel()
	for _, g := range []Group{{Mode: Unlimited}, GroupFor(t.TempDir(), V1, "", "gone"), {}} {
		if err := g.Remove(); err != nil {
			t.Errorf("%+v: %v", g, err)
		}
	}
}

func TestWeight_StaysInRange(t *testing.T) {
	t.Parallel()
	for shares, want := range map[int64]int64{0: 1, 2: 1, 1024: 39, 262144: 10000, 1 << 40: 10000} {
		if got := weight(shares); got != want {
			t.Errorf("weight(%d) = %d, want %d", shares, got, want)
		}
	}
}

func TestLimits_Enforced(t *testing.T) {
	t.Parallel()
	mode := Detect("/sys/fs/cgroup")
	if mode == Unlimited {
		t.Skip("the cgroups of this machine cannot be written to: limits are not enforced here")
	}
	g := GroupFor("/sys/fs/cgroup", mode, "", "test-"+time.Now().Format("150405.000000"))
	t.Cleanup(func() {
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
	})
	c := shell(t, "cat /proc/self/cgroup; dd if=/dev/zero of=/dev/null bs=256M count=1")
	c.Group, c.Limits = g, Limits{MemoryBytes: 32 << 20, CPUShares: 100}
	exit, out := runTask(t, c)
	if !exit.OOMKilled || exit.Code == 0 {
		t.Errorf("a task over its memory ended with %+v", exit)
	}
	if !strings.Contains(out, filepath.Base(g.Paths[0])) {
		t.Errorf("the task is not in its cgroup:\n%s", out)
	}
	for _, path := range g.Paths {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left over", path)
		}
	}
}
