//go:build !unix

package upstream

import (
	"net"
	"syscall"
)

// rawOf gives nothing here: a connection is read as it is.
func rawOf(net.Conn) syscall.RawConn { return nil }

func (c *conn) read(in *input, p []byte) (int, error) {
	if p == nil {
		p = in.take()
	}
	return c.Conn.Read(p)
}

func (c *conn) readFrom(uintptr) bool { return true }

func (c *conn) listen(uintptr) bool { return true }

func (c *conn) quiet() bool { return true }
