package http1

import (
	"net"
	"syscall"
)

// Socket is a connection that is read into a buffer which is taken once the system has something for it. It is read
// by one goroutine, and written by one.
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

	asking func(fd uintptr) bool
	asked  bool

	writing func(fd uintptr) bool
	out     []byte
	wrote   int
	wrong   error
}

var _ Source = (*Socket)(nil)

// Open takes over a connection.
func (s *Socket) Open(c net.Conn) {
	s.Conn, s.raw = c, rawOf(c)
	s.reading, s.listening, s.asking, s.writing = s.readFrom, s.listen, s.ask, s.writeTo
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

// Write sends all of p.
func (s *Socket) Write(p []byte) (int, error) {
	if s.raw == nil {
		return s.Conn.Write(p)
	}
	s.out, s.wrote, s.wrong = p, 0, nil
	err := s.raw.Write(s.writing)
	s.out = nil
	if err == nil {
		err = s.wrong
	}
	return s.wrote, err
}

// Ask sends a message on a connection that was quiet until then, and reads the beginning of what comes back into in,
// which is empty. Where the connection was not quiet nothing is sent.
func (s *Socket) Ask(in *Input, message []byte) (quiet bool, err error) {
	if s.raw == nil {
		if _, err := s.Conn.Write(message); err != nil {
			return true, err
		}
		return true, in.Fill()
	}
	s.in, s.into, s.n, s.err = in, nil, 0, nil
	s.out, s.wrote, s.wrong = message, 0, nil
	s.asked = false
	err = s.raw.Read(s.asking)
	rest := s.out
	s.out = nil
	switch {
	case err != nil:
		return true, err
	case !s.asked:
		return false, nil
	case s.wrong != nil:
		return true, s.wrong
	case len(rest) > 0: // there was no room for it
		if _, err := s.Write(rest); err != nil {
			return true, err
		}
		return true, in.Fill()
	}
	in.end = s.n
	in.Total += int64(s.n)
	return true, s.err
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
