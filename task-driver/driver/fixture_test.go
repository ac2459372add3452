package driver

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/host"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/bronze"
	"github.com/heteroflow/heteroflow/task-driver/share/sharetest"
	"github.com/heteroflow/heteroflow/task-driver/supervisor"
)

// TestMain lets the test binary be the supervisor of the tasks the tests start.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "supervise" {
		os.Exit(supervisor.Main(os.Args[2], Workload))
	}
	flag.Parse()
	if f := flag.Lookup("rapid.checks"); f != nil && f.Value.String() == f.DefValue {
		// Each check starts processes: the usual hundred would take a minute. -rapid.checks asks for more.
		if err := f.Value.Set("12"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

const allocID = "5d1b3c4e-0000-4000-8000-000000000001"

// rig is one node: a state folder and a driver on it that can be replaced as after a crash.
type rig struct {
	t       testing.TB
	ctx     context.Context
	config  map[string]any
	state   string
	*Driver            // replaced by restart, under swap
	swap    sync.Mutex // for the goroutines that read the logs
	log     *memory
	cards   *sharetest.Cards // what a maker's fake tool divides
}

// memory keeps what the driver logs, to be searched for secrets.
type memory struct {
	mu   sync.Mutex
	text strings.Builder
}

func (m *memory) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.text.Write(p)
}

func (m *memory) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.text.String()
}

// newRig makes a node with the process runtime on and Docker off, unless the config says otherwise.
func newRig(t testing.TB, config map[string]any) *rig {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	r := &rig{t: t, ctx: ctx, state: t.TempDir(), log: &memory{}, cards: sharetest.NewCards()}
	r.config = map[string]any{"docker": map[string]any{"enabled": false}, "process": map[string]any{"enabled": true}}
	for k, v := range config {
		r.config[k] = v
	}
	r.config["state_dir"] = r.state
	r.restart()
	t.Cleanup(func() {
		for _, id := range r.ids() {
			if err := r.Destroy(ctx, id, true); err != nil {
				t.Errorf("destroy %s: %v", id, err)
			}
		}
		r.Close()
		cancel()
	})
	return r
}

func (r *rig) ids() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ids []string
	for id := range r.tasks {
		ids = append(ids, id)
	}
	return ids
}

// restart replaces the driver by a new one that knows nothing, as after kill -9.
func (r *rig) restart() {
	r.t.Helper()
	if r.Driver != nil {
		r.Close()
	}
	log := hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, Output: r.log})
	r.swap.Lock()
	// An absent cgroup tree: what is enforced is tested in the process package.
	r.Driver = New(Options{Version: "0.1.0", Log: log, Launcher: supervisor.Self("supervise"), Cgroups: filepath.Join(r.state, "no-cgroups"), Tool: r.cards, Backends: r.backends})
	r.swap.Unlock()
	body, err := host.EncodeConfig(r.ConfigSchema(), r.config)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.Configure(body); err != nil {
		r.t.Fatal(err)
	}
}

// backends are those of the node: one that divides the cards of NVIDIA, and shares by agreement.
func (r *rig) backends(h share.Host) []share.Backend {
	return []share.Backend{sharetest.NewSample(h, accel.NVIDIA, "sample"), bronze.New(h, nil, bronze.Options{})}
}

// job is a task as Nomad hands it over, with its log pipes read as by Nomad's collector.
type job struct {
	cfg            *driverpb.TaskConfig
	stdout, stderr <-chan string
}

func (r *rig) job(config map[string]any, change ...func(*driverpb.TaskConfig)) job {
	r.t.Helper()
	j := job{cfg: r.taskConfig(config, change...)}
	j.stdout, j.stderr = r.collect(j.cfg.StdoutPath), r.collect(j.cfg.StderrPath)
	return j
}

// taskConfig is a task whose log pipes nobody has made yet.
func (r *rig) taskConfig(config map[string]any, change ...func(*driverpb.TaskConfig)) *driverpb.TaskConfig {
	r.t.Helper()
	dir := filepath.Join(r.t.TempDir(), allocID)
	var errs []error
	for _, d := range []string{"alloc/logs", "alloc/data", "web/local", "web/secrets"} {
		errs = append(errs, os.MkdirAll(filepath.Join(dir, d), 0o777))
	}
	if err := errors.Join(errs...); err != nil {
		r.t.Fatal(err)
	}
	body, err := host.EncodeConfig(taskConfigSchema(), config)
	if err != nil {
		r.t.Fatal(err)
	}
	cfg := &driverpb.TaskConfig{
		Id: allocID + "/web/" + fmt.Sprintf("%08x", time.Now().UnixNano()&0xffffffff), Name: "web", MsgpackDriverConfig: body,
		AllocDir: dir, AllocId: allocID, JobId: "llm", JobName: "llm", TaskGroupName: "serve", Namespace: "default", NodeName: "node", NodeId: "node-id",
		Env:        map[string]string{"NOMAD_TASK_DIR": "/local", "NOMAD_ALLOC_DIR": "/alloc", "NOMAD_SECRETS_DIR": "/secrets"},
		StdoutPath: filepath.Join(dir, "alloc/logs/.web.stdout.fifo"), StderrPath: filepath.Join(dir, "alloc/logs/.web.stderr.fifo"),
		Resources: &driverpb.Resources{
			AllocatedResources: &driverpb.AllocatedTaskResources{
				Cpu: &driverpb.AllocatedCpuResources{CpuShares: 500}, Memory: &driverpb.AllocatedMemoryResources{MemoryMb: 128},
			},
			LinuxResources: &driverpb.LinuxResources{CpuShares: 500, MemoryLimitBytes: 128 << 20, PercentTicks: 0.25},
		},
	}
	for _, c := range change {
		c(cfg)
	}
	return cfg
}

// collect reads a pipe from before the task starts until every writer has gone.
func (r *rig) collect(path string) <-chan string {
	r.t.Helper()
	if err := unix.Mkfifo(path, 0o600); err != nil {
		r.t.Fatal(err)
	}
	out := make(chan string, 1)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), path)
	go func() {
		defer file.Close()
		var all strings.Builder
		buf := make([]byte, 4096)
		for r.ctx.Err() == nil {
			ended := r.ended(path) // asked before the read: what was written until then is in the pipe
			n, err := file.Read(buf)
			all.Write(buf[:n])
			if errors.Is(err, io.EOF) && all.Len() == 0 && !ended {
				time.Sleep(5 * time.Millisecond) // no writer has come yet
				continue
			}
			if err != nil {
				break
			}
		}
		out <- all.String()
	}()
	return out
}

// ended reports whether the task of a pipe is known to have ended, so that an empty output is final.
func (r *rig) ended(path string) bool {
	r.swap.Lock()
	d := r.Driver
	r.swap.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, t := range d.tasks {
		if t.cfg.GetStdoutPath() == path || t.cfg.GetStderrPath() == path {
			return t.hasEnded()
		}
	}
	return false
}

func (r *rig) start(j job) *driverpb.TaskHandle {
	r.t.Helper()
	h, _, err := r.Start(r.ctx, j.cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	return h
}

func (r *rig) wait(id string) *driverpb.ExitResult {
	r.t.Helper()
	exit, err := r.Wait(r.ctx, id)
	if err != nil {
		r.t.Fatalf("wait: %v", err)
	}
	return exit
}

// shell is the config of a process task.
func shell(script string) map[string]any {
	return map[string]any{"runtime": "process", "command": "/bin/sh", "args": []string{"-c", script}}
}

// reserve makes the device environment of reservations.
func reserve(t testing.TB, all ...grant.Reservation) map[string]string {
	t.Helper()
	env := map[string]string{}
	for _, r := range all {
		name, value, err := r.Env()
		if err != nil {
			t.Fatal(err)
		}
		env[name] = value
	}
	return env
}

// slices is a reservation of n slices of 1 GiB of a card of 80 GiB.
func slicesOf(v accel.Vendor, uuid string, index, n int) grant.Reservation {
	r := grant.Reservation{Vendor: v, Form: accel.Shared, UnitMiB: 1024, Cards: []grant.Card{{UUID: uuid, Model: "A100", Index: index, MemoryMiB: 81559, Units: n}}}
	for i := range n {
		r.Instances = append(r.Instances, fmt.Sprintf("c%s.%d", accel.ShortID(v, uuid), i))
	}
	return r
}

// whole is a reservation of whole cards of 64 GiB.
func whole(v accel.Vendor, uuids ...string) grant.Reservation {
	r := grant.Reservation{Vendor: v, Form: accel.Whole, UnitMiB: 65536, Instances: uuids}
	for i, uuid := range uuids {
		r.Cards = append(r.Cards, grant.Card{UUID: uuid, Model: "910B3", Index: i, MemoryMiB: 65536, Units: 1})
	}
	return r
}

func eventually(t testing.TB, done func() bool, failure string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(failure)
		}
	}
}
