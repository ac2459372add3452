package plain

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/heteroflow/heteroflow/gateway/http1"
)

// life is what may outlive a request's handler: its context, and its body. The context ends when the client is gone
// and when the request is answered.
type life struct {
	mu    sync.Mutex
	ended bool
	done  chan struct{} // made when somebody asks for it
	first interface{ Ended() }
	more  []interface{ Ended() }

	body body
}

var _ context.Context = (*life)(nil)

// Deadline is none.
func (l *life) Deadline() (at time.Time, ok bool) { return time.Time{}, false }

// Value is none.
func (l *life) Value(any) any { return nil }

// Done is closed when the context ends.
func (l *life) Done() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done == nil {
		l.done = make(chan struct{})
		if l.ended {
			close(l.done)
		}
	}
	return l.done
}

// Err is context.Canceled once the context has ended.
func (l *life) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return context.Canceled
	}
	return nil
}

// end ends the context.
func (l *life) end() {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return
	}
	l.ended = true
	if l.done != nil {
		close(l.done)
	}
	first, more := l.first, l.more
	l.first, l.more = nil, nil
	l.mu.Unlock()
	if first != nil {
		first.Ended()
	}
	for _, o := range more {
		o.Ended()
	}
}

// OnEnd calls Ended once when the context ends, or at once where it has.
func (l *life) OnEnd(o interface{ Ended() }) {
	l.mu.Lock()
	switch {
	case l.ended:
		l.mu.Unlock()
		o.Ended()
		return
	case l.first == nil:
		l.first = o
	default:
		l.more = append(l.more, o)
	}
	l.mu.Unlock()
}

// OffEnd keeps Ended from being called; false when it was or is being called.
func (l *life) OffEnd(o interface{ Ended() }) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.first == o {
		l.first = nil
		return true
	}
	for i, have := range l.more {
		if have == o {
			l.more = append(l.more[:i], l.more[i+1:]...)
			return true
		}
	}
	return false
}

// AfterFunc is what context.AfterFunc and contexts made of this one use in place of a goroutine that waits.
func (l *life) AfterFunc(f func()) (stop func() bool) {
	o := &after{f}
	l.OnEnd(o)
	return func() bool { return l.OffEnd(o) }
}

type after struct{ f func() }

// Ended calls the function from a goroutine of its own, as context.AfterFunc says.
func (a *after) Ended() { go a.f() }

// body is that of a request. It ends with its handler.
type body struct {
	mu      sync.Mutex
	c       *conn // nil once the request is over
	w       *response
	from    http1.Body
	expects bool // the client waits to be told to go on
	err     error
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.c == nil:
		return 0, http.ErrBodyReadAfterClose
	case b.err != nil:
		return 0, b.err
	case len(p) == 0:
		return 0, nil
	}
	if b.expects && !b.from.All() {
		b.expects = false
		if err := b.w.goOn(); err != nil {
			b.err = err
			return 0, err
		}
	}
	n, err := b.from.Read(&b.c.in, p)
	if b.err = err; err != nil && err != io.EOF && !errors.Is(err, http1.ErrMalformed) {
		b.c.left(true) // who stops in the middle is gone
	}
	if b.from.All() && b.c.in.Empty() {
		b.c.in.Drop()
	}
	return n, err
}

// Close implements io.Closer. What was not read is dropped at the end.
func (b *body) Close() error { return nil }

// small reports whether the connection can be used again: the body was read, or what is left of it will be.
func (b *body) small() bool {
	if !b.mu.TryLock() {
		return false // somebody waits for the rest of it
	}
	defer b.mu.Unlock()
	return !b.expects && (b.err == nil || b.err == io.EOF) && (b.from.Kind != http1.Sized || b.from.Left <= mostUnread)
}

// close ends reading, and reports whether all of the body has been read then.
func (b *body) close() (whole bool) {
	if !b.mu.TryLock() { // somebody reads still: nothing else ends that
		b.c.tcp.Close() //nolint:errcheck // nothing is waited for
		b.mu.Lock()
	}
	defer b.mu.Unlock()
	c := b.c
	defer func() { b.c, b.w = nil, nil }()
	if b.from.All() {
		return true
	}
	if b.expects || b.err != nil || c.hijacked || b.from.Kind == http1.Sized && b.from.Left > mostUnread {
		return false
	}
	for n := 0; n < mostUnread; {
		data, err := b.from.Next(&c.in)
		if n += len(data); err != nil {
			return err == io.EOF
		}
	}
	return false
}
