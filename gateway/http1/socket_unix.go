//go:build unix

package http1

import (
	"io"
	"net"
	"os"
	"syscall"
)

// rawOf gives what a connection is read and written through; nil where it can only be used as it is.
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
		n, err := readNow(fd, p)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			if s.into == nil {
				s.in.Drop()
			}
			return false
		case err != 0:
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
	_, err := readNow(fd, one[:])
	s.heard = err != syscall.EAGAIN
	return true
}

// ask is called when it is time to ask, and then as readFrom is: to wait from the question on spares a try to read when
// there can be no answer.
func (s *Socket) ask(fd uintptr) bool {
	if s.asked {
		return s.readFrom(fd)
	}
	if s.listen(fd); s.heard {
		return true
	}
	s.asked = true
	return !s.writeTo(fd) || s.wrong != nil
}

// writeTo is called when there may be room for something, and says whether there was room for all.
func (s *Socket) writeTo(fd uintptr) bool {
	for len(s.out) > 0 {
		n, err := writeNow(fd, s.out)
		switch err {
		case 0:
			s.wrote += n
			s.out = s.out[n:]
		case syscall.EINTR:
		case syscall.EAGAIN:
			return false
		default:
			s.wrong = os.NewSyscallError("write", err)
			return true
		}
	}
	return true
}
