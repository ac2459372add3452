//go:build unix

package nomadplugintest

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/host"
)

// alloc is an allocation's folder with both log pipes and what came out of them.
type alloc struct {
	cfg    *driverpb.TaskConfig
	mu     sync.Mutex
	stdout strings.Builder
}

func (a *alloc) output() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stdout.String()
}

// newAlloc prepares what a client prepares before StartTask: folders, pipes with their readers, and the config.
func (r driverRunner) newAlloc(t *testing.T, p *host.Plugin, id string) *alloc {
	t.Helper()
	dir := t.TempDir()
	logs := filepath.Join(dir, "alloc", "logs")
	for _, d := range []string{logs, filepath.Join(dir, "alloc", "data"), filepath.Join(dir, "alloc", "tmp"), filepath.Join(dir, "web", "local"), filepath.Join(dir, "web", "secrets"), filepath.Join(dir, "web", "private"), filepath.Join(dir, "web", "tmp")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	schema, err := p.DriverClient().TaskConfigSchema(within(t, callTimeout), &driverpb.TaskConfigSchemaRequest{})
	if err != nil {
		t.Fatalf("task config schema: %v", err)
	}
	doc, err := host.EncodeConfig(schema.GetSpec(), r.task)
	if err != nil {
		t.Fatal(err)
	}
	a := &alloc{cfg: &driverpb.TaskConfig{
		Id: "5d1b3c4e-0000-4000-8000-000000000001/web/" + id, Name: "web", MsgpackDriverConfig: doc, AllocDir: dir,
		AllocId: "5d1b3c4e-0000-4000-8000-000000000001", JobId: "conformance", JobName: "conformance", TaskGroupName: "group",
		Namespace: "default", NodeId: "node", NodeName: "node", Env: map[string]string{"NOMAD_TASK_NAME": "web"}, DeviceEnv: r.deviceEnv,
		StdoutPath: filepath.Join(logs, ".web.stdout.fifo"), StderrPath: filepath.Join(logs, ".web.stderr.fifo"),
		Resources: &driverpb.Resources{
			AllocatedResources: &driverpb.AllocatedTaskResources{
				Cpu: &driverpb.AllocatedCpuResources{CpuShares: 100}, Memory: &driverpb.AllocatedMemoryResources{MemoryMb: 128},
			},
			LinuxResources: &driverpb.LinuxResources{CpuShares: 100, MemoryLimitBytes: 128 << 20},
		},
	}}
	for _, env := range []map[string]string{r.env, r.deviceEnv} {
		for k, v := range env {
			a.cfg.Env[k] = v
		}
	}
	for path, to := range map[string]io.Writer{a.cfg.StdoutPath: lockedWriter{a}, a.cfg.StderrPath: io.Discard} {
		if err := syscall.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
		// Opened for reading and writing, so that neither side waits for the other when a start fails.
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := f.Close(); err != nil {
				t.Errorf("close log pipe: %v", err)
			}
		})
		go io.Copy(to, f)
	}
	return a
}

type lockedWriter struct{ a *alloc }

func (w lockedWriter) Write(p []byte) (int, error) {
	w.a.mu.Lock()
	defer w.a.mu.Unlock()
	return w.a.stdout.Write(p)
}

func (r driverRunner) start(t *testing.T, p *host.Plugin, a *alloc) *driverpb.TaskHandle {
	t.Helper()
	resp, err := p.DriverClient().StartTask(within(t, firstMessage), &driverpb.StartTaskRequest{Task: a.cfg})
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	h := resp.GetHandle()
	if h.GetConfig().GetId() != a.cfg.Id || h.GetVersion() < 1 {
		t.Fatalf("handle %v has not the task's config or no version", h)
	}
	if len(h.DriverState) == 0 {
		t.Error("handle has no driver state: the task cannot be recovered")
	}
	return h
}

// waiting waits for the task in the background.
func waiting(t *testing.T, p *host.Plugin, id string) <-chan *driverpb.WaitTaskResponse {
	t.Helper()
	ctx := within(t, 2*firstMessage)
	done := make(chan *driverpb.WaitTaskResponse, 1)
	go func() {
		resp, err := p.DriverClient().WaitTask(ctx, &driverpb.WaitTaskRequest{TaskId: id})
		if err != nil {
			resp = &driverpb.WaitTaskResponse{Err: err.Error()}
		}
		done <- resp
	}()
	return done
}

func ended(t *testing.T, done <-chan *driverpb.WaitTaskResponse) *driverpb.WaitTaskResponse {
	t.Helper()
	select {
	case resp := <-done:
		if resp.Err != "" || resp.Result == nil {
			t.Fatalf("wait answered %v", resp)
		}
		return resp
	case <-time.After(firstMessage):
		t.Fatal("wait did not answer after the task's end")
	}
	return nil
}

func destroy(t *testing.T, p *host.Plugin, id string) {
	t.Helper()
	if _, err := p.DriverClient().DestroyTask(within(t, firstMessage), &driverpb.DestroyTaskRequest{TaskId: id, Force: true}); err != nil {
		t.Errorf("destroy: %v", err)
	}
}

// eventually polls until ok or a minute has passed.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Errorf("%s did not come", what)
}
