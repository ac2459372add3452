package server

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// A client may close its sending side after its request and still read the answer. On the wire that looks like one
// that left, until something is written to it: then the system of one that left says so. net/http takes both for
// leaving, and would stop the engine under a client that waits.

// listener gives connections whose clients may close their sending side.
type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, woken: make(chan struct{}, 1)}, nil
}

// conn keeps the end of what a client sends from the server while a request is being answered, until the client is
// known to be gone.
type conn struct {
	net.Conn
	woken chan struct{} // a deadline was set

	mu        sync.Mutex
	answering bool
	ended     bool
	told      interface{ Knock() }
}

type connKey struct{}

// withConn is http.Server's ConnContext.
func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// connOf gives the connection of a request, nil where it is of another kind.
func connOf(r *http.Request) *conn {
	c, _ := r.Context().Value(connKey{}).(*conn)
	return c
}

// answer begins to hold back the end of what the client sends; the function it gives ends that.
func (c *conn) answer() (end func()) {
	if c == nil {
		return func() {}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answering = true
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.answering, c.told = false, nil
	}
}

// HalfClosed has it knocked when the client sends nothing more, or now when it ended before.
func (c *conn) HalfClosed(k interface{ Knock() }) {
	c.mu.Lock()
	c.told = k
	ended := c.ended
	c.mu.Unlock()
	if ended {
		k.Knock()
	}
}

// Read reads for the server. While a request is being answered the server asks for a single byte, to see whether the
// client leaves.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != io.EOF || len(p) != 1 || !c.hold() {
		return n, err
	}
	for wait := time.Millisecond; ; wait = min(2*wait, 250*time.Millisecond) {
		if gone(c.Conn) {
			return 0, io.EOF
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-c.woken:
			timer.Stop()
		}
		if n, err := c.Conn.Read(p); err != io.EOF {
			return n, err // the server does not want to know any more, or the connection broke
		}
	}
}

// hold reports whether the end is held back, and tells of it.
func (c *conn) hold() bool {
	c.mu.Lock()
	if !c.answering {
		c.mu.Unlock()
		return false
	}
	c.ended = true
	told := c.told
	c.mu.Unlock()
	if told != nil {
		told.Knock()
	}
	return true
}

// SetReadDeadline ends a wait in Read.
func (c *conn) SetReadDeadline(t time.Time) error {
	err := c.Conn.SetReadDeadline(t)
	select {
	case c.woken <- struct{}{}:
	default:
	}
	return err
}
