package plain

import (
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/heteroflow/heteroflow/gateway/http1"
)

// What a connection does.
const (
	idle   int32 = iota // nothing is asked on it
	active              // a request is read or answered
	ended
)

// phase is what is read.
type phase int

const (
	between phase = iota // the first byte of a request
	inHead
	inBody
)

// conn is one connection. Its goroutine reads and answers; the watcher tells it that the client leaves.
type conn struct {
	http1.Socket
	server *Server
	tcp    *net.TCPConn
	remote string
	id     int32 // of the watcher
	state  atomic.Int32

	in       http1.Input
	phase    phase
	readBy   time.Time // the deadline that is set
	bounded  bool      // it is that of this head
	own      bool      // it is the handler's own
	writeBy  time.Time // the deadline that is set; zero is none
	wanted   time.Time // the one that the handler wants
	hijacked bool      // it is the handler's
	unread   bool      // the client may still be sending what nobody will read
	parts    [3][]byte
	buffers  net.Buffers

	mu      sync.Mutex // of what follows
	life    *life      // of the request that is answered
	knocker interface{ Knock() }
	half    bool // the client sends nothing more
	gone    bool // the client reads nothing more
}

func newConn(s *Server, tcp *net.TCPConn) *conn {
	c := &conn{server: s, tcp: tcp, remote: tcp.RemoteAddr().String()}
	c.Open(tcp)
	c.in.From = c
	return c
}

// ReadTo implements http1.Source: no read waits for ever.
func (c *conn) ReadTo(in *http1.Input, p []byte) (int, error) {
	switch {
	case c.own:
	case c.phase == between:
		c.within(orDefault(c.server.IdleTime, 2*time.Minute))
	case c.phase == inBody:
		c.within(orDefault(c.server.BodyTime, time.Minute))
	case !c.bounded: // the whole of a head, however slowly it comes
		c.bounded = true
		c.deadline(time.Now().Add(orDefault(c.server.HeadTime, 30*time.Second)))
	}
	return c.Socket.ReadTo(in, p)
}

func (c *conn) deadline(at time.Time) {
	c.readBy = at
	c.tcp.SetReadDeadline(at) //nolint:errcheck // a connection that is closed says so when it is read
}

// within bounds the next read. The deadline is set later than asked for, so that it is not set for each request.
func (c *conn) within(d time.Duration) {
	now := time.Now()
	if c.readBy.Before(now.Add(d)) || c.readBy.After(now.Add(d+d/8)) {
		c.deadline(now.Add(d + d/8))
	}
}

// serve answers one request after the other.
func (c *conn) serve() {
	handed := false
	defer func() {
		c.in.Drop()
		c.server.forget(c)
		if handed || c.hijacked {
			return
		}
		c.linger()
		c.tcp.Close() //nolint:errcheck // nothing is waited for
	}()
	for c.await() {
		x := exchanges.Get().(*exchange) //nolint:forcetypeassert // nothing else is put there
		var again bool
		again, handed = c.one(x)
		x.release()
		if !again {
			return
		}
	}
}

// await waits for the first byte of a request.
func (c *conn) await() bool {
	if !c.in.Empty() {
		return true // it came with the one before
	}
	c.state.CompareAndSwap(active, idle)
	if c.server.closing.Load() {
		return false
	}
	c.phase, c.own = between, false
	err := c.in.Fill()
	return c.state.CompareAndSwap(idle, active) && err == nil
}

// one reads a request and answers it. Again says that there may be another one; handed that the connection is another's.
func (c *conn) one(x *exchange) (again, handed bool) {
	c.phase, c.bounded = inHead, false
	if !http1.IsToken(c.in.Held()[:1]) {
		c.refuse(x, bad("it does not begin as one of HTTP does")) // what TLS begins with would be waited for
		return false, false
	}
	lines, err := c.in.UntilBlankLine()
	if err != nil {
		if why := refusalOf(err); why != nil {
			c.refuse(x, why)
		}
		return false, false
	}
	text := string(lines)
	why := x.parse(text)
	switch {
	case why != nil && why.other && c.server.Other != nil:
		c.hand(text)
		return false, true
	case why != nil:
		c.refuse(x, why)
		return false, false
	}
	return c.answer(x), false
}

// hand gives the connection away.
func (c *conn) hand(head string) {
	before := append(append([]byte(head), "\r\n"...), c.in.Held()...)
	c.server.forget(c)
	c.tcp.SetDeadline(time.Time{}) //nolint:errcheck // a connection that is closed says so when it is used
	c.server.other(&rest{Conn: c.tcp, tcp: c.tcp, before: before})
}

// refuse answers what makes no sense, and ends the connection.
func (c *conn) refuse(x *exchange, why *refusal) {
	c.unread = true
	w := &x.response
	w.begin(c, http.MethodGet)
	w.keep = false
	if f := c.server.Refuse; f != nil {
		f(w, why.status, why.text)
	} else {
		http.Error(w, http.StatusText(why.status)+": "+why.text, why.status)
	}
	w.finish()
	w.drop()
}

// answer has the request answered, and reports whether there may be another one on the connection.
func (c *conn) answer(x *exchange) (again bool) {
	w, l := &x.response, x.life
	w.begin(c, x.request.Method)
	w.body = &l.body
	w.keep = !x.request.Close
	c.phase = inBody
	l.body.c, l.body.w = c, w
	if c.in.Empty() {
		c.in.Drop()
	}
	c.mu.Lock()
	c.life = l
	gone := c.gone
	c.mu.Unlock()
	if gone {
		l.end()
	}
	defer func() {
		v := recover()
		if v != nil {
			again = false
			if v != http.ErrAbortHandler && c.server.Panicked != nil {
				c.server.Panicked(v)
			}
		}
		c.mu.Lock()
		c.life, c.knocker = nil, nil
		c.mu.Unlock()
		whole := l.body.close()
		l.end()
		c.wanted = time.Time{}
		w.drop()
		again = again && whole
		c.unread = c.unread || !whole
	}()
	c.server.Handler.ServeHTTP(w, &x.request)
	if c.hijacked {
		return false
	}
	w.finish()
	return w.keep && w.err == nil
}

// left says that the client reads nothing more, or sends nothing more. The watcher calls it.
func (c *conn) left(gone bool) {
	c.mu.Lock()
	l, k := c.life, c.knocker
	known := c.half
	c.half, c.gone = true, c.gone || gone
	c.mu.Unlock()
	switch {
	case gone && l != nil:
		l.end()
	case !gone && !known && k != nil:
		go k.Knock() // it writes, which may take its time
	}
}

// halfClosed has it knocked when the client sends nothing more, or now when it ended before.
func (c *conn) halfClosed(k interface{ Knock() }) {
	c.mu.Lock()
	c.knocker = k
	half := c.half
	c.mu.Unlock()
	if half {
		k.Knock()
	}
}

// write sends at once what is given.
func (c *conn) write(parts ...[]byte) error {
	if c.wanted.IsZero() && !c.writeBy.IsZero() {
		c.writeBy = time.Time{}
		c.tcp.SetWriteDeadline(time.Time{}) //nolint:errcheck // a connection that is closed says so when it is used
	}
	var err error
	if len(parts) == 1 {
		_, err = c.Write(parts[0])
	} else {
		c.buffers = append(c.parts[:0], parts...)
		_, err = c.buffers.WriteTo(c.tcp)
		c.parts = [3][]byte{}
	}
	return err
}

// writeDeadline bounds writing, a quarter later at most, so that it is not set for each request.
func (c *conn) writeDeadline(at time.Time) error {
	c.wanted = at
	if at.IsZero() {
		return nil // until something is written
	}
	slack := max(0, time.Until(at)) / 4
	if !c.writeBy.Before(at) && !c.writeBy.After(at.Add(slack)) {
		return nil
	}
	c.writeBy = at.Add(slack)
	return c.tcp.SetWriteDeadline(c.writeBy)
}

const (
	mostUnread = 256 << 10 // bytes of a body that are read for the next request's sake
	lingerFor  = 500 * time.Millisecond
)

// linger reads for a moment what the client still sends: to close now would take back the answer. What is more than that is left
// unread, and the client has the rest of the moment to read the answer before its writing fails.
func (c *conn) linger() {
	if !c.unread || c.tcp.CloseWrite() != nil {
		return
	}
	until := time.Now().Add(lingerFor)
	c.tcp.SetReadDeadline(until)                                                      //nolint:errcheck // a connection that is closed says so when it is read
	if n, _ := io.CopyN(io.Discard, onlyReader{c.tcp}, mostUnread); n == mostUnread { //nolint:errcheck // whatever ends it
		time.Sleep(time.Until(until))
	}
}

type onlyReader struct{ io.Reader }

// rest is a connection with what was read of it put back.
type rest struct {
	net.Conn
	tcp    *net.TCPConn
	before []byte
}

// Read gives what was put back first.
func (r *rest) Read(p []byte) (int, error) {
	if len(r.before) == 0 {
		return r.Conn.Read(p)
	}
	n := copy(p, r.before)
	if r.before = r.before[n:]; len(r.before) == 0 {
		r.before = nil
	}
	return n, nil
}

// CloseWrite is for a server that lingers.
func (r *rest) CloseWrite() error { return r.tcp.CloseWrite() }

// SyscallConn is for those who ask the system about the connection.
func (r *rest) SyscallConn() (syscall.RawConn, error) { return r.tcp.SyscallConn() }
