package http1

import (
	"net"
	"syscall"
)

// Socket is a connection that is read into a buffer which is taken once the system has something for it. It is read
// by one goroutine.
type Socket struct {
	net.Conn
	raw syscall.RawConn // nil where reading has to have its buffer before there is something to read

	reading func(fd uintptr) bool // for raw, as are those below
	in      *Input
	into    []byte
	n       int
	err     error

	listening func(fd uintptr) bool
	heard     bool
}

var _ Source = (*Socket)(nil)

// Open takes over a connection.
func (s *Socket) Open(c net.Conn) {
	s.Conn, s.raw = c, rawOf(c)
	s.reading, s.listening = s.readFrom, s.listen
}

// ReadTo implements Source.
func (s *Socket) ReadTo(in *Input, p []byte) (int, error) {
	if s.raw == nil {
		if p == nil {
			p = in.Take()
		}
		return s.Conn.Read(p)
	}
	s.in, s.into, s.n, s.err = in, p, 0, nil
	if err := s.raw.Read(s.reading); err != nil {
		return 0, err
	}
	return s.n, s.err
}

// Quiet reports whether a connection that is not used has said nothing: neither that it ends, nor anything that nobody
// asked for.
func (s *Socket) Quiet() bool {
	if s.raw == nil {
		return true
	}
	s.heard = true
	err := s.raw.Read(s.listening)
	return err == nil && !s.heard
}
