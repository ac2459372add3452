package supervisor

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// aliveFlags open the FIFO that tells a supervisor's end: without waiting for the other side, and without following a
// link.
const aliveFlags = unix.O_NONBLOCK | unix.O_NOFOLLOW

// ownSession keeps a supervisor running when the driver and its terminal end.
func ownSession() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

func closeOnExec(f *os.File) { unix.CloseOnExec(int(f.Fd())) }

func makeFIFO(path string) error {
	if err := unix.Mkfifo(path, 0o600); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("make %s: %w", path, err)
	}
	return nil
}

// openWriter opens an output without waiting for its reader and without following a link. It returns errNoReader for
// a FIFO that nobody reads.
func openWriter(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENXIO):
		return nil, errNoReader
	case errors.Is(err, unix.EINTR):
		return nil, errInterrupted
	case err != nil:
		return nil, err
	}
	// The child gets this very descriptor; programs expect a blocking one.
	if err := unix.SetNonblock(fd, false); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// openReader opens the other end of a FIFO.
func openReader(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// sessionOf is the session of a process, 0 when there is none: one call of the kernel, where /proc costs three and a page
// of text. Where a security module forbids it /proc is read.
func sessionOf(pid int) int {
	sid, err := unix.Getsid(pid)
	switch {
	case err == nil:
		return sid
	case errors.Is(err, unix.ESRCH):
		return 0
	}
	stat, err := ReadStat(pid)
	if err != nil {
		return 0
	}
	return stat.Session
}

// Signal sends a signal to the process. It returns os.ErrProcessDone when it no longer runs. Between the check and
// the signal the pid is held by a pidfd, so that no other process can be hit.
func (p Proc) Signal(sig syscall.Signal) error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	switch {
	case errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM): // kernels before 5.3, seccomp
		if !p.Alive() {
			return os.ErrProcessDone
		}
		return p.sent(unix.Kill(p.PID, sig))
	case err != nil:
		return os.ErrProcessDone
	}
	defer unix.Close(fd) //nolint:errcheck // read-only descriptor
	if !p.Alive() {
		return os.ErrProcessDone
	}
	return p.sent(unix.PidfdSendSignal(fd, sig, nil, 0))
}

// sent is the answer to a signal: a process may end between the check and the signal.
func (p Proc) sent(err error) error {
	switch {
	case errors.Is(err, unix.ESRCH):
		return os.ErrProcessDone
	case err != nil:
		return fmt.Errorf("signal process %d: %w", p.PID, err)
	}
	return nil
}

// SignalGroup sends a signal to the process group the process leads. It returns os.ErrProcessDone when the leader
// is gone and nobody of its session is left.
func (p Proc) SignalGroup(sig syscall.Signal) error {
	if p.PID <= 1 || !p.Alive() && len(p.Session()) == 0 {
		return os.ErrProcessDone
	}
	if err := unix.Kill(-p.PID, sig); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal process group %d: %w", p.PID, err)
	}
	return nil
}
