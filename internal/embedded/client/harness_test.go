package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/nomadplugintest/sample"
)

func TestMain(m *testing.M) {
	Helper()
	sample.Main()
	engineMain()
	os.Exit(m.Run())
}

// uplink remembers what a client told.
type uplink struct {
	mu       sync.Mutex
	node     *api.Node
	allocs   map[string]AllocUpdate
	services map[string][]*api.ServiceRegistration
}

func newUplink() *uplink {
	return &uplink{allocs: map[string]AllocUpdate{}, services: map[string][]*api.ServiceRegistration{}}
}

func (u *uplink) UpdateNode(n *api.Node) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.node = n
}

func (u *uplink) UpdateAlloc(a AllocUpdate) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.allocs[a.ID] = a
}

func (u *uplink) UpdateServices(id string, regs []*api.ServiceRegistration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.services[id] = regs
}

func (u *uplink) lastNode() *api.Node {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.node
}

func (u *uplink) alloc(id string) AllocUpdate {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.allocs[id]
}

func (u *uplink) regs(id string) []*api.ServiceRegistration {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.services[id]
}

// until polls a condition for half a minute.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("did not come: %s", what)
}

// rig is a client with sample plugins in a folder of its own.
type rig struct {
	*Client
	up   *uplink
	cfg  Config
	stop func()
}

// testConfig installs the sample plugins and describes a client with them.
func testConfig(t *testing.T) Config {
	t.Helper()
	dir := t.TempDir()
	plugins := filepath.Join(dir, "plugins")
	for _, d := range []string{plugins, filepath.Join(dir, "driver")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	sample.Install(t, plugins, "device", "sample-device")
	sample.Install(t, plugins, "driver", "sample-driver")
	return Config{
		DataDir: filepath.Join(dir, "data"), PluginDir: plugins,
		Node: NodeConfig{ID: "11111111-0000-4000-8000-000000000000", Name: "node-1", Datacenter: "dc1", NodePool: "default", CPUMHz: 4000, MemoryMiB: 4096, Meta: map[string]string{"rack": "r1"}},
		Plugins: []PluginConfig{
			{Name: "sample-device", Config: map[string]any{"count": 2, "control": filepath.Join(dir, "control.json"), "reserve_log": filepath.Join(dir, "reserve.log")}},
			{Name: "sample-driver", Config: map[string]any{"state_dir": filepath.Join(dir, "driver")}},
		},
		Logger: hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: testLog{t}}),
	}
}

type testLog struct{ t *testing.T }

func (w testLog) Write(p []byte) (int, error) {
	if w.t.Context().Err() == nil && testing.Verbose() {
		w.t.Log(strings.TrimSpace(string(p)))
	}
	return len(p), nil
}

// start runs a client until the test ends, and then stops its tasks.
func start(t *testing.T, cfg Config) *rig {
	t.Helper()
	up := newUplink()
	cfg.Up, cfg.StopOnExit = up, true
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	var once sync.Once
	r := &rig{Client: c, up: up, cfg: cfg, stop: func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("run: %v", err)
			}
		})
	}}
	t.Cleanup(r.stop)
	until(t, "the node", func() bool { return up.lastNode() != nil })
	return r
}

func ptr[T any](v T) *T { return &v }

const allocID = "22222222-0000-4000-8000-000000000000"

// newAlloc is an allocation of one task that runs a shell script.
func newAlloc(script string, change ...func(*api.Allocation, *api.TaskGroup, *api.Task)) *api.Allocation {
	task := &api.Task{
		Name: "web", Driver: "sample-driver", Config: map[string]any{"command": "/bin/sh", "args": []any{"-c", script}},
		KillTimeout: ptr(2 * time.Second), RestartPolicy: &api.RestartPolicy{Attempts: ptr(0), Mode: ptr("fail"), Interval: ptr(time.Minute), Delay: ptr(time.Millisecond)},
	}
	tg := &api.TaskGroup{Name: ptr("group"), Count: ptr(1), Tasks: []*api.Task{task}}
	alloc := &api.Allocation{
		ID: allocID, Namespace: "default", Name: "job.group[3]", JobID: "job", TaskGroup: "group", DesiredStatus: "run", ClientStatus: "pending",
		Job: &api.Job{ID: ptr("job"), Name: ptr("job"), Type: ptr("service"), Version: ptr(uint64(0)), Meta: map[string]string{"owner": "me"}, TaskGroups: []*api.TaskGroup{tg}},
		AllocatedResources: &api.AllocatedResources{
			Tasks:  map[string]*api.AllocatedTaskResources{"web": {Cpu: api.AllocatedCpuResources{CpuShares: 100}, Memory: api.AllocatedMemoryResources{MemoryMB: 64}}},
			Shared: api.AllocatedSharedResources{Ports: []api.PortMapping{{Label: "http", Value: 20123, HostIP: "127.0.0.1"}}},
		},
	}
	for _, f := range change {
		f(alloc, tg, task)
	}
	return alloc
}

func withDevice(ids ...string) func(*api.Allocation, *api.TaskGroup, *api.Task) {
	return func(a *api.Allocation, _ *api.TaskGroup, _ *api.Task) {
		a.AllocatedResources.Tasks["web"].Devices = []*api.AllocatedDeviceResource{{Vendor: "sample", Type: "gpu", Name: "S1", DeviceIDs: ids}}
	}
}

func batch(a *api.Allocation, _ *api.TaskGroup, _ *api.Task) { a.Job.Type = ptr("batch") }

const forever = "while :; do sleep 0.05; done"

// status waits for a client status.
func (r *rig) status(t *testing.T, want string) AllocUpdate {
	t.Helper()
	until(t, "status "+want, func() bool { return r.up.alloc(allocID).ClientStatus == want })
	return r.up.alloc(allocID)
}

func (r *rig) log(t *testing.T, kind string) string {
	t.Helper()
	var b bytes.Buffer
	err := r.Logs(context.Background(), LogRequest{AllocID: allocID, Task: "web", Type: kind}, func(f *api.StreamFrame) error {
		b.Write(f.Data)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func eventTypes(s *api.TaskState) string {
	var out []string
	for _, e := range s.Events {
		out = append(out, e.Type)
	}
	return strings.Join(out, ", ")
}

func stopped(a *api.Allocation) *api.Allocation {
	copied := *a
	copied.DesiredStatus = "stop"
	return &copied
}

// engineMain makes this process an engine that can be killed: it prints what it tells as JSON lines.
func engineMain() {
	path := os.Getenv("TEST_ENGINE")
	if path == "" {
		return
	}
	var in struct {
		Config Config
		Allocs []*api.Allocation
	}
	if _, err := readJSON(path, &in); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	in.Config.Up = &printer{enc: json.NewEncoder(os.Stdout)}
	c, err := New(in.Config)
	if err == nil {
		c.SetAllocs(in.Allocs)
		err = c.Run(context.Background())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

type printer struct {
	mu  sync.Mutex
	enc *json.Encoder
}

func (p *printer) print(v any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.enc.Encode(v); err != nil {
		os.Exit(1)
	}
}

func (p *printer) UpdateNode(*api.Node)                              {}
func (p *printer) UpdateServices(string, []*api.ServiceRegistration) {}
func (p *printer) UpdateAlloc(u AllocUpdate)                         { p.print(u) }
