package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/embedded/client"
)

// Host is the node side of one simulated node.
type Host struct {
	cluster *Cluster
	nodeID  string
}

var _ client.Backend = Host{}

// Host is the node side of one of the cluster's nodes.
func (c *Cluster) Host(nodeID string) Host { return Host{cluster: c, nodeID: nodeID} }

// SetAllocs takes the allocations of the node.
func (h Host) SetAllocs(allocs []*api.Allocation) { h.cluster.setAllocs(allocs) }

// Logs sends one line that says that nothing runs.
func (h Host) Logs(ctx context.Context, r client.LogRequest, send func(*api.StreamFrame) error) error {
	if r.Type == "stdout" && r.Offset == 0 {
		line := fmt.Sprintf("simulated task %s of allocation %s: nothing runs here\n", r.Task, r.AllocID)
		if err := send(&api.StreamFrame{File: "alloc/logs/" + r.Task + ".stdout.0", Data: []byte(line), Offset: int64(len(line))}); err != nil {
			return err
		}
	}
	if r.Follow {
		<-ctx.Done()
	}
	return nil
}

// List finds no files.
func (h Host) List(string, string) ([]*api.AllocFileInfo, error) { return nil, nil }

// Stat finds no file.
func (h Host) Stat(_, path string) (*api.AllocFileInfo, error) {
	return nil, fmt.Errorf("%s: a simulated allocation has no files: %w", path, client.ErrNotSupported)
}

// Stream finds no file.
func (h Host) Stream(_ context.Context, r client.StreamRequest, _ func(*api.StreamFrame) error) error {
	return fmt.Errorf("%s: a simulated allocation has no files: %w", r.Path, client.ErrNotSupported)
}

// Exec runs nothing.
func (h Host) Exec(context.Context, client.ExecRequest) (int, error) {
	return 0, fmt.Errorf("exec in a simulated task: %w", client.ErrNotSupported)
}

// AllocStats has no readings.
func (h Host) AllocStats(string, string) (*api.AllocResourceUsage, error) {
	return &api.AllocResourceUsage{
		ResourceUsage: &api.ResourceUsage{MemoryStats: &api.MemoryStats{}, CpuStats: &api.CpuStats{}},
		Tasks:         map[string]*api.TaskResourceUsage{}, Timestamp: time.Now().UnixNano(),
	}, nil
}

// HostStats is what was set; otherwise there are no readings.
func (h Host) HostStats() (*api.HostStats, error) {
	h.cluster.mu.Lock()
	defer h.cluster.mu.Unlock()
	if s := h.cluster.stats[h.nodeID]; s != nil {
		return s, nil
	}
	return &api.HostStats{Memory: &api.HostMemoryStats{}}, nil
}

// Signal reaches nothing, as a task that ignores it.
func (h Host) Signal(string, string, string) error { return nil }

// RestartTask starts nothing anew.
func (h Host) RestartTask(string, string) error { return nil }

// Checks has no checks.
func (h Host) Checks(string) (api.AllocCheckStatuses, error) { return api.AllocCheckStatuses{}, nil }
