//go:build unix

package http1

import (
	"io"
	"net"
	"os"
	"syscall"
)

// rawOf gives what a connection is read through; nil where it can only be read as it is.
func rawOf(c net.Conn) syscall.RawConn {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// readFrom is called when there may be something to read, and says whether there was.
func (s *Socket) readFrom(fd uintptr) bool {
	p := s.into
	if p == nil {
		p = s.in.Take()
	}
	for {
		n, err := syscall.Read(int(fd), p)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			if s.into == nil {
				s.in.Drop()
			}
			return false
		case err != nil:
			s.err = os.NewSyscallError("read", err)
		case n == 0:
			s.err = io.EOF
		}
		s.n = max(n, 0)
		return true
	}
}

// listen is called once there may be something to read.
func (s *Socket) listen(fd uintptr) bool {
	var one [1]byte
	_, err := syscall.Read(int(fd), one[:])
	s.heard = err != syscall.EAGAIN
	return true
}
