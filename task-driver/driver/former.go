package driver

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/task-driver/supervisor"
)

// endFormer ends what runs of this very task of the allocation under another id. Nomad makes a new id for every start and has
// one of them run at a time: a client that was killed before it noted that the task runs starts it again, and never asks for the
// first. Both would use what was reserved for one.
func (d *Driver) endFormer(ctx context.Context, cfg *driverpb.TaskConfig) error {
	stem, ok := taskStem(cfg)
	if !ok {
		return nil
	}
	s, _ := d.current()
	states, err := supervisor.List(s.tasksDir())
	if err != nil {
		return err
	}
	leases, err := grant.Leases(s.leasesDir())
	if err != nil {
		d.log.Warn("leases not read before a start", "task_id", cfg.GetId(), "error", err)
	}
	former := map[string]bool{}
	for _, st := range states {
		former[st.TaskID] = true
	}
	for _, l := range leases { // one that was killed before it was launched
		former[l.TaskID] = true
	}
	var problems []error
	for id := range former {
		if id == cfg.GetId() || !strings.HasPrefix(id, stem) || d.known(id) {
			continue
		}
		d.log.Warn("ending an earlier start of a task, of which nomad does not know", "task_id", id, "next", cfg.GetId())
		d.events.emit(cfg, "An earlier start of this task is ended, of which Nomad does not know", nil)
		if err := d.Destroy(ctx, id, true); err != nil {
			problems = append(problems, fmt.Errorf("end an earlier start of the task: %w", err))
		}
	}
	return errors.Join(problems...)
}

// taskStem is what all ids of one task of one allocation begin with: Nomad writes ALLOCATION/TASK/START.
func taskStem(cfg *driverpb.TaskConfig) (string, bool) {
	stem := cfg.GetAllocId() + "/" + cfg.GetName() + "/"
	return stem, cfg.GetAllocId() != "" && cfg.GetName() != "" && strings.HasPrefix(cfg.GetId(), stem)
}
