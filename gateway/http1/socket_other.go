//go:build !unix

package http1

import (
	"net"
	"syscall"
)

// rawOf gives nothing here: a connection is used as it is.
func rawOf(net.Conn) syscall.RawConn { return nil }

func (s *Socket) readFrom(uintptr) bool { return true }

func (s *Socket) listen(uintptr) bool { return true }

func (s *Socket) ask(uintptr) bool { return true }

func (s *Socket) writeTo(uintptr) bool { return true }
