package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/heteroflow/heteroflow/task-driver/supervisor"
)

// Size is the size of a terminal in characters.
type Size struct{ Height, Width int }

// Streams are the ends of an exec session. Resize is read only with a terminal and may be nil.
type Streams struct {
	TTY            bool
	Stdin          io.Reader // may be nil
	Stdout, Stderr io.Writer // Stderr is not used with a terminal
	Resize         <-chan Size
}

// Exec runs the command beside the task, in its cgroups, and blocks until it ends. When ctx ends first the command
// and its children are killed and ctx's error is returned.
func Exec(ctx context.Context, c Command, s Streams) (supervisor.Exit, error) {
	cmd, err := c.prepare()
	if err != nil {
		return supervisor.Exit{}, err
	}
	if s.TTY {
		return execTTY(ctx, cmd, c, s)
	}
	ownSession(cmd)
	cmd.Stdout, cmd.Stderr = s.Stdout, s.Stderr
	cmd.WaitDelay = 2 * time.Second // children that keep the output open do not hold the session for ever
	stdin, err := pipeIn(cmd, s.Stdin)
	if err != nil {
		return supervisor.Exit{}, err
	}
	return run(ctx, cmd, c.existing(), stdin)
}

// existing is the task's cgroups, or none when the task has just ended and they are gone.
func (c Command) existing() Group {
	for _, path := range c.Group.Paths {
		if _, err := os.Stat(path); err != nil {
			return Group{Mode: Unlimited}
		}
	}
	return c.Group
}

// pipeIn feeds the input by hand: exec.Cmd would wait for the reader to end after the command has.
func pipeIn(cmd *exec.Cmd, in io.Reader) (func(), error) {
	if in == nil {
		return func() {}, nil
	}
	w, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	return func() {
		go func() {
			_, err := io.Copy(w, in)
			if err := errors.Join(err, w.Close()); err != nil {
				return // the command has ended or closed its input
			}
		}()
	}, nil
}

func run(ctx context.Context, cmd *exec.Cmd, g Group, started func()) (supervisor.Exit, error) {
	if err := startIn(cmd, g); err != nil {
		return supervisor.Exit{}, fmt.Errorf("start %s: %w", cmd.Args[0], err)
	}
	proc, err := supervisor.ProcOf(cmd.Process.Pid)
	if err != nil {
		return supervisor.Exit{}, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	started()
	stop := context.AfterFunc(ctx, proc.KillSession)
	err = cmd.Wait()
	if !stop() {
		return exitOf(cmd.ProcessState, err), ctx.Err()
	}
	return exitOf(cmd.ProcessState, err), nil
}
