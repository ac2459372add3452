package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"
)

// conn is one connection to an engine.
type conn struct {
	net.Conn
	raw   syscall.RawConn // nil where reading has to have its buffer before there is something to read
	addr  string
	since time.Time // when it became idle

	abort func()      // closes it, from wherever
	stop  func() bool // keeps the context of the request from doing so; false when it has been done
	until time.Time   // the deadline of reading
	used  bool        // it has had a request before
	in    input
	wrote chan error // of a body that is written beside reading; nil without one
	inMem bool       // that body waits for nobody

	reading func(fd uintptr) bool // for raw
	into    []byte

	listening func(fd uintptr) bool // for raw, of a connection that is not used
	heard     bool
	readN     int
	readErr   error
}

func dial(ctx context.Context, addr string, until time.Time) (*conn, error) {
	d := net.Dialer{Timeout: connectTime, KeepAlive: 15 * time.Second}
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: nc, addr: addr}
	c.abort = c.close
	c.in.from = c
	c.raw = rawOf(nc)
	c.reading, c.listening = c.readFrom, c.listen
	c.deadline(until)
	return c, nil
}

func (c *conn) close() { c.Conn.Close() } //nolint:errcheck // nothing that was sent is waited for

// deadline bounds reading.
func (c *conn) deadline(until time.Time) {
	c.until = until
	c.SetReadDeadline(until) //nolint:errcheck // a connection that is closed says so when it is read
}

// heads are buffers for the beginnings of requests.
var heads = sync.Pool{New: func() any { b := make([]byte, 0, 2<<10); return &b }}

// exchange writes the request and reads the head of the answer.
func (c *conn) exchange(r *Request) (*Response, error) {
	sendErr := c.send(r)
	head, err := c.in.head()
	if err == nil {
		return c.response(r, head)
	}
	select {
	case err := <-c.wrote:
		sendErr = err
	default:
	}
	var unread *bodyError
	switch {
	case errors.As(sendErr, &unread):
		return nil, sendErr
	case c.used && c.in.total == 0 && (errors.Is(err, io.EOF) || isReset(err)):
		return nil, ErrStale
	case err == io.EOF && sendErr != nil:
		return nil, sendErr
	case err == io.EOF:
		return nil, fmt.Errorf("%w: the connection ended without an answer", io.ErrUnexpectedEOF)
	}
	return nil, err
}

func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// bodyError is what reading the body of a request came to.
type bodyError struct{ err error }

func (e *bodyError) Error() string { return fmt.Sprintf("read body of the request: %v", e.err) }
func (e *bodyError) Unwrap() error { return e.err }

// send writes the request, a long body beside what follows: an engine may answer before it has read all of it.
func (c *conn) send(r *Request) error {
	c.in.total, c.wrote = 0, nil
	pooled := heads.Get().(*[]byte) //nolint:forcetypeassert // nothing else is put there
	defer heads.Put(pooled)
	head := r.appendHead((*pooled)[:0])
	defer func() { *pooled = head[:0] }()
	var err error
	if r.Length > 0 && r.Length <= atOnce {
		if head, err = appendBody(head, r.Body, int(r.Length)); err != nil {
			c.close()
			return err
		}
	}
	if _, err := c.Write(head); err != nil {
		return err
	}
	if r.Length < 0 || r.Length > atOnce {
		wrote := make(chan error, 1)
		c.wrote = wrote
		_, c.inMem = r.Body.(io.WriterTo)
		go func() {
			defer close(wrote)
			err := c.sendBody(r)
			wrote <- err
			var unread *bodyError
			if errors.As(err, &unread) {
				c.close() // or the engine would wait for what never comes
			}
		}()
	}
	return nil
}

// appendBody reads a short body, which has the length that was said.
func appendBody(head []byte, from io.Reader, length int) ([]byte, error) {
	at := len(head)
	for cap(head) < at+length {
		head = append(head[:cap(head)], 0)
	}
	head = head[:at+length]
	if _, err := io.ReadFull(from, head[at:]); err != nil {
		return head, &bodyError{err}
	}
	return head, nil
}

// sendBody writes a long body.
func (c *conn) sendBody(r *Request) error {
	if r.Length < 0 {
		return c.sendChunks(r.Body)
	}
	to := &exactly{to: c.Conn, left: r.Length}
	_, err := io.Copy(to, r.Body) // without a copy where it lies in memory
	switch {
	case to.err != nil:
		return to.err
	case err == nil && to.left > 0:
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return &bodyError{err}
	}
	return nil
}

// exactly writes no more than was promised, which would be read as another request.
type exactly struct {
	to   io.Writer
	left int64
	err  error // of writing
}

func (e *exactly) Write(p []byte) (n int, err error) {
	if int64(len(p)) > e.left {
		return 0, errors.New("it is longer than was said")
	}
	n, e.err = e.to.Write(p)
	e.left -= int64(n)
	return n, e.err
}

func (c *conn) sendChunks(from io.Reader) error {
	buf := make([]byte, 32<<10)
	const room = 6 // for the length of a chunk: four digits and a line's end
	for {
		n, err := from.Read(buf[room : len(buf)-2])
		if n > 0 {
			head := fmt.Appendf(nil, "%04x\r\n", n)
			copy(buf, head)
			copy(buf[room+n:], "\r\n")
			if _, err := c.Write(buf[:room+n+2]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			_, err := io.WriteString(c.Conn, "0\r\n\r\n")
			return err
		}
		if err != nil {
			return &bodyError{err}
		}
	}
}

func (c *conn) response(r *Request, h head) (*Response, error) {
	framing, err := h.framing(r.Method)
	if err != nil {
		return nil, err
	}
	b := &body{conn: c, chunks: chunks{kind: framing.kind, left: framing.length}, keep: framing.keep}
	resp := &Response{Status: h.status, Header: h.fields, Length: framing.length, Body: b}
	switch framing.kind {
	case empty:
		resp.Length = 0
	case chunked:
		resp.Length = -1
	case toEnd:
		resp.Length, resp.Unbounded = -1, true
	}
	return resp, nil
}

// forgo waits until the body of a request is not read any more, where that does not depend on who sends it. The
// connection is closed.
func (c *conn) forgo() {
	if c.wrote != nil && c.inMem {
		<-c.wrote
	}
}

// finished reports whether all of the request was written.
func (c *conn) finished() bool {
	if c.wrote == nil {
		return true
	}
	const grace = 50 * time.Millisecond // its last bytes may have been read before the writer knows that they are written
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case err := <-c.wrote:
		return err == nil
	case <-timer.C:
		return false
	}
}
