package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/gateway/plain"
	"github.com/heteroflow/heteroflow/gateway/relay"
)

const (
	headTime = 30 * time.Second // for the head of a request, however slowly it comes
	idleTime = 2 * time.Minute  // between two requests on a connection
)

// front answers connections.
type front interface {
	// Serve answers those of a listener until it is shut down: then the error is http.ErrServerClosed.
	Serve(l net.Listener) error
	Shutdown(ctx context.Context) error
	Close() error
}

// newFront gives net/http's server, or our own with that one behind it for what ours does not speak.
func newFront(isStandard bool, h http.Handler, log hclog.Logger) front {
	// No write timeout: an answer takes as long as its model does.
	s := standard{&http.Server{Handler: h, ReadHeaderTimeout: headTime, IdleTimeout: idleTime, ConnContext: withConn}}
	if isStandard || !plain.Supported {
		return s
	}
	b := &both{standard: s, handed: &handed{conns: make(chan net.Conn), closed: make(chan struct{})}}
	b.own = &plain.Server{
		Handler: h, Other: b.handed.give, HeadTime: headTime, IdleTime: idleTime, Refuse: refuseRequest,
		Panicked: func(v any) {
			log.Error("a request's handler panicked", "error", fmt.Sprint(v), "stack", string(debug.Stack()))
		},
	}
	return b
}

// refuseRequest answers for a request that makes no sense as one of HTTP.
func refuseRequest(w http.ResponseWriter, status int, why string) {
	relay.WriteError(w, &http.Request{URL: &url.URL{}}, status, "invalid_request_error", "malformed_request", "We could not read your request as one of HTTP/1.1: "+why+".")
}

type standard struct{ *http.Server }

// Serve implements front.
func (s standard) Serve(l net.Listener) error { return s.Server.Serve(listener{l}) }

// both is our own server, and net/http's for connections that it hands on.
type both struct {
	own      *plain.Server
	standard standard
	handed   *handed
}

// Serve implements front.
func (b *both) Serve(l net.Listener) error {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.standard.Serve(b.handed) //nolint:errcheck // it ends when it is closed
	}()
	err := b.own.Serve(l)
	if !errors.Is(err, http.ErrServerClosed) {
		b.handed.Close() //nolint:errcheck // see handed
	}
	<-ended
	return err
}

// Shutdown implements front: what is handed on while our own drains is drained too.
func (b *both) Shutdown(ctx context.Context) error {
	err := b.own.Shutdown(ctx)
	return errors.Join(err, b.standard.Shutdown(ctx))
}

// Close implements front.
func (b *both) Close() error { return errors.Join(b.own.Close(), b.standard.Close()) }

// handed is a listener of connections that another one has accepted.
type handed struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

var _ net.Listener = (*handed)(nil)

func (h *handed) give(c net.Conn) {
	select {
	case h.conns <- c:
	case <-h.closed:
		c.Close() //nolint:errcheck // nothing is waited for
	}
}

// Accept implements net.Listener.
func (h *handed) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener; it has no error.
func (h *handed) Close() error {
	h.once.Do(func() { close(h.closed) })
	return nil
}

// Addr implements net.Listener; its connections know their own.
func (h *handed) Addr() net.Addr { return &net.TCPAddr{} }
