package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
)

// signalCall bounds one signal.
const signalCall = 10 * time.Second

// Signal implements Backend.
func (c *Client) Signal(allocID, task, signal string) error {
	ar, err := c.runner(allocID)
	if err != nil {
		return err
	}
	tasks, err := ar.selected(task)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), signalCall)
	defer cancel()
	var errs []error
	for _, t := range tasks {
		if t.state() != taskRunning {
			if task != "" {
				errs = append(errs, fmt.Errorf("task %q is not running", task))
			}
			continue
		}
		e := newEvent(api.TaskSignaling, "Task being sent signal "+signal+": User requested")
		e.TaskSignal = signal
		e.Details["signal"] = signal
		t.event(e)
		h, inst := t.current()
		if _, err := inst.SignalTask(ctx, &driverpb.SignalTaskRequest{TaskId: h.GetConfig().GetId(), Signal: signal}); err != nil {
			errs = append(errs, fmt.Errorf("signal task %s: %s", t.task.Name, rpcText(err)))
		}
	}
	return errors.Join(errs...)
}

// RestartTask implements Backend.
func (c *Client) RestartTask(allocID, task string) error {
	ar, err := c.runner(allocID)
	if err != nil {
		return err
	}
	tasks, err := ar.selected(task)
	if err != nil {
		return err
	}
	restarted := false
	for _, t := range tasks {
		if t.state() == taskRunning {
			restarted = true
			t.restart(restartAsk{reason: "User requested running tasks to restart"})
		}
	}
	if !restarted {
		return fmt.Errorf("allocation %s has no running task to restart", allocID)
	}
	return nil
}

// Checks implements Backend.
func (c *Client) Checks(allocID string) (api.AllocCheckStatuses, error) {
	ar, err := c.runner(allocID)
	if err != nil {
		return nil, err
	}
	return ar.checkStates(), nil
}
