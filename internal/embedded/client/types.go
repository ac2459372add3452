// Package client is the node side of the embedded engine: it hosts the device plugin and the task driver over
// their gRPC protocol, runs the allocations its node was given, keeps their logs and registers their services.
// What it is given to run, and why, is decided elsewhere: no scheduling, no HTTP and no job is kept here.
package client

import (
	"context"
	"errors"
	"io"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
)

// Config is what a node side needs to run.
type Config struct {
	DataDir   string
	Node      NodeConfig
	PluginDir string
	Plugins   []PluginConfig
	Logger    hclog.Logger
	Up        Uplink
	// ConsulAddr is the Consul agent where services of provider consul are registered, such as
	// http://127.0.0.1:8500. Empty: they are not registered anywhere.
	ConsulAddr string
	// StopOnExit stops every task when Run's context ends, as a development agent does. The tasks are started
	// again, in the same allocations, when the engine comes back.
	StopOnExit bool
}

// NodeConfig names the node and what it has to give.
type NodeConfig struct {
	ID         string // the server fills it in, once for a data folder
	Name       string
	Datacenter string
	NodePool   string
	Class      string
	Meta       map[string]string
	CPUMHz     int    // 0: as found on the machine
	MemoryMiB  int    // 0: as found on the machine
	HostIP     string // address of the node's ports; 127.0.0.1 when empty
}

// PluginConfig is one plugin binary and its configuration, as a plugin block of an agent's file has it.
type PluginConfig struct {
	Name   string
	Args   []string
	Config map[string]any
}

// Uplink is the server as the node side sees it. Its methods may be called from any goroutine and do not block on
// the node side.
type Uplink interface {
	// UpdateNode states the whole node: resources with devices, attributes, drivers, status.
	UpdateNode(node *api.Node)
	// UpdateAlloc states what became of one allocation.
	UpdateAlloc(u AllocUpdate)
	// UpdateServices states every registration of one allocation; none means that it has none any more.
	UpdateServices(allocID string, regs []*api.ServiceRegistration)
}

// AllocUpdate is the client's half of an allocation.
type AllocUpdate struct {
	ID                string
	ClientStatus      string
	ClientDescription string
	TaskStates        map[string]*api.TaskState
	Healthy           *bool // nil: nothing known yet of its health in the deployment
}

// ErrUnknownAlloc is the answer of a Backend to a call for an allocation, or a task of it, that it does not run.
var ErrUnknownAlloc = errors.New("unknown allocation")

// ErrNotSupported is the answer of a Backend to a call it has no means for.
var ErrNotSupported = errors.New("not supported on this node")

// LogRequest asks for the log of one task.
type LogRequest struct {
	AllocID, Task string
	Type          string // stdout or stderr
	Origin        string // start or end
	Offset        int64
	Follow        bool
}

// StreamRequest asks for the content of one file below the allocation's folder.
type StreamRequest struct {
	AllocID, Path string
	Origin        string // start or end
	Offset        int64
	Limit         int64 // bytes at most, 0 for all
	Follow        bool
}

// ExecRequest asks to run a command inside a task.
type ExecRequest struct {
	AllocID, Task  string
	Command        []string
	TTY            bool
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Resize         <-chan api.TerminalSize
}

// Backend is what the engine's HTTP edge asks of a node: the calls under /v1/client. An allocation it does not run
// is ErrUnknownAlloc.
type Backend interface {
	// SetAllocs states every allocation of the node, each with its job. One whose DesiredStatus is stop or evict is
	// to be stopped; one that is missing may be forgotten. Repeating it changes nothing.
	SetAllocs(allocs []*api.Allocation)
	// Logs sends frames until the end of the log, or until ctx ends when following.
	Logs(ctx context.Context, r LogRequest, send func(*api.StreamFrame) error) error
	// List and Stat look at the allocation's folder; path starts at its root.
	List(allocID, path string) ([]*api.AllocFileInfo, error)
	Stat(allocID, path string) (*api.AllocFileInfo, error)
	// Stream sends a file's content as frames.
	Stream(ctx context.Context, r StreamRequest, send func(*api.StreamFrame) error) error
	Exec(ctx context.Context, r ExecRequest) (exitCode int, err error)
	AllocStats(allocID, task string) (*api.AllocResourceUsage, error)
	HostStats() (*api.HostStats, error)
	// Signal and RestartTask act on every task when task is empty.
	Signal(allocID, task, signal string) error
	RestartTask(allocID, task string) error
	Checks(allocID string) (api.AllocCheckStatuses, error)
}
