// Package supervisor keeps one small process per task that outlives the driver: it opens the task's log FIFOs,
// starts the workload, waits for it and keeps its exit result in a state folder until the task is destroyed. The
// driver side launches it, watches it and finds it again. What a workload is (a child process, a container)
// and anything of Nomad's protocol do not belong here.
package supervisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/moby/sys/atomicwriter"
)

// Phase says how far a task has come.
type Phase string

// The phases of a task, in order. A task never goes back.
const (
	Starting Phase = "starting" // the supervisor is there, the workload is not yet
	Running  Phase = "running"
	Exited   Phase = "exited"
)

// Proc names one process beyond the reuse of its pid: a pid counts only with the start time and boot it was
// recorded with.
type Proc struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks since boot, field 22 of /proc/<pid>/stat
	Boot  string `json:"boot"`  // kernel boot id
}

// Exit is how a workload ended.
type Exit struct {
	Code      int    `json:"code"`
	Signal    int    `json:"signal,omitempty"`
	OOMKilled bool   `json:"oom_killed,omitempty"`
	Err       string `json:"error,omitempty"` // set when the result itself could not be learned
}

// Status is what the state folder says about a task. It never holds the task's environment.
type Status struct {
	Version    int       `json:"version"` // 1
	TaskID     string    `json:"task_id"`
	Phase      Phase     `json:"phase"`
	Supervisor Proc      `json:"supervisor"`
	Task       Proc      `json:"task"`          // main process on the host; zero for a container
	Ref        string    `json:"ref,omitempty"` // container id; empty for a process
	StartedAt  time.Time `json:"started_at"`
	EndedAt    time.Time `json:"ended_at"`
	Exit       *Exit     `json:"exit,omitempty"` // set once Phase is Exited
}

// ErrNoState is returned for a folder in which no task was started.
var ErrNoState = errors.New("no task state")

const (
	statusFile = "status.json"
	specFile   = "spec.json"
	aliveFile  = "alive"
	logFile    = "supervisor.log"
)

// Dir is the state folder of a task below base. Task ids hold slashes and may be long, so that the folder is
// named by a digest; status.json inside says whose it is.
func Dir(base, taskID string) string {
	sum := sha256.Sum256([]byte(taskID))
	return filepath.Join(base, hex.EncodeToString(sum[:10]))
}

// ReadStatus reads the status of a task. It returns ErrNoState when there is none.
func ReadStatus(dir string) (Status, error) {
	body, err := os.ReadFile(filepath.Join(dir, statusFile))
	if errors.Is(err, fs.ErrNotExist) {
		return Status{}, ErrNoState
	}
	if err != nil {
		return Status{}, fmt.Errorf("read task state: %w", err)
	}
	var s Status
	if err := json.Unmarshal(body, &s); err != nil {
		return Status{}, fmt.Errorf("read task state %s: %w", dir, err)
	}
	if s.Version != 1 {
		return Status{}, fmt.Errorf("read task state %s: version %d is not known to this driver", dir, s.Version)
	}
	return s, nil
}

// List reads the status of every task below base. Folders without a readable status are left out: nothing can
// be done for them but to remove them when their task is destroyed.
func List(base string) ([]Status, error) {
	entries, err := os.ReadDir(base)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list task states: %w", err)
	}
	var all []Status
	for _, e := range entries {
		if s, err := ReadStatus(filepath.Join(base, e.Name())); err == nil {
			all = append(all, s)
		}
	}
	return all, nil
}

// WriteStatus replaces the status in one step: a reader or a kill never meets half of it.
func WriteStatus(dir string, s Status) error {
	s.Version = 1
	return writeFile(dir, statusFile, s)
}

func writeFile(dir, name string, value any) error {
	body, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	if err := atomicwriter.WriteFile(filepath.Join(dir, name), body, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// Workload is what a supervisor runs.
type Workload interface {
	// Start starts it, or takes over one that is already running, with its output going to the two files.
	Start(ctx context.Context, stdout, stderr *os.File) (Started, error)
	// Wait blocks until it has ended, all its output is written and nothing of it is left running.
	Wait(ctx context.Context) Exit
}

// Started says what runs.
type Started struct {
	Task Proc
	Ref  string
	At   time.Time
}
