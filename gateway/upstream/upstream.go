// Package upstream sends requests to engines over HTTP/1.1 in plain text and reads their answers, over connections that
// are kept. It starts nothing that runs beside a request but for a long body, and an answer that could be read in two
// ways is an error. Which engine is asked, and what is made of its answer, do not belong here.
package upstream

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/heteroflow/heteroflow/gateway/http1"
)

// Field is one line of a header.
type Field struct{ Name, Value string }

// Request is what an engine is asked.
type Request struct {
	Method string
	Addr   string  // host:port of the engine
	Target string  // path and query, as they stand in the first line
	Header []Field // in the order in which they are sent, without those that the client writes itself: Host, Content-Length, Transfer-Encoding, Connection
	Body   io.Reader
	Length int64 // of the body; 0 is none, and below 0 is one whose length is not known
	// Wait is how long the engine may take from now to the head of its answer, or an eighth longer. There is always such
	// a bound.
	Wait time.Duration
}

// Response is the head of an answer, and its body to be read. Whoever has one closes its body.
type Response struct {
	Status int
	Header http.Header // names in their canonical form
	Length int64       // of the body; below 0 when it was not said
	// Unbounded: nothing but the end of the connection tells the end of the body, so that one that was cut short looks
	// whole.
	Unbounded bool
	Body      Body

	own bool // the header's memory can be used again
}

// Recycle gives back the memory of the header, which is not read any more; its values may be.
func (r *Response) Recycle() {
	if r.own {
		clear(r.Header)
		headers.Put(r.Header)
		r.Header, r.own = nil, false
	}
}

// headers are of answers, without their lines.
var headers = sync.Pool{New: func() any { return http.Header{} }}

// Body is that of an answer.
type Body interface {
	// Read gives what there is, at least one byte, io.EOF at the end and io.ErrUnexpectedEOF where the body was cut
	// short. Its end gives the connection back.
	io.Reader
	// Next gives what there is without a copy, as Read does but for the end, which comes alone. It is valid until
	// more is read.
	Next() ([]byte, error)
	// Wait is how long the engine may take to the next bytes, from when they are asked for, or an eighth longer. What
	// takes longer ends in an error that is os.ErrDeadlineExceeded.
	Wait(time.Duration)
	// Close gives up what was not read, which ends the connection: that is what stops an engine.
	Close()
}

var (
	// ErrStale is a connection that was kept and that the engine had closed before the request was sent: no byte of an
	// answer came. The same request can be sent again.
	ErrStale = errors.New("the connection that was kept had been closed")
	// ErrMalformed wraps what is wrong with an answer.
	ErrMalformed = http1.ErrMalformed
	// ErrRequest wraps what is wrong with a request.
	ErrRequest = errors.New("request that cannot be sent")
)

// Limits of an answer and of the connections that are kept. Engines on uvicorn close a connection that was idle for
// five seconds.
const (
	maxInterim  = 8 // responses before the answer
	idleTime    = 4 * time.Second
	maxIdle     = 512 // connections kept to one engine
	connectTime = 3 * time.Second
)

// Client is a pool of connections. It is safe for concurrent use.
type Client struct {
	pool pool
}

// New makes a client without connections.
func New() *Client { return &Client{pool: pool{idle: map[string][]*conn{}}} }

// Close closes the connections that are kept.
func (c *Client) Close() { c.pool.drop("") }

// Send sends a request and gives the head of its answer. The context stops the engine until the body was read or
// closed. The body of the request may be read until then, too, and one that is no io.WriterTo even after it. An error
// leaves nothing to close.
func (c *Client) Send(ctx context.Context, r *Request) (*Response, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	room := messages.Get().(*[]byte) //nolint:forcetypeassert // nothing else is put there
	message, left, err := r.appendMessage((*room)[:0])
	defer func() {
		*room = message[:0]
		messages.Put(room)
	}()
	if err != nil {
		return nil, err
	}
	for {
		conn := c.pool.take(r.Addr)
		if conn == nil {
			if conn, err = dial(ctx, r.Addr); err != nil {
				return nil, err
			}
		}
		conn.within(r.Wait)
		conn.follow(ctx)
		resp, err := conn.exchange(r, message, left)
		if err == nil {
			resp.Body.(*body).pool = &c.pool //nolint:forcetypeassert // exchange makes it
			return resp, nil
		}
		conn.free()
		conn.close()
		conn.in.Drop()
		conn.forgo()
		switch why := context.Cause(ctx); {
		case why != nil:
			return nil, why
		case errors.Is(err, errEnded):
			continue
		case errors.Is(err, ErrStale):
			c.pool.drop(r.Addr) // those beside it are no better
		}
		return nil, err
	}
}
