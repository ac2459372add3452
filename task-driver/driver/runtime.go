package driver

import (
	"context"
	"time"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/task-driver/modelcache"
	"github.com/heteroflow/heteroflow/task-driver/probe"
	"github.com/heteroflow/heteroflow/task-driver/process"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/supervisor"
)

// plan is one task on its way to be started: everything is checked, nothing has been touched.
type plan struct {
	cfg   *driverpb.TaskConfig
	tc    TaskConfig
	share admission
	env   map[string]string
	setup share.Combined // what the shares need; empty until they are made

	model  modelcache.Model // where its model is on the node
	probes *probe.Plan
}

// record is what the driver keeps of a task: in Nomad's state as the handle's driver state, and in memory. It must
// stay readable by later versions.
type record struct {
	Version   int    `json:"version"` // 1
	Runtime   string `json:"runtime"`
	Container string `json:"container,omitempty"`
	Host      string `json:"host,omitempty"`  // the daemon that has the container
	Image     string `json:"image,omitempty"` // its id
	// ImagePulled says that the image came to the node by this driver.
	ImagePulled bool          `json:"image_pulled,omitempty"`
	Group       process.Group `json:"group"`
	Cards       []string      `json:"cards,omitempty"`
	// Forms is how each card was given, by UUID.
	Forms     map[string]accel.Form `json:"forms,omitempty"`
	StartedAt time.Time             `json:"started_at"`

	// What later calls need of the task's config and grant: Nomad does not store the config with the handle.
	StopSignal string            `json:"stop_signal,omitempty"`
	WorkDir    string            `json:"work_dir,omitempty"`
	Env        map[string]string `json:"env,omitempty"`
	MemoryMiB  uint64            `json:"memory_mib,omitempty"`
	ComputePct int               `json:"compute_pct,omitempty"`
	QoS        accel.QoS         `json:"qos,omitempty"`

	Shares []share.Held    `json:"shares,omitempty"`
	Setup  *share.Combined `json:"setup,omitempty"`

	Model       string      `json:"model,omitempty"` // where the task finds it
	Probes      *probe.Plan `json:"probes,omitempty"`
	HostNetwork bool        `json:"host_network,omitempty"`
	// GroupNetwork says that its container is in the network of its group.
	GroupNetwork bool `json:"group_network,omitempty"`
}

// newRecord begins the record of a plan.
func newRecord(p *plan) record {
	model := ""
	if p.tc.Model != nil {
		model = p.tc.Model.Path
	}
	return record{
		Model: model, Probes: p.probes, HostNetwork: p.tc.NetworkMode == "host", GroupNetwork: p.tc.Runtime == runtimeDocker && p.group() != nil,
		Version: 1, Runtime: p.tc.Runtime, Cards: p.share.uuids(), Forms: p.share.forms(),
		StopSignal: p.tc.StopSignal, WorkDir: p.tc.WorkDir, Env: p.tc.Env,
		MemoryMiB: p.share.memoryMiB, ComputePct: p.share.computePct, QoS: p.share.qos,
	}
}

// config is the part of the task's config that outlives its start.
func (r record) config() TaskConfig {
	tc := TaskConfig{Runtime: r.Runtime, StopSignal: r.StopSignal, WorkDir: r.WorkDir, Env: r.Env}
	if r.Model != "" {
		tc.Model = &ModelConfig{Path: r.Model}
	}
	return tc
}

// runtime is one way to run a task under supervision.
type runtime interface {
	// check refuses what this node does not allow. It touches nothing.
	check(p *plan) error
	// prepare does what comes before the supervisor: it returns the supervisor's spec and fills the record.
	prepare(ctx context.Context, p *plan, r *record, event func(string)) (supervisor.Spec, error)
	// network tells Nomad the task's own address; nil when it has none.
	network(ctx context.Context, p *plan, r *record) *driverpb.NetworkOverride
	// signal sends a signal to the main process.
	signal(ctx context.Context, t *task, signal string) error
	// stop asks the task to end with the signal; kill ends it at once.
	stop(ctx context.Context, t *task, signal string) error
	kill(ctx context.Context, t *task) error
	// orphaned is called when the supervisor died: it returns a spec that takes the workload over, or how it ended.
	orphaned(ctx context.Context, t *task) (*supervisor.Spec, *supervisor.Exit, error)
	// clean removes what the runtime left on the node. It is harmless when nothing is left.
	clean(ctx context.Context, taskID string, r *record) error
	stats(ctx context.Context, t *task, meter *meter) (*driverpb.TaskStats, error)
	exec(ctx context.Context, t *task, s *nomadplugin.ExecStream) (*driverpb.ExitResult, error)
	inspect(ctx context.Context, t *task) map[string]string
}
