// Package plain answers HTTP/1.1 in plain text by an http.Handler: one goroutine a connection, buffers only while they
// hold something, a client that leaves told by the system, and requests that can be read in two ways refused. It runs on
// Linux. What else a client may ask for (TLS, HTTP/2, HTTP/1.0, forms with files, tunnels) is given to another server;
// what is answered does not belong here.
package plain

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Server answers connections. Its fields are not changed once it serves.
type Server struct {
	// Handler answers requests. Neither the request nor the response may be used once it has returned, but for the
	// request's context and its body, which then say that they have ended.
	Handler http.Handler
	// Other takes over a connection on which something is asked that is not spoken here, with what was read of it put
	// back. Where it is nil such requests are refused.
	Other func(net.Conn)
	// Refuse answers a request that makes no sense; the connection ends after it. Nil answers by a line of text.
	Refuse func(w http.ResponseWriter, status int, why string)
	// Panicked is told of a handler that panicked; nil tells nobody. The connection ends.
	Panicked func(v any)

	HeadTime time.Duration // from the first byte of a request's head to its last; 0 is 30 seconds
	IdleTime time.Duration // between two requests, or an eighth more; 0 is 2 minutes
	BodyTime time.Duration // between two pieces of a request's body, or an eighth more; 0 is 1 minute

	mu        sync.Mutex
	conns     map[*conn]bool
	listeners map[net.Listener]bool
	watcher   *watcher
	left      chan struct{} // closed once there are no connections, and there will be none
	closing   atomic.Bool

	date atomic.Pointer[date]
}

// ErrSystem says that the system is one on which this package does not run.
var ErrSystem = errors.New("this system does not tell when a client leaves: use net/http")

// Serve answers what comes in on a listener until it is closed, which Shutdown and Close do: then the error is
// http.ErrServerClosed. Connections that are no TCP connections are those of Other.
func (s *Server) Serve(l net.Listener) error {
	if err := s.open(l); err != nil {
		return err
	}
	defer l.Close() //nolint:errcheck // nothing comes in any more
	for wait := time.Duration(0); ; {
		nc, err := l.Accept()
		switch {
		case s.closing.Load():
			if err == nil {
				nc.Close() //nolint:errcheck // nothing was said on it
			}
			return http.ErrServerClosed
		case err == nil:
			wait = 0
			s.take(nc)
		case !isTemporary(err):
			return err
		default: // too many files are open, or the client left at once
			wait = min(max(2*wait, 5*time.Millisecond), time.Second)
			time.Sleep(wait)
		}
	}
}

func isTemporary(err error) bool {
	var t interface{ Temporary() bool }
	return errors.As(err, &t) && t.Temporary()
}

func (s *Server) open(l net.Listener) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Load() {
		return http.ErrServerClosed
	}
	if s.watcher == nil {
		w, err := newWatcher()
		if err != nil {
			return fmt.Errorf("watch connections: %w", err)
		}
		s.watcher, s.conns, s.listeners, s.left = w, map[*conn]bool{}, map[net.Listener]bool{}, make(chan struct{})
	}
	s.listeners[l] = true
	return nil
}

// take begins to answer a connection.
func (s *Server) take(nc net.Conn) {
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		s.other(nc)
		return
	}
	c := newConn(s, tcp)
	s.mu.Lock()
	ended := s.closing.Load()
	if !ended {
		s.conns[c] = true
	}
	s.mu.Unlock()
	if ended || s.watcher.add(c) != nil {
		s.forget(c)
		tcp.Close() //nolint:errcheck // nothing was said on it
		return
	}
	go c.serve()
}

func (s *Server) other(nc net.Conn) {
	if s.Other == nil {
		nc.Close() //nolint:errcheck // nothing is waited for
		return
	}
	s.Other(nc)
}

// forget is for a connection that has ended, or that is another's.
func (s *Server) forget(c *conn) {
	s.watcher.drop(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns[c] {
		delete(s.conns, c)
		s.lastLeft()
	}
}

// lastLeft tells that nobody is left. The lock is held.
func (s *Server) lastLeft() {
	if s.closing.Load() && len(s.conns) == 0 {
		select {
		case <-s.left:
		default:
			close(s.left)
			s.watcher.close()
		}
	}
}

// Shutdown takes nothing new, closes connections on which nothing is asked, and waits until all other requests are
// answered, or the context ends.
func (s *Server) Shutdown(ctx context.Context) error { return s.end(ctx, false) }

// Close ends everything at once.
func (s *Server) Close() error { return s.end(context.Background(), true) }

func (s *Server) end(ctx context.Context, now bool) error {
	s.mu.Lock()
	s.closing.Store(true)
	if s.watcher == nil {
		s.mu.Unlock()
		return nil
	}
	for l := range s.listeners {
		l.Close() //nolint:errcheck // nothing comes in any more, whatever it says
	}
	for c := range s.conns {
		if c.state.CompareAndSwap(idle, ended) || now {
			c.tcp.Close() //nolint:errcheck // its goroutine finds it closed
		}
	}
	s.lastLeft()
	s.mu.Unlock()
	if now {
		return nil
	}
	select {
	case <-s.left:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// date is the moment as a header tells it.
type date struct {
	second int64
	text   string
}

func (s *Server) dateNow() string {
	now := time.Now()
	d := s.date.Load()
	if d == nil || d.second != now.Unix() {
		d = &date{now.Unix(), now.UTC().Format(http.TimeFormat)}
		s.date.Store(d)
	}
	return d.text
}

func orDefault(d, usual time.Duration) time.Duration {
	if d == 0 {
		return usual
	}
	return d
}
