package driver

import (
	"cmp"
	"os"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/task-driver/probe"
	"github.com/heteroflow/heteroflow/task-driver/supervisor"
)

// task is one task the driver knows, running or ended.
type task struct {
	id      string
	cfg     *driverpb.TaskConfig
	config  TaskConfig
	env     map[string]string // what exec sessions get
	record  record
	runtime runtime
	dir     string        // of the supervisor's state
	ended   chan struct{} // closed when last is final

	mu   sync.Mutex
	last supervisor.Status

	life      sync.Mutex // held while a supervisor is replaced and while the task is destroyed
	destroyed bool

	hold []*os.File // the log pipes of a container, held open while a supervisor is replaced; watch closes them

	destroyFailed atomic.Bool // a destroy was asked for and must be tried again
	asked         atomic.Bool // Nomad has asked for it since it was started here: it has heard that it runs

	probes    *probe.Watch // nil: none were asked for
	endProbes func()
	condemned string // why its watchdog ended it; under mu
}

// holdLogs keeps the log collector reading when the supervisor of a container dies, since another takes its place.
func (t *task) holdLogs() {
	if t.record.Container == "" {
		return
	}
	for _, path := range []string{t.cfg.GetStdoutPath(), t.cfg.GetStderrPath()} {
		if f := supervisor.HoldLog(path); f != nil {
			t.hold = append(t.hold, f)
		}
	}
}

func (t *task) releaseLogs() {
	for _, f := range t.hold {
		if err := f.Close(); err != nil {
			continue // closed before
		}
	}
	t.hold = nil
}

// finish makes the task's end known, once.
func (t *task) finish(s supervisor.Status) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.hasEnded() {
		return
	}
	t.last = s
	close(t.ended)
}

func (t *task) setStatus(s supervisor.Status) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.hasEnded() {
		t.last = s
	}
}

func (t *task) supervised() supervisor.Status {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}

func (t *task) hasEnded() bool {
	select {
	case <-t.ended:
		return true
	default:
		return false
	}
}

// exit is how the task ended; only for a task that has.
func (t *task) exit() supervisor.Exit {
	if e := t.supervised().Exit; e != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		out := *e
		out.Err = cmp.Or(out.Err, t.condemned)
		return out
	}
	return supervisor.Exit{Code: -1, Err: "the exit result is lost"}
}

// status is the task in Nomad's words.
func (t *task) status() *driverpb.TaskStatus {
	s := t.supervised()
	out := &driverpb.TaskStatus{
		Id: t.id, Name: t.cfg.GetName(), State: driverpb.TaskState_RUNNING,
		StartedAt: timestamppb.New(s.StartedAt), CompletedAt: timestamppb.New(s.EndedAt),
	}
	if t.hasEnded() {
		out.State, out.Result = driverpb.TaskState_EXITED, exitResult(t.exit())
	}
	return out
}
