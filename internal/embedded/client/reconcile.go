package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
)

// missingDriverError is an allocation for a driver that this node does not have.
type missingDriverError struct{ task, driver string }

func (e *missingDriverError) Error() string {
	return fmt.Sprintf("task %s wants driver %q, which is not on this node", e.task, e.driver)
}

// restore starts the runners of an earlier engine's allocations. Those that run are found again by their handles.
func (c *Client) restore(ctx context.Context, tasks *sync.WaitGroup) error {
	states, err := c.store.load(c.log)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, st := range states {
		c.startRunner(ctx, tasks, st.Alloc, st)
	}
	return nil
}

// startRunner is called with mu held.
func (c *Client) startRunner(ctx context.Context, tasks *sync.WaitGroup, alloc *api.Allocation, st *allocState) {
	if alloc.Job == nil || alloc.GetTaskGroup() == nil {
		c.refuse(tasks, alloc, "allocation came without its job or group")
		return
	}
	ar, err := newAllocRunner(c, alloc, st)
	if err != nil {
		c.refuse(tasks, alloc, err.Error())
		return
	}
	c.runners[alloc.ID] = ar
	tasks.Go(func() { ar.run(ctx) })
	if alloc.DesiredStatus != "" && alloc.DesiredStatus != api.AllocDesiredStatusRun {
		ar.stop()
	}
}

// refuse fails an allocation that cannot be run here at all. The server is told aside, since it may call back.
func (c *Client) refuse(tasks *sync.WaitGroup, alloc *api.Allocation, why string) {
	c.log.Error("allocation refused", "alloc_id", alloc.ID, "reason", why)
	states := map[string]*api.TaskState{}
	if alloc.Job != nil && alloc.GetTaskGroup() != nil {
		for _, t := range alloc.GetTaskGroup().Tasks {
			states[t.Name] = &api.TaskState{State: taskDead, Failed: true, FinishedAt: time.Now().UTC(), Events: []*api.TaskEvent{eventSetupFailure(errors.New(why))}}
		}
	}
	tasks.Go(func() {
		c.cfg.Up.UpdateAlloc(AllocUpdate{ID: alloc.ID, ClientStatus: api.AllocClientStatusFailed, ClientDescription: why, TaskStates: states})
	})
}

// SetAllocs implements Backend. It returns at once.
func (c *Client) SetAllocs(allocs []*api.Allocation) {
	c.mu.Lock()
	c.desired, c.given = allocs, true
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// reconcile makes the runners what the server wants.
func (c *Client) reconcile(ctx context.Context, tasks *sync.WaitGroup) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.given {
		return
	}
	wanted := map[string]bool{}
	for _, alloc := range c.desired {
		wanted[alloc.ID] = true
		run := alloc.DesiredStatus == api.AllocDesiredStatusRun
		terminal := alloc.ClientTerminalStatus()
		switch ar := c.runners[alloc.ID]; {
		case ar != nil:
			ar.update(alloc)
			if !terminal && ar.done.is() {
				tasks.Go(func() { c.saveAndTell(ar) }) // the server missed the end
			}
		case terminal:
		case run:
			c.startRunner(ctx, tasks, alloc, nil)
		default:
			tasks.Go(func() {
				c.cfg.Up.UpdateAlloc(AllocUpdate{ID: alloc.ID, ClientStatus: api.AllocClientStatusComplete, ClientDescription: "stopped before it started", TaskStates: map[string]*api.TaskState{}})
			})
		}
	}
	for id, ar := range c.runners {
		if !wanted[id] {
			delete(c.runners, id)
			tasks.Go(func() { c.forget(ctx, ar) })
		}
	}
}

// forget ends an allocation that the server no longer knows, and removes its files.
func (c *Client) forget(ctx context.Context, ar *allocRunner) {
	ar.gone.open()
	for _, t := range ar.tasks {
		t.kill(nil)
	}
	ar.wake()
	select {
	case <-ctx.Done():
		return
	case <-ar.done.ch:
	}
	if ctx.Err() != nil {
		return
	}
	c.saving.Lock()
	defer c.saving.Unlock()
	if err := errors.Join(c.store.remove(ar.id), os.RemoveAll(ar.dir.root)); err != nil {
		ar.log.Error("files of allocation not removed", "error", err)
	}
}

// saveAndTell keeps an allocation's state and tells the server, in this order, so that what the server heard is
// never lost.
func (c *Client) saveAndTell(ar *allocRunner) {
	c.saving.Lock()
	defer c.saving.Unlock()
	if ar.gone.is() {
		return
	}
	if err := c.store.put(ar.persisted()); err != nil {
		ar.log.Error("state of allocation not kept", "error", err)
	}
	c.cfg.Up.UpdateAlloc(ar.summary())
}

// stopTasks stops every running task through its driver without a change of its state: the next engine starts it
// again in the same allocation.
func (c *Client) stopTasks() {
	c.mu.Lock()
	runners := c.runners
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for _, ar := range runners {
		for _, t := range ar.tasks {
			wg.Go(func() {
				if h, inst := t.current(); h != nil && inst != nil && t.state() == taskRunning {
					if err := t.callStop(ctx); err != nil {
						t.log.Error("task not stopped at exit", "error", err)
					}
					t.destroy(ctx)
				}
				if t.snapshot().Starting != "" { // the end came while it was being started
					t.dropStarting(ctx)
				}
				if t.logs != nil {
					t.logs.stop()
				}
			})
		}
	}
	wg.Wait()
}
