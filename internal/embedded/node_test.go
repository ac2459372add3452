package embedded_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/embedded"
	"github.com/heteroflow/heteroflow/internal/embedded/client"
	"github.com/heteroflow/heteroflow/internal/embedded/sim"
)

// fakeNode is a node side that runs nothing but answers every call.
type fakeNode struct {
	cfg client.Config

	mu    sync.Mutex
	calls []string
	given []*api.Allocation
}

var _ embedded.NodeSide = (*fakeNode)(nil)

func (f *fakeNode) note(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
}

func (f *fakeNode) Run(ctx context.Context) error {
	n := sim.NewBuilder().Build(embedded.SimNodes(1, 1, accel.NVIDIA, "A100", 81920, accel.Shared)[0])
	n.ID, n.Name, n.Attributes = f.cfg.Node.ID, f.cfg.Node.Name, map[string]string{"kernel.name": "linux"}
	f.cfg.Up.UpdateNode(n)
	<-ctx.Done()
	return nil
}

func (f *fakeNode) SetAllocs(allocs []*api.Allocation) {
	f.mu.Lock()
	f.given = allocs
	f.mu.Unlock()
	for _, a := range allocs {
		status := "running"
		if a.DesiredStatus != "run" {
			status = "complete"
		}
		if a.ClientStatus != status {
			f.cfg.Up.UpdateAlloc(client.AllocUpdate{ID: a.ID, ClientStatus: status, Healthy: new(true)})
		}
	}
}

func (f *fakeNode) Logs(_ context.Context, r client.LogRequest, send func(*api.StreamFrame) error) error {
	for i := range 3 {
		if err := send(&api.StreamFrame{File: r.Task, Offset: int64(i), Data: fmt.Appendf(nil, "%s line %d\n", r.Type, i)}); err != nil {
			return err
		}
	}
	return nil
}

func (f *fakeNode) List(_, path string) ([]*api.AllocFileInfo, error) {
	return []*api.AllocFileInfo{{Name: "in " + path, Size: 3}}, nil
}

func (f *fakeNode) Stat(_, path string) (*api.AllocFileInfo, error) {
	return &api.AllocFileInfo{Name: path, Size: 3}, nil
}

func (f *fakeNode) Stream(_ context.Context, r client.StreamRequest, send func(*api.StreamFrame) error) error {
	return send(&api.StreamFrame{File: r.Path, Data: []byte("content")})
}

func (f *fakeNode) Exec(_ context.Context, r client.ExecRequest) (int, error) {
	in, err := io.ReadAll(r.Stdin)
	if err != nil {
		return 0, err
	}
	if _, err := fmt.Fprintf(r.Stdout, "%v got %q", r.Command, in); err != nil {
		return 0, err
	}
	if _, err := r.Stderr.Write([]byte("warning")); err != nil {
		return 0, err
	}
	return 7, nil
}

func (f *fakeNode) AllocStats(string, string) (*api.AllocResourceUsage, error) {
	return &api.AllocResourceUsage{Timestamp: 5}, nil
}
func (f *fakeNode) HostStats() (*api.HostStats, error) { return &api.HostStats{Uptime: 9}, nil }
func (f *fakeNode) Signal(id, task, signal string) error {
	f.note("signal %s %s", task, signal)
	return nil
}

func (f *fakeNode) RestartTask(id, task string) error {
	f.note("restart %s", task)
	return client.ErrUnknownAlloc
}

func (f *fakeNode) Checks(string) (api.AllocCheckStatuses, error) {
	return api.AllocCheckStatuses{"c": {Check: "alive", Status: "success"}}, nil
}

func TestEngine_HostsThisMachine(t *testing.T) {
	t.Parallel()
	var node *fakeNode
	dir := t.TempDir()
	e, c := start(t, embedded.Config{DataDir: dir, NodeEnabled: true, NewNode: func(cfg client.Config) (embedded.NodeSide, error) {
		node = &fakeNode{cfg: cfg}
		return node, nil
	}})
	eventually(t, "the node is ready", func() bool {
		nodes, _, err := c.Nodes().List(nil)
		return err == nil && len(nodes) == 1 && nodes[0].Status == "ready" && nodes[0].Address == "127.0.0.1"
	})
	register(t, c, job("a", 1, device("vgpu", 5)))
	eventually(t, "it runs", func() bool { return len(running(t, c, "a")) == 1 })
	a := running(t, c, "a")[0]

	t.Run("exec", func(t *testing.T) {
		var stdout, stderr bytes.Buffer
		code, err := c.Allocations().Exec(t.Context(), a, "t", false, []string{"cat", "-"}, strings.NewReader("hello"), &stdout, &stderr, nil, nil)
		if err != nil || code != 7 || stdout.String() != `[cat -] got "hello"` || stderr.String() != "warning" {
			t.Errorf("exec gave %d, %v, %q, %q", code, err, stdout.String(), stderr.String())
		}
	})
	t.Run("files", func(t *testing.T) {
		files, _, err := c.AllocFS().List(a, "/x", nil)
		if err != nil || len(files) != 1 || files[0].Name != "in /x" {
			t.Errorf("list gave %+v, %v", files, err)
		}
		body, err := c.AllocFS().Cat(a, "/x/y", nil)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(body)
		if err != nil || string(text) != "content" {
			t.Errorf("cat gave %q, %v", text, err)
		}
		if info, _, err := c.AllocFS().Stat(a, "/x/y", nil); err != nil || info.Name != "/x/y" {
			t.Errorf("stat gave %+v, %v", info, err)
		}
	})
	t.Run("logs", func(t *testing.T) {
		frames, errs := c.AllocFS().Logs(a, true, "t", "stderr", "start", 0, t.Context().Done(), nil)
		var text string
		for f := range frames {
			text += string(f.Data)
		}
		select {
		case err := <-errs:
			t.Error(err)
		default:
		}
		if text != "stderr line 0\nstderr line 1\nstderr line 2\n" {
			t.Errorf("log is %q", text)
		}
	})
	t.Run("control", func(t *testing.T) {
		if err := c.Allocations().Signal(a, nil, "t", "SIGHUP"); err != nil {
			t.Error(err)
		}
		if err := c.Allocations().Restart(a, "t", nil); err == nil || !strings.Contains(err.Error(), "404") {
			t.Errorf("restarting what the node does not know: %v", err)
		}
		if checks, err := c.Allocations().Checks(a.ID, nil); err != nil || checks["c"].Status != "success" {
			t.Errorf("checks are %+v, %v", checks, err)
		}
		if stats, err := c.Allocations().Stats(a, nil); err != nil || stats.Timestamp != 5 {
			t.Errorf("stats are %+v, %v", stats, err)
		}
		if stats, err := c.Nodes().Stats(a.NodeID, nil); err != nil || stats.Uptime != 9 {
			t.Errorf("host stats are %+v, %v", stats, err)
		}
	})
	if _, _, err := c.Jobs().Deregister("a", false, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it ended", func() bool { return len(running(t, c, "a")) == 0 })
	if e.Addr() == "" {
		t.Error("no address")
	}
}

func TestNew_NodeWithoutAFolderIsRefused(t *testing.T) {
	t.Parallel()
	_, err := embedded.New(embedded.Config{NodeEnabled: true, NewNode: func(client.Config) (embedded.NodeSide, error) {
		t.Error("a node was made, which would write into the working folder")
		return nil, nil
	}})
	if err == nil || !strings.Contains(err.Error(), "set DataDir") {
		t.Errorf("err = %v, want one that says what to set", err)
	}
}

func TestEngine_NodeThatIsGoneIsDown(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	make := func(enabled bool) embedded.Config {
		return embedded.Config{DataDir: dir, NodeEnabled: enabled, NewNode: func(cfg client.Config) (embedded.NodeSide, error) { return &fakeNode{cfg: cfg}, nil }}
	}
	t.Run("with the node", func(t *testing.T) {
		_, c := start(t, make(true))
		eventually(t, "the node is there", func() bool {
			nodes, _, err := c.Nodes().List(nil)
			return err == nil && len(nodes) == 1
		})
		register(t, c, job("a", 1, nil))
		eventually(t, "it runs", func() bool { return len(running(t, c, "a")) == 1 })
	})
	t.Run("without", func(t *testing.T) {
		_, c := start(t, make(false))
		eventually(t, "the allocation is lost", func() bool {
			allocs, _, err := c.Jobs().Allocations("a", true, nil)
			return err == nil && len(allocs) == 1 && allocs[0].ClientStatus == "lost"
		})
	})
	t.Run("with it again", func(t *testing.T) {
		_, c := start(t, make(true))
		eventually(t, "it runs anew", func() bool { return len(running(t, c, "a")) == 1 })
	})
}
