//go:build unix

package upstream

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

// read implements source. The buffer is taken once the system has something for it.
func (c *conn) read(in *input, p []byte) (int, error) {
	if c.raw == nil {
		if p == nil {
			p = in.take()
		}
		return c.Conn.Read(p)
	}
	c.into, c.readN, c.readErr = p, 0, nil
	if err := c.raw.Read(c.reading); err != nil {
		return 0, err
	}
	return c.readN, c.readErr
}

// readFrom is called when there may be something to read, and says whether there was.
func (c *conn) readFrom(fd uintptr) bool {
	p := c.into
	if p == nil {
		p = c.in.take()
	}
	for {
		n, err := syscall.Read(int(fd), p)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			if c.into == nil {
				c.in.drop()
			}
			return false
		case err != nil:
			c.readErr = os.NewSyscallError("read", err)
		case n == 0:
			c.readErr = io.EOF
		}
		c.readN = max(n, 0)
		return true
	}
}

// quiet reports whether a connection that is not used has said nothing: neither that it ends, nor an answer that
// nobody asked for.
func (c *conn) quiet() bool {
	if c.raw == nil {
		return true
	}
	c.heard = true
	err := c.raw.Read(c.listening)
	return err == nil && !c.heard
}

// listen is called once there may be something to read.
func (c *conn) listen(fd uintptr) bool {
	var one [1]byte
	_, err := syscall.Read(int(fd), one[:])
	c.heard = err != syscall.EAGAIN
	return true
}
