package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

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
	cmd.SysProcAttr.Setsid = true
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

func execTTY(ctx context.Context, cmd *exec.Cmd, c Command, s Streams) (supervisor.Exit, error) {
	master, slave, err := openPTY()
	if err != nil {
		return supervisor.Exit{}, err
	}
	var closeMaster sync.Once
	done := func() { closeMaster.Do(func() { closeQuietly(master) }) }
	defer done()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty, cmd.SysProcAttr.Ctty = true, true, 0

	output := make(chan struct{})
	exit, err := run(ctx, cmd, c.existing(), func() {
		closeQuietly(slave)
		if s.Stdin != nil {
			go copyQuietly(master, s.Stdin)
		}
		go func() {
			defer close(output)
			copyQuietly(s.Stdout, master) // ends with EIO when the last writer of the terminal has gone
		}()
		if s.Resize != nil {
			go resize(master, s.Resize, output)
		}
	})
	if cmd.Process == nil {
		closeQuietly(slave)
		return exit, err
	}
	select {
	case <-output:
	case <-time.After(2 * time.Second): // a child keeps the terminal open
	}
	return exit, err
}

func resize(master *os.File, sizes <-chan Size, done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case size, ok := <-sizes:
			if !ok {
				return
			}
			raw, err := master.SyscallConn()
			if err != nil {
				return
			}
			ws := &unix.Winsize{Row: uint16(size.Height), Col: uint16(size.Width)}
			if err := raw.Control(func(fd uintptr) {
				err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, ws)
			}); err != nil {
				return
			}
		}
	}
}

// openPTY makes a pseudo-terminal, see pty(7).
func openPTY() (master, slave *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open terminal: %w", err)
	}
	master = os.NewFile(uintptr(fd), "/dev/ptmx")
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("open terminal: %w", err), master.Close())
	}
	return master, slave, nil
}

func copyQuietly(w io.Writer, r io.Reader) {
	if _, err := io.Copy(w, r); err != nil {
		return // one side has ended, which is how a session ends
	}
}

func closeQuietly(f *os.File) {
	if err := f.Close(); err != nil {
		return // closed before
	}
}
