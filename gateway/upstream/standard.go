package upstream

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/heteroflow/heteroflow/gateway/http1"
)

// Standard does the work of Client by the transport of net/http.
type Standard struct {
	transport *http.Transport
}

// NewStandard makes a client without connections.
func NewStandard() *Standard {
	return &Standard{&http.Transport{
		DialContext:            (&net.Dialer{Timeout: connectTime, KeepAlive: 15 * time.Second}).DialContext,
		MaxIdleConnsPerHost:    maxIdle,
		IdleConnTimeout:        idleTime,
		MaxResponseHeaderBytes: http1.MaxHead,
		DisableCompression:     true, // bytes pass as the engine wrote them
	}}
}

// Close closes the connections that are kept.
func (s *Standard) Close() { s.transport.CloseIdleConnections() }

// Send does what Client.Send does.
func (s *Standard) Send(ctx context.Context, r *Request) (*Response, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(r.Wait, func() { cancel(os.ErrDeadlineExceeded) })
	var sent *revocable
	give := func(err error) error {
		timer.Stop()
		sent.revoke()
		cancel(nil)
		return err
	}
	target, err := url.ParseRequestURI(r.Target)
	if err != nil {
		return nil, give(errors.Join(ErrRequest, err))
	}
	target.Scheme, target.Host = "http", r.Addr
	reused := false
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused }}
	out := (&http.Request{Method: r.Method, URL: target, Header: http.Header{}, ContentLength: r.Length, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}).
		WithContext(httptrace.WithClientTrace(ctx, trace))
	sent = &revocable{from: r.Body}
	if r.Length != 0 {
		out.Body = sent
	}
	for _, f := range r.Header {
		out.Header[f.Name] = append(out.Header[f.Name], f.Value)
	}
	if out.Header["User-Agent"] == nil {
		out.Header["User-Agent"] = []string{""} // none, instead of this client's own
	}
	resp, err := s.transport.RoundTrip(out)
	if err != nil {
		switch why := context.Cause(ctx); {
		case why != nil:
			err = why
		case reused && (errors.Is(err, io.EOF) || isReset(err)):
			err = ErrStale
		}
		return nil, give(err)
	}
	return &Response{
		Status: resp.StatusCode, Header: resp.Header, Length: resp.ContentLength,
		Unbounded: resp.ContentLength < 0 && len(resp.TransferEncoding) == 0,
		Body:      &standardBody{from: resp.Body, ctx: ctx, timer: timer, cancel: cancel, sent: sent},
	}, nil
}

type standardBody struct {
	from   io.ReadCloser
	ctx    context.Context //nolint:containedctx // of the one request
	timer  *time.Timer
	cancel context.CancelCauseFunc
	sent   *revocable
	wait   time.Duration
	buf    []byte // of Next
	end    error  // that comes after what Next gave
}

var _ Body = (*standardBody)(nil)

// Read implements Body.
func (b *standardBody) Read(p []byte) (int, error) {
	n, err := b.from.Read(p)
	if n > 0 && b.wait > 0 {
		b.timer.Reset(b.wait)
	}
	if why := context.Cause(b.ctx); why != nil && err != nil && err != io.EOF {
		err = why
	}
	return n, err
}

// Next implements Body.
func (b *standardBody) Next() ([]byte, error) {
	if b.end != nil {
		return nil, b.end
	}
	if b.buf == nil {
		b.buf = make([]byte, http1.BufSize)
	}
	n, err := b.Read(b.buf)
	if n == 0 {
		return nil, err
	}
	b.end = err
	return b.buf[:n], nil
}

// Wait implements Body.
func (b *standardBody) Wait(d time.Duration) {
	b.wait = d
	b.timer.Reset(d)
}

// Close implements Body.
func (b *standardBody) Close() {
	b.timer.Stop()
	b.cancel(nil)
	b.from.Close() //nolint:errcheck // nothing of it is wanted
	b.sent.revoke()
}

// revocable is the body of a request. net/http may read on after it has answered, which one that lies in memory does
// not allow.
type revocable struct {
	from    io.Reader
	mu      sync.Mutex
	revoked bool
}

func (r *revocable) Read(p []byte) (int, error) {
	if _, inMem := r.from.(io.WriterTo); !inMem {
		return r.from.Read(p) // as long as who sends it takes
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.revoked {
		return 0, os.ErrClosed
	}
	return r.from.Read(p)
}

func (r *revocable) revoke() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.revoked = true
}

// Close implements io.Closer.
func (r *revocable) Close() error { return nil }
