package upstream

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"

	"github.com/heteroflow/heteroflow/gateway/http1"
)

// check refuses what would be another request on the wire than it is here.
func (r *Request) check() error {
	if !http1.IsToken(r.Method) {
		return fmt.Errorf("%w: the method %q", ErrRequest, r.Method)
	}
	if r.Target == "" || !visible(r.Target) || !visible(r.Addr) {
		return fmt.Errorf("%w: the target %q at %q", ErrRequest, r.Target, r.Addr)
	}
	for _, f := range r.Header {
		if !http1.IsToken(f.Name) || !http1.PlainText(f.Value) {
			return fmt.Errorf("%w: the header %q", ErrRequest, f.Name)
		}
	}
	if r.Body == nil && r.Length != 0 {
		return fmt.Errorf("%w: a length of %d without a body", ErrRequest, r.Length)
	}
	return nil
}

// visible reports whether a text has neither blanks nor control characters.
func visible(text string) bool {
	for i := range len(text) {
		if c := text[i]; c <= ' ' || c == 0x7f {
			return false
		}
	}
	return true
}

// messages are buffers for requests.
var messages = sync.Pool{New: func() any { b := make([]byte, 0, 2<<10); return &b }}

// atOnce is how much of a body is written together with the head, in bytes: all of one that is no longer.
const atOnce = 16 << 10

// isLong reports whether the body, or what is left of it, is written by itself.
func (r *Request) isLong() bool { return r.Length < 0 || r.Length > atOnce }

// inMem reports whether the body waits for nobody.
func (r *Request) inMem() bool {
	_, ok := r.Body.(io.WriterTo)
	return ok
}

// bodyError is what reading the body of a request came to.
type bodyError struct{ err error }

func (e *bodyError) Error() string { return fmt.Sprintf("read body of the request: %v", e.err) }
func (e *bodyError) Unwrap() error { return e.err }

// appendMessage writes the head, and the body as far as it goes with it. Left is what is still to be written of a body
// whose length is known.
func (r *Request) appendMessage(b []byte) (message []byte, left int64, err error) {
	b = r.appendHead(b)
	if r.Length <= 0 || r.isLong() && !r.inMem() {
		return b, r.Length, nil
	}
	at, n := len(b), min(r.Length, atOnce)
	b = slices.Grow(b, int(n))[:at+int(n)]
	if _, err := io.ReadFull(r.Body, b[at:]); err != nil {
		return b, 0, &bodyError{err}
	}
	return b, r.Length - n, nil
}

// appendHead writes the head.
func (r *Request) appendHead(b []byte) []byte {
	b = append(append(append(append(b, r.Method...), ' '), r.Target...), " HTTP/1.1\r\nHost: "...)
	b = append(append(b, r.Addr...), "\r\n"...)
	for _, f := range r.Header {
		b = append(append(append(append(b, f.Name...), ": "...), f.Value...), "\r\n"...)
	}
	switch {
	case r.Length < 0:
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	case r.Length > 0 || r.Method != "GET" && r.Method != "HEAD":
		b = append(strconv.AppendInt(append(b, "Content-Length: "...), r.Length, 10), "\r\n"...)
	}
	return append(b, "\r\n"...)
}
