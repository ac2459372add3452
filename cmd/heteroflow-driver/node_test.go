//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/basepb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/hclspec"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/host"
)

// callTimeout is far above what any call may take: one that reaches it has hung.
const callTimeout = time.Minute

// node is the built driver, served over gRPC as to a Nomad client, with the streams open that a client opens.
type node struct {
	b       *testing.B
	plugin  *host.Plugin
	client  *host.DriverClient
	tasks   *hclspec.Spec
	state   string
	serial  atomic.Int64
	release context.CancelFunc
}

// newNode launches the driver with a config.
func newNode(b *testing.B, binary string, config map[string]any) *node {
	b.Helper()
	n := &node{b: b, state: b.TempDir()}
	p, err := host.Launch(b.Context(), host.Command{Path: binary}, hclog.NewNullLogger())
	if err != nil {
		b.Fatal(err)
	}
	n.plugin, n.client = p, p.DriverClient()
	config = maps.Clone(config)
	config["state_dir"] = n.state
	ctx, cancel := context.WithCancel(context.Background())
	n.release = cancel
	b.Cleanup(func() {
		cancel()
		p.Kill()
	})
	schema, err := p.Base().ConfigSchema(ctx, &basepb.ConfigSchemaRequest{})
	if err != nil {
		b.Fatal(err)
	}
	body, err := host.EncodeConfig(schema.GetSpec(), config)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := p.Base().SetConfig(ctx, &basepb.SetConfigRequest{MsgpackConfig: body, PluginApiVersion: nomadplugin.APIVersion}); err != nil {
		b.Fatal(err)
	}
	tasks, err := n.client.TaskConfigSchema(ctx, &driverpb.TaskConfigSchemaRequest{})
	if err != nil {
		b.Fatal(err)
	}
	n.tasks = tasks.GetSpec()
	events, err := n.client.TaskEvents(ctx, &driverpb.TaskEventsRequest{})
	if err != nil {
		b.Fatal(err)
	}
	go drain(events.Recv)
	health, err := n.client.Fingerprint(ctx, &driverpb.FingerprintRequest{})
	if err != nil {
		b.Fatal(err)
	}
	for {
		f, err := health.Recv()
		if err != nil {
			b.Fatalf("the driver did not become healthy: %v", err)
		}
		if f.GetHealth() == driverpb.FingerprintResponse_HEALTHY {
			break
		}
	}
	go drain(health.Recv)
	return n
}

// drain reads a stream to its end.
func drain[T any](recv func() (T, error)) {
	for {
		if _, err := recv(); err != nil {
			return
		}
	}
}

// task is a task as a client hands it over: its folders, and its log pipes read by somebody.
func (n *node) task(config map[string]any, devices ...grant.Reservation) *driverpb.TaskConfig {
	n.b.Helper()
	serial := n.serial.Add(1)
	alloc := fmt.Sprintf("5d1b3c4e-0000-4000-8000-%012d", serial)
	dir := filepath.Join(n.b.TempDir(), alloc)
	for _, d := range []string{"alloc/logs", "alloc/data", "web/local", "web/secrets"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o777); err != nil {
			n.b.Fatal(err)
		}
	}
	body, err := host.EncodeConfig(n.tasks, config)
	if err != nil {
		n.b.Fatal(err)
	}
	cfg := &driverpb.TaskConfig{
		Id: alloc + "/web/" + strconv.FormatInt(serial, 16), Name: "web", MsgpackDriverConfig: body, AllocDir: dir,
		AllocId: alloc, JobId: "llm", JobName: "llm", TaskGroupName: "serve", Namespace: "default", NodeName: "node", NodeId: "node-id",
		Env:        map[string]string{"NOMAD_TASK_DIR": "/local", "NOMAD_ALLOC_DIR": "/alloc", "NOMAD_SECRETS_DIR": "/secrets"},
		DeviceEnv:  map[string]string{},
		StdoutPath: filepath.Join(dir, "alloc/logs/.web.stdout.fifo"), StderrPath: filepath.Join(dir, "alloc/logs/.web.stderr.fifo"),
		Resources: &driverpb.Resources{
			AllocatedResources: &driverpb.AllocatedTaskResources{
				Cpu: &driverpb.AllocatedCpuResources{CpuShares: 100}, Memory: &driverpb.AllocatedMemoryResources{MemoryMb: 64},
			},
			LinuxResources: &driverpb.LinuxResources{CpuShares: 100, MemoryLimitBytes: 64 << 20},
		},
	}
	for _, r := range devices {
		name, value, err := r.Env()
		if err != nil {
			n.b.Fatal(err)
		}
		cfg.DeviceEnv[name] = value
	}
	for _, path := range []string{cfg.StdoutPath, cfg.StderrPath} {
		n.collect(path)
	}
	return cfg
}

// collect reads a pipe as Nomad's log collector does.
func (n *node) collect(path string) {
	n.b.Helper()
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		n.b.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0) // for both, so that opening waits for nobody
	if err != nil {
		n.b.Fatal(err)
	}
	n.b.Cleanup(func() {
		if err := f.Close(); err != nil {
			n.b.Error(err)
		}
	})
	go io.Copy(io.Discard, f)
}

func (n *node) start(ctx context.Context, cfg *driverpb.TaskConfig) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := n.client.StartTask(ctx, &driverpb.StartTaskRequest{Task: cfg})
	if err != nil {
		return err
	}
	if resp.GetResult() != driverpb.StartTaskResponse_SUCCESS {
		return fmt.Errorf("start answered %v: %s", resp.GetResult(), resp.GetDriverErrorMsg())
	}
	return nil
}

func (n *node) destroy(id string) {
	n.b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	if _, err := n.client.DestroyTask(ctx, &driverpb.DestroyTaskRequest{TaskId: id, Force: true}); err != nil {
		n.b.Errorf("destroy: %v", err)
	}
}

// pid is the driver's process.
func (n *node) pid() int { return n.plugin.ReattachInfo().Pid }

// supervisors are the processes that keep the tasks of this node.
func (n *node) supervisors() []int {
	n.b.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		n.b.Fatal(err)
	}
	var pids []int
	for _, e := range entries {
		body, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if pid, numErr := strconv.Atoi(e.Name()); err == nil && numErr == nil && strings.Contains(string(body), superviseCommand+"\x00"+n.state) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// slice is a reservation of one GiB of one of a few cards.
func slice(v accel.Vendor, prefix string, serial int) grant.Reservation {
	uuid := fmt.Sprintf("%s%d", prefix, serial%8)
	return grant.Reservation{
		Vendor: v, Form: accel.Shared, UnitMiB: 1024, Instances: []string{fmt.Sprintf("c%s.%d", accel.ShortID(v, uuid), serial/8)},
		Cards: []grant.Card{{UUID: uuid, Model: "A100", Index: serial % 8, MemoryMiB: 81559, Units: 1}},
	}
}

// built is the driver as `make build` makes it.
func built(b *testing.B) string {
	b.Helper()
	path := filepath.Join(b.TempDir(), "heteroflow")
	cmd := exec.Command("go", "build", "-ldflags", "-s -w", "-o", path, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("build: %v\n%s", err, out)
	}
	return path
}

// processor is the processor time of a process, its threads counted to the nanosecond, and of its children that have ended.
func processor(b *testing.B, pid int) (sum time.Duration) {
	b.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(threads) == 0 {
		b.Fatalf("threads of %d: %v", pid, err)
	}
	for _, path := range threads {
		body, err := os.ReadFile(path)
		if err != nil {
			b.Fatal(err)
		}
		sum += time.Duration(number(b, strings.Fields(string(body))[0]))
	}
	body, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(body[strings.LastIndexByte(string(body), ')')+1:]))
	for _, f := range fields[13:15] { // of children waited for, in ticks of 10 ms, see proc_pid_stat(5)
		sum += time.Duration(number(b, f)) * 10 * time.Millisecond
	}
	return sum
}

// memoryMiB is one of the sizes that /proc tells of a process.
func memoryMiB(b *testing.B, pid int, file, name string) float64 {
	b.Helper()
	body, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, found := strings.Cut("\n"+string(body), "\n"+name+":")
	if !found {
		b.Fatalf("/proc/%d/%s has no %s", pid, file, name)
	}
	return float64(number(b, strings.Fields(rest)[0])) / 1024
}

func number(b *testing.B, text string) int64 {
	b.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return n
}
