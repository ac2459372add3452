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
