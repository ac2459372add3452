package client

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
)

// allocState is what survives the engine for one allocation.
type allocState struct {
	Alloc   *api.Allocation       `json:"alloc"`
	Tasks   map[string]*taskState `json:"tasks"`
	Healthy *bool                 `json:"healthy,omitempty"`
	// HealthOf is the deployment that Healthy was found in.
	HealthOf string `json:"health_of,omitempty"`
}

// taskState is what survives the engine for one task. The device environment is kept because a task that starts
// again keeps its devices: they are reserved once in an allocation's life.
type taskState struct {
	State  *api.TaskState `json:"state"`
	TaskID string         `json:"task_id,omitempty"`
	Handle []byte         `json:"handle,omitempty"` // driverpb.TaskHandle
	// Starting is the id under which the driver was asked to start the task, until its answer is kept. An engine that
	// comes after cannot know what became of it.
	Starting  string            `json:"starting,omitempty"`
	Reserved  bool              `json:"reserved,omitempty"`
	DeviceEnv map[string]string `json:"device_env,omitempty"`
	Restart   restartState      `json:"restart"`
}

// stateStore keeps one file for each allocation.
type stateStore struct{ dir string }

func (s stateStore) path(id string) string { return filepath.Join(s.dir, id+".json") }

func (s stateStore) put(st *allocState) error { return writeJSON(s.path(st.Alloc.ID), st) }

func (s stateStore) remove(id string) error { return removeFile(s.path(id)) }

// load reads every allocation. A file that does not read is set aside, so that one of them does not keep the others
// from being taken over.
func (s stateStore) load(log hclog.Logger) ([]*allocState, error) {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list allocations: %w", err)
	}
	var out []*allocState
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok || strings.HasPrefix(id, ".") {
			continue
		}
		var st allocState
		if _, err := readJSON(s.path(id), &st); err != nil || st.Alloc == nil || st.Alloc.Job == nil || st.Alloc.ID != id {
			log.Error("allocation not restored, its file is set aside", "alloc_id", id, "error", err)
			if err := os.Rename(s.path(id), s.path(id)+".bad"); err != nil {
				return nil, fmt.Errorf("set file of allocation %s aside: %w", id, err)
			}
			continue
		}
		out = append(out, &st)
	}
	return out, nil
}
