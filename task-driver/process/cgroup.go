package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Mode says which cgroups a node has, and with that whether limits of a process are enforced.
type Mode string

// The modes. Unlimited means that memory and CPU of a process are not limited on this node.
const (
	V2        Mode = "cgroup-v2"
	V1        Mode = "cgroup-v1"
	Unlimited Mode = "none"
)

// Limits are the bounds of one process and its children.
type Limits struct {
	MemoryBytes int64 `json:"memory_bytes,omitempty"` // hard limit, without swap; 0 is none
	// MemoryReserveBytes is what the kernel leaves the task when memory is short; 0 is none.
	MemoryReserveBytes int64 `json:"memory_reserve_bytes,omitempty"`
	Pids               int64 `json:"pids,omitempty"`         // processes and threads; 0 is no limit
	CPUShares          int64 `json:"cpu_shares,omitempty"`   // weight, MHz as Nomad counts them; 0 leaves the default
	CPUQuotaUS         int64 `json:"cpu_quota_us,omitempty"` // per CPUPeriodUS; 0 is none
	CPUPeriodUS        int64 `json:"cpu_period_us,omitempty"`
}

// Group is the cgroups of one process: one folder in version 2, one per controller in version 1.
type Group struct {
	Mode  Mode     `json:"mode"`
	Paths []string `json:"paths,omitempty"`
}

const parentGroup = "heteroflow"

// Detect says what the cgroup tree at root (/sys/fs/cgroup) allows this process to do.
func Detect(root string) Mode {
	if body, err := os.ReadFile(filepath.Join(root, "cgroup.controllers")); err == nil {
		have := strings.Fields(string(body))
		if slices.Contains(have, "memory") && slices.Contains(have, "cpu") && writable(root) {
			return V2
		}
		return Unlimited
	}
	if writable(filepath.Join(root, "memory")) && writable(filepath.Join(root, "cpu")) {
		return V1
	}
	return Unlimited
}

// GroupFor names the cgroups for a task. given is the cgroup that Nomad prepared (cpuset_cgroup): in version 2 the
// limits go into a leaf below it, because a cgroup that holds processes can have no limited children.
func GroupFor(root string, mode Mode, given, key string) Group {
	switch mode {
	case V2:
		parent := filepath.Join(root, parentGroup)
		if given != "" && writable(given) {
			parent = given
		}
		return Group{Mode: V2, Paths: []string{filepath.Join(parent, "task-"+key)}}
	case V1:
		g := Group{Mode: V1, Paths: []string{
			filepath.Join(root, "memory", parentGroup, key),
			filepath.Join(root, "cpu", parentGroup, key),
		}}
		if writable(filepath.Join(root, "pids")) { // some kernels have none
			g.Paths = append(g.Paths, filepath.Join(root, "pids", parentGroup, key))
		}
		return g
	default:
		return Group{Mode: Unlimited}
	}
}

// Make creates the cgroups and sets the limits. Doing it again is harmless.
func (g Group) Make(l Limits) error {
	for _, path := range g.Paths {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return fmt.Errorf("make cgroup: %w", err)
		}
	}
	switch g.Mode {
	case V2:
		return g.makeV2(l)
	case V1:
		return g.makeV1(l)
	default:
		return nil
	}
}

func (g Group) makeV2(l Limits) error {
	leaf := g.Paths[0]
	parent := filepath.Dir(leaf)
	if filepath.Base(parent) == parentGroup { // our own: nobody has handed the controllers down to it
		if err := enable(filepath.Dir(parent), "cpu memory"); err != nil {
			return err
		}
	}
	if err := enable(parent, "cpu memory"); err != nil {
		return err
	}
	var errs []error
	if l.MemoryBytes > 0 {
		errs = append(errs, set(leaf, "memory.max", strconv.FormatInt(l.MemoryBytes, 10)), setIfThere(leaf, "memory.swap.max", "0"))
	}
	if l.MemoryReserveBytes > 0 {
		errs = append(errs, set(leaf, "memory.low", strconv.FormatInt(l.MemoryReserveBytes, 10)))
	}
	if l.Pids > 0 {
		errs = append(errs, enableAlso(leaf, "pids"), set(leaf, "pids.max", strconv.FormatInt(l.Pids, 10)))
	}
	if l.CPUShares > 0 {
		errs = append(errs, set(leaf, "cpu.weight", strconv.FormatInt(weight(l.CPUShares), 10)))
	}
	if l.CPUQuotaUS > 0 && l.CPUPeriodUS > 0 {
		errs = append(errs, set(leaf, "cpu.max", fmt.Sprintf("%d %d", l.CPUQuotaUS, l.CPUPeriodUS)))
	}
	return errors.Join(errs...)
}

func (g Group) makeV1(l Limits) error {
	memory, cpu := g.Paths[0], g.Paths[1]
	var errs []error
	if l.MemoryBytes > 0 {
		text := strconv.FormatInt(l.MemoryBytes, 10)
		errs = append(errs, set(memory, "memory.limit_in_bytes", text), setIfThere(memory, "memory.memsw.limit_in_bytes", text))
	}
	if l.MemoryReserveBytes > 0 {
		errs = append(errs, set(memory, "memory.soft_limit_in_bytes", strconv.FormatInt(l.MemoryReserveBytes, 10)))
	}
	if l.Pids > 0 {
		if len(g.Paths) < 3 {
			return errors.New("limit processes: this node has no cgroups of the controller pids: leave pids_limit out")
		}
		errs = append(errs, set(g.Paths[2], "pids.max", strconv.FormatInt(l.Pids, 10)))
	}
	if l.CPUShares > 0 {
		errs = append(errs, set(cpu, "cpu.shares", strconv.FormatInt(max(2, l.CPUShares), 10)))
	}
	if l.CPUQuotaUS > 0 && l.CPUPeriodUS > 0 {
		errs = append(errs, set(cpu, "cpu.cfs_period_us", strconv.FormatInt(l.CPUPeriodUS, 10)),
			set(cpu, "cpu.cfs_quota_us", strconv.FormatInt(l.CPUQuotaUS, 10)))
	}
	return errors.Join(errs...)
}

// enable hands controllers down to the children of a version 2 cgroup.
func enable(folder, controllers string) error {
	text := "+" + strings.ReplaceAll(controllers, " ", " +")
	if err := os.WriteFile(filepath.Join(folder, "cgroup.subtree_control"), []byte(text), 0o644); err != nil {
		return fmt.Errorf("enable controllers: %w", err)
	}
	return nil
}

// enableAlso hands one more controller down to a leaf.
func enableAlso(leaf, controller string) error {
	parent := filepath.Dir(leaf)
	if filepath.Base(parent) == parentGroup {
		if err := enable(filepath.Dir(parent), controller); err != nil {
			return err
		}
	}
	return enable(parent, controller)
}

// setIfThere sets what kernels without accounting of swap do not have.
func setIfThere(folder, file, value string) error {
	if _, err := os.Stat(filepath.Join(folder, file)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return set(folder, file, value)
}

// weight maps shares (2–262144) to a weight (1–10000) by the formula of the OCI runtime specification's
// implementations: 1 + (shares-2)*9999/262142.
func weight(shares int64) int64 {
	shares = min(max(shares, 2), 262144)
	return 1 + (shares-2)*9999/262142
}

func set(folder, file, value string) error {
	if err := os.WriteFile(filepath.Join(folder, file), []byte(value), 0o644); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}

// OOMKilled reports whether the kernel killed a process of the group for want of memory.
func (g Group) OOMKilled() bool {
	if len(g.Paths) == 0 {
		return false
	}
	file := "memory.events"
	if g.Mode == V1 {
		file = "memory.oom_control"
	}
	body, err := os.ReadFile(filepath.Join(g.Paths[0], file))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(body)) {
		if count, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			return count != "0"
		}
	}
	return false
}

// Remove kills what is left in the cgroups and removes them. Groups that are gone are no error.
func (g Group) Remove() error {
	var errs []error
	for _, path := range g.Paths {
		errs = append(errs, removeGroup(path))
	}
	return errors.Join(errs...)
}

func removeGroup(path string) error {
	for range 200 {
		err := os.Remove(path)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		body, readErr := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if readErr != nil {
			return fmt.Errorf("remove cgroup: %w", err)
		}
		for _, text := range strings.Fields(string(body)) {
			pid, err := strconv.Atoi(text)
			if err != nil || pid <= 1 {
				continue
			}
			if err := killProcess(pid); err != nil {
				return fmt.Errorf("end process %d: %w", pid, err)
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
	return fmt.Errorf("remove cgroup %s: its processes do not end", path)
}
