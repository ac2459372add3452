package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// ErrGone is returned by Watch when the supervisor died before it could write an exit result.
var ErrGone = errors.New("the task's supervisor was killed, its exit result is lost")

// Watch blocks until the task has exited and returns its last status. It may be called any number of times, by any
// process. It returns ErrGone with the last status when the supervisor died without a result.
func Watch(ctx context.Context, dir string) (Status, error) {
	status, err := ReadStatus(dir)
	if err != nil || status.Phase == Exited {
		return status, err
	}
	alive, err := os.OpenFile(filepath.Join(dir, aliveFile), os.O_RDONLY|aliveFlags, 0)
	if err != nil {
		return status, fmt.Errorf("watch supervisor: %w", err)
	}
	defer alive.Close() //nolint:errcheck // read side
	stop := context.AfterFunc(ctx, func() {
		if err := alive.SetReadDeadline(time.Unix(1, 0)); err != nil {
			return // the descriptor is closed: the read has ended
		}
	})
	defer stop()
	for status.Supervisor.Alive() {
		// The supervisor holds the write end for its whole life and never writes: end of file is its end. An end
		// before its start is bridged by looking at the process itself.
		if _, err := io.Copy(io.Discard, alive); err != nil && ctx.Err() == nil {
			return status, fmt.Errorf("watch supervisor: %w", err)
		}
		if ctx.Err() != nil {
			return status, ctx.Err()
		}
		pause()
	}
	if status, err = ReadStatus(dir); err != nil || status.Phase == Exited {
		return status, err
	}
	return status, ErrGone
}

// Settle writes the exit result of a task whose supervisor is gone, unless there is one already.
func Settle(dir string, exit Exit) (Status, error) {
	status, err := ReadStatus(dir)
	if err != nil || status.Phase == Exited {
		return status, err
	}
	status.Phase, status.Exit, status.EndedAt = Exited, &exit, time.Now().UTC()
	return status, WriteStatus(dir, status)
}

// Remove ends the supervisor of a task, and the session its workload leads on the host, and removes the state
// folder. A folder that does not exist is no error.
func Remove(ctx context.Context, dir string) error {
	status, err := ReadStatus(dir)
	if err == nil {
		if err := status.Supervisor.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("end supervisor: %w", err)
		}
		for status.Supervisor.Alive() {
			if ctx.Err() != nil {
				return fmt.Errorf("end supervisor: %w", ctx.Err())
			}
			pause()
		}
		// The supervisor may have started the workload after the first look.
		if now, err := ReadStatus(dir); err == nil {
			status = now
		}
		status.Task.KillSession()
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove task state: %w", err)
	}
	return nil
}
