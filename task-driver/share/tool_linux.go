package share

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// runBound runs a command that is killed when the driver dies. The kernel ties it to the thread that started it, which
// therefore waits for it.
func runBound(cmd *exec.Cmd) (Output, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error {
		err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		if errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		}
		return err
	}
	out := Output{ExitCode: -1}
	stdout, err := newStream()
	if err != nil {
		return out, err
	}
	stderr, err := newStream()
	if err != nil {
		return out, errors.Join(err, stdout.from.Close(), stdout.to.Close())
	}
	cmd.Stdout, cmd.Stderr = stdout.to, stderr.to
	err = cmd.Start()
	go stdout.read()
	go stderr.read()
	if err == nil {
		err = cmd.Wait()
		out.ExitCode = cmd.ProcessState.ExitCode()
	}
	out.Stdout, out.Stderr = stdout.rest(), stderr.rest()
	return out, err
}

// stream takes what a tool prints.
type stream struct {
	from, to *os.File
	kept     capped
	ended    chan struct{} // closed when read has returned
}

func newStream() (*stream, error) {
	from, to, err := os.Pipe()
	return &stream{from: from, to: to, ended: make(chan struct{})}, err
}

// read keeps what comes, until rest ends it.
func (s *stream) read() {
	defer close(s.ended)
	_, _ = io.Copy(&s.kept, s.from) // it ends by rest's deadline, or because everyone has closed the stream
}

// rest is all that a tool printed, once it has ended: what was not read yet lies in the pipe. There is no waiting for the end of
// the stream, which a daemon that the tool left may hold open, nor a time within which it must have been read.
func (s *stream) rest() string {
	defer s.from.Close()
	s.to.Close()
	if err := s.from.SetReadDeadline(time.Unix(1, 0)); err != nil {
		s.from.Close()
	}
	<-s.ended
	raw, err := s.from.SyscallConn()
	if err != nil {
		return s.kept.String()
	}
	buf := make([]byte, 64<<10)
	_ = raw.Control(func(fd uintptr) { // a pipe of os does not block
		for total := 0; total < maxOutput; { // others may print without end
			n, err := unix.Read(int(fd), buf)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if n <= 0 {
				return
			}
			s.kept.Write(buf[:n])
			total += n
		}
	})
	return s.kept.String()
}
