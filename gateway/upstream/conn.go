package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/heteroflow/heteroflow/gateway/http1"
)

// conn is one connection to an engine.
type conn struct {
	http1.Socket
	addr  string
	since time.Time // when it became idle

	watched ending        // the context of the request, where it tells of its end by itself
	unwatch func() bool   // keeps one of another kind from doing so
	until   time.Time     // the deadline of reading that is set
	wait    time.Duration // for each piece of an answer; 0 while its head is waited for
	used    bool          // it was kept after a request
	in      http1.Input
	wrote   chan error // of a body that is written beside reading; nil without one
	inMem   bool       // that body waits for nobody
}

// ending is a context that tells of its end without a function made for it.
type ending interface {
	// OnEnd calls Ended once when the context ends, or at once where it has.
	OnEnd(o interface{ Ended() })
	// OffEnd keeps it from being called; false when it was or is being called.
	OffEnd(o interface{ Ended() }) bool
}

var _ http1.Source = (*conn)(nil)

func dial(ctx context.Context, addr string) (*conn, error) {
	// On a goroutine of its own: it goes deep, and a stack that has grown stays so for as long as a stream lasts.
	type connected struct {
		net.Conn
		err error
	}
	done := make(chan connected, 1)
	go func() {
		d := net.Dialer{Timeout: connectTime, KeepAlive: 15 * time.Second}
		nc, err := d.DialContext(ctx, "tcp", addr)
		done <- connected{nc, err}
	}()
	nc := <-done
	if nc.err != nil {
		return nil, nc.err
	}
	c := &conn{addr: addr}
	c.Open(nc.Conn)
	c.in.From = c
	return c, nil
}

func (c *conn) close() { c.Conn.Close() } //nolint:errcheck // nothing that was sent is waited for

// Ended closes it, from wherever, since the request's context has ended.
func (c *conn) Ended() { c.close() }

// follow closes the connection when the context ends.
func (c *conn) follow(ctx context.Context) {
	if e, ok := ctx.(ending); ok {
		c.watched = e
		e.OnEnd(c)
		return
	}
	c.unwatch = context.AfterFunc(ctx, c.close)
}

// free ends that, and reports whether the connection was left open.
func (c *conn) free() bool {
	if e := c.watched; e != nil {
		c.watched = nil
		return e.OffEnd(c)
	}
	return c.unwatch()
}

// ReadTo implements http1.Source: no read waits for ever.
func (c *conn) ReadTo(in *http1.Input, p []byte) (int, error) {
	if c.wait > 0 {
		c.within(c.wait)
	}
	return c.Socket.ReadTo(in, p)
}

// within bounds reading from now on. The deadline is set later than asked for, so that it is not set for each request or
// piece.
func (c *conn) within(d time.Duration) {
	now := time.Now()
	if c.until.Before(now.Add(d)) || c.until.After(now.Add(d+d/8)) {
		c.until = now.Add(d + d/8)
		c.SetReadDeadline(c.until) //nolint:errcheck // a connection that is closed says so when it is read
	}
}

// errEnded is a connection that was kept and said something meanwhile, be it that it ends. Nothing was sent on it.
var errEnded = errors.New("the connection that was kept is not quiet")

// exchange sends the request, whose beginning is the message and of whose body so much is left, and reads the head of
// the answer.
func (c *conn) exchange(r *Request, message []byte, left int64) (*Response, error) {
	c.wait, c.wrote, c.in.Total = 0, nil, 0
	quiet, sendErr := c.send(r, message, left)
	if !quiet {
		return nil, errEnded
	}
	head, err := readHead(&c.in)
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
	case c.used && c.in.Total == 0 && (errors.Is(err, io.EOF) || isReset(err)):
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

// send sends the request, a long body beside what follows: an engine may answer before it has read all of it. Where the
// connection was used before and is not quiet, nothing is sent.
func (c *conn) send(r *Request, message []byte, left int64) (quiet bool, err error) {
	if c.used && left == 0 {
		return c.Ask(&c.in, message)
	}
	if c.used && !c.Quiet() {
		return false, nil
	}
	if _, err := c.Write(message); err != nil || left == 0 {
		return true, err
	}
	wrote := make(chan error, 1)
	c.wrote = wrote
	c.inMem = r.inMem()
	go func() {
		defer close(wrote)
		err := c.sendBody(r.Body, left)
		wrote <- err
		var unread *bodyError
		if errors.As(err, &unread) {
			c.close() // or the engine would wait for what never comes
		}
	}()
	return true, nil
}

// sendBody writes what is left of a long body: so many bytes, or below 0 all that comes.
func (c *conn) sendBody(from io.Reader, left int64) error {
	if left < 0 {
		return c.sendChunks(from)
	}
	to := &exactly{to: &c.Socket, left: left}
	_, err := io.Copy(to, from) // without a copy where it lies in memory
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
			_, err := c.Write([]byte("0\r\n\r\n"))
			return err
		}
		if err != nil {
			return &bodyError{err}
		}
	}
}

// reply is an answer in one piece of memory.
type reply struct {
	resp Response
	body body
}

func (c *conn) response(r *Request, h head) (*Response, error) {
	framing, err := h.framing(r.Method)
	if err != nil {
		return nil, err
	}
	whole := &reply{
		body: body{conn: c, from: http1.Body{Kind: framing.kind, Left: framing.length}, keep: framing.keep},
		resp: Response{Status: h.status, Header: h.fields, Length: framing.length, own: true},
	}
	resp := &whole.resp
	resp.Body = &whole.body
	switch framing.kind {
	case http1.None:
		resp.Length = 0
	case http1.Chunked:
		resp.Length = -1
	case http1.ToEnd:
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
