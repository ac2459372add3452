package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
)

// runningTask finds a task that runs and the process of its driver.
func (c *Client) runningTask(allocID, task string) (*taskRunner, error) {
	ar, err := c.runner(allocID)
	if err != nil {
		return nil, err
	}
	if task == "" && len(ar.tasks) == 1 {
		task = ar.tasks[0].task.Name
	}
	t := ar.task(task)
	if t == nil {
		return nil, &unknownTaskError{task: task, alloc: allocID}
	}
	if t.state() != taskRunning {
		return nil, fmt.Errorf("task %q is not running", task)
	}
	return t, nil
}

// Exec implements Backend.
func (c *Client) Exec(ctx context.Context, r ExecRequest) (int, error) {
	t, err := c.runningTask(r.AllocID, r.Task)
	if err != nil {
		return 0, err
	}
	h, inst := t.current()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := inst.ExecTaskStreaming(ctx)
	if err != nil {
		return 0, fmt.Errorf("exec in task %s: %s", r.Task, rpcText(err))
	}
	err = stream.Send(&driverpb.ExecTaskStreamingRequest{Setup: &driverpb.ExecTaskStreamingRequest_Setup{
		TaskId: h.GetConfig().GetId(), Command: r.Command, Tty: r.TTY,
	}})
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, fmt.Errorf("exec in task %s: %s", r.Task, rpcText(err))
	}
	feedExec(ctx, stream, r)
	for {
		f, err := stream.Recv()
		if err != nil {
			return 0, fmt.Errorf("exec in task %s: %s", r.Task, rpcText(err))
		}
		if b := f.GetStdout().GetData(); len(b) > 0 {
			if _, err := r.Stdout.Write(b); err != nil {
				return 0, err
			}
		}
		if b := f.GetStderr().GetData(); len(b) > 0 {
			if _, err := r.Stderr.Write(b); err != nil {
				return 0, err
			}
		}
		if f.GetExited() {
			return int(f.GetResult().GetExitCode()), nil
		}
	}
}

// feedExec sends input and sizes until ctx ends. A reader that never ends is left behind with its caller, who closes
// it.
func feedExec(ctx context.Context, stream driverpb.Driver_ExecTaskStreamingClient, r ExecRequest) {
	var mu sync.Mutex
	send := func(f *driverpb.ExecTaskStreamingRequest) bool {
		mu.Lock()
		defer mu.Unlock()
		return ctx.Err() == nil && stream.Send(f) == nil
	}
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case size, ok := <-r.Resize:
				if !ok || !send(&driverpb.ExecTaskStreamingRequest{TtySize: &driverpb.ExecTaskStreamingRequest_TerminalSize{Height: int32(size.Height), Width: int32(size.Width)}}) {
					return
				}
			}
		}
	}()
	go func() {
		buf := make([]byte, 32<<10)
		for r.Stdin != nil {
			n, err := r.Stdin.Read(buf)
			if n > 0 && !send(&driverpb.ExecTaskStreamingRequest{Stdin: &driverpb.ExecTaskStreamingIOOperation{Data: append([]byte(nil), buf[:n]...)}}) {
				return
			}
			if err != nil {
				break
			}
		}
		send(&driverpb.ExecTaskStreamingRequest{Stdin: &driverpb.ExecTaskStreamingIOOperation{Close: true}})
	}()
}
