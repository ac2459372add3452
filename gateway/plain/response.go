package plain

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/heteroflow/heteroflow/gateway/http1"
)

// response writes an answer. What is written is collected until it is flushed, ends, or is more than a buffer takes.
type response struct {
	c      *conn
	header http.Header
	method string
	body   *body // of the request; nil where there is none
	keep   bool  // the connection may be used again

	mu       sync.Mutex // of what follows, and of writing an interim response
	status   int        // 0 before the head was made
	sealed   bool       // the head is complete
	chunked  bool
	bodiless bool
	typed    bool  // what kind of body it is was said, or need not be
	length   int64 // that was said; below 0 when it was not
	wrote    int64 // bytes of the body

	out     []byte // what is to be sent, in memory that is used again
	pending []byte // of the body, before the head is complete; the same
	err     error
}

var (
	_ http.ResponseWriter = (*response)(nil)
	_ http.Hijacker       = (*response)(nil)
	_ io.StringWriter     = (*response)(nil)
)

// bufSize is what is collected before it is sent, in bytes.
const bufSize = 4 << 10

var buffers = sync.Pool{New: func() any { return new([bufSize]byte) }}

func newBuffer() []byte { return buffers.Get().(*[bufSize]byte)[:0] } //nolint:forcetypeassert // nothing else is put there

func freeBuffer(b []byte) []byte {
	if cap(b) == bufSize {
		buffers.Put((*[bufSize]byte)(b[:bufSize]))
	}
	return nil
}

func (w *response) begin(c *conn, method string) { w.c, w.method, w.length = c, method, -1 }

// drop gives memory back.
func (w *response) drop() { w.out, w.pending = freeBuffer(w.out), freeBuffer(w.pending) }

// Header implements http.ResponseWriter.
func (w *response) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *response) WriteHeader(status int) {
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("plain: the status %d is none", status))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.c.hijacked || w.status != 0:
	case status < http.StatusOK && status != http.StatusSwitchingProtocols:
		w.interim(status)
	default:
		w.head(status)
	}
}

// goOn tells a client that waits for it to send the body.
func (w *response) goOn() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.status != 0 || w.c.hijacked {
		return errors.New("the answer began before the body was asked for")
	}
	return w.send([]byte("HTTP/1.1 100 Continue\r\n\r\n"))
}

// interim writes a response before the answer. The lock is held, as in what follows.
func (w *response) interim(status int) {
	out := appendStatus(newBuffer(), status)
	for name, values := range w.header {
		if name != "Content-Length" && name != "Transfer-Encoding" {
			out = appendField(out, name, values)
		}
	}
	w.send(append(out, "\r\n"...)) //nolint:errcheck // it is kept
	freeBuffer(out)
}

// head makes the head, but for what depends on the body.
func (w *response) head(status int) {
	w.status = status
	w.bodiless = w.method == http.MethodHead || status == http.StatusNoContent || status == http.StatusNotModified || status < http.StatusOK
	out := appendStatus(newBuffer(), status)
	dated, closes := false, false
	for name, values := range w.header {
		switch name {
		case "Content-Length":
			n, err := strconv.ParseUint(strings.Join(values, ","), 10, 63)
			if err != nil || status == http.StatusNoContent || status < http.StatusOK {
				continue
			}
			w.length = int64(n)
		case "Transfer-Encoding", "Trailer":
			continue // that is for this package to say
		case "Date":
			dated = true
		case "Content-Type", "Content-Encoding":
			w.typed = true
		case "Connection":
			closes = http1.Says(values, "close")
		}
		out = appendField(out, name, values)
	}
	if !dated {
		out = append(append(append(out, "Date: "...), w.c.server.dateNow()...), "\r\n"...)
	}
	w.keep = w.keep && !closes && !w.c.server.closing.Load() && (w.body == nil || w.body.small())
	if !w.keep && !closes {
		out = append(out, "Connection: close\r\n"...)
	}
	w.out = out
	if w.length >= 0 || w.bodiless {
		w.seal(false)
	}
}

// seal completes the head: all says that the whole body is what is pending.
func (w *response) seal(all bool) {
	w.sealed = true
	switch {
	case w.length >= 0 || w.bodiless:
	case all:
		w.out = append(strconv.AppendInt(append(w.out, "Content-Length: "...), int64(len(w.pending)), 10), "\r\n"...)
	default:
		w.chunked = true
		w.out = append(w.out, "Transfer-Encoding: chunked\r\n"...)
	}
	if !w.typed && len(w.pending) > 0 {
		w.out = append(append(append(w.out, "Content-Type: "...), http.DetectContentType(w.pending)...), "\r\n"...)
	}
	w.out = append(w.out, "\r\n"...)
	if len(w.pending) > 0 {
		w.put(w.pending) //nolint:errcheck // it is kept
	}
	w.pending = freeBuffer(w.pending)
}

// Write implements http.ResponseWriter.
func (w *response) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.c.hijacked:
		return 0, http.ErrHijacked
	case w.err != nil:
		return 0, w.err
	case w.status == 0:
		w.head(http.StatusOK)
	}
	switch {
	case w.method == http.MethodHead:
		return len(p), nil
	case w.bodiless:
		return 0, http.ErrBodyNotAllowed
	case w.length >= 0 && w.wrote+int64(len(p)) > w.length:
		return 0, http.ErrContentLength
	case len(p) == 0:
		return 0, nil
	}
	w.wrote += int64(len(p))
	if !w.sealed {
		if w.pending == nil {
			w.pending = newBuffer()
		}
		if len(w.pending)+len(p) <= cap(w.pending) {
			w.pending = append(w.pending, p...)
			return len(p), nil
		}
		if len(w.pending) == 0 {
			w.typed = w.typed || w.detect(p)
		}
		w.seal(false)
	}
	if err := w.put(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// detect says what kind of body begins so.
func (w *response) detect(p []byte) bool {
	w.out = append(append(append(w.out, "Content-Type: "...), http.DetectContentType(p)...), "\r\n"...)
	return true
}

// WriteString implements io.StringWriter.
func (w *response) WriteString(s string) (int, error) { return w.Write([]byte(s)) }

// put adds some of the body, and sends what there is when it is too much to keep.
func (w *response) put(p []byte) error {
	if w.out == nil {
		w.out = newBuffer()
	}
	room := cap(w.out) - len(w.out)
	if !w.chunked {
		if len(p) <= room {
			w.out = append(w.out, p...)
			return nil
		}
		err := w.send(w.out, p)
		w.out = w.out[:0]
		return err
	}
	const around = 20 // of a chunk: its length in hex, and two ends of lines
	if len(p)+around <= room {
		w.out = append(append(append(strconv.AppendInt(w.out, int64(len(p)), 16), "\r\n"...), p...), "\r\n"...)
		return nil
	}
	w.out = append(strconv.AppendInt(w.out, int64(len(p)), 16), "\r\n"...)
	err := w.send(w.out, p, lineEnd)
	w.out = w.out[:0]
	return err
}

var lineEnd = []byte("\r\n")

// send writes to the connection. An error is the end of it, and the client's.
func (w *response) send(parts ...[]byte) error {
	if w.err != nil {
		return w.err
	}
	if err := w.c.write(parts...); err != nil {
		w.err, w.keep = err, false
		w.c.left(true)
	}
	return w.err
}

// Flush implements http.Flusher.
func (w *response) Flush() { w.FlushError() } //nolint:errcheck // that is what it is for

// FlushError sends what was written. A buffer is not kept until the next piece comes.
func (w *response) FlushError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.c.hijacked {
		return http.ErrHijacked
	}
	if w.status == 0 {
		w.head(http.StatusOK)
	}
	if !w.sealed {
		w.seal(false)
	}
	if len(w.out) > 0 && w.err == nil {
		w.send(w.out) //nolint:errcheck // it is kept
	}
	w.out = freeBuffer(w.out)
	return w.err
}

// finish ends the answer.
func (w *response) finish() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.status == 0 {
		w.head(http.StatusOK)
	}
	if !w.sealed {
		w.seal(true)
	}
	if w.chunked {
		w.out = append(w.out, "0\r\n\r\n"...)
	}
	if !w.bodiless && w.length > w.wrote {
		w.keep = false // the client waits for more, and is told so by the end of the connection
	}
	if len(w.out) > 0 {
		w.send(w.out) //nolint:errcheck // it is kept
	}
}

// Hijack implements http.Hijacker: the connection is the caller's. What was written and not flushed is lost.
func (w *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.c
	if c.hijacked {
		return nil, nil, http.ErrHijacked
	}
	c.hijacked = true
	c.tcp.SetDeadline(time.Time{}) //nolint:errcheck // a connection that is closed says so when it is used
	var from io.Reader = c.tcp
	if held := c.in.Held(); len(held) > 0 {
		from = io.MultiReader(bytes.NewReader(bytes.Clone(held)), c.tcp)
	}
	return c.tcp, bufio.NewReadWriter(bufio.NewReader(from), bufio.NewWriter(c.tcp)), nil
}

// SetWriteDeadline is for http.ResponseController. It may pass by a quarter before it holds.
func (w *response) SetWriteDeadline(at time.Time) error { return w.c.writeDeadline(at) }

// SetReadDeadline is for http.ResponseController. It holds until the request is answered.
func (w *response) SetReadDeadline(at time.Time) error {
	w.c.own = true
	w.c.readBy = at
	return w.c.tcp.SetReadDeadline(at)
}

// EnableFullDuplex is for http.ResponseController: an answer may always begin before the request was read.
func (w *response) EnableFullDuplex() error { return nil }

// HalfClosed has it knocked when the client will send nothing more: it left, or it only waits. What is then written to
// one that left ends the request's context.
func (w *response) HalfClosed(k interface{ Knock() }) { w.c.halfClosed(k) }

func appendStatus(out []byte, status int) []byte {
	if status == http.StatusOK {
		return append(out, "HTTP/1.1 200 OK\r\n"...)
	}
	out = append(strconv.AppendInt(append(out, "HTTP/1.1 "...), int64(status), 10), ' ')
	return append(append(out, http.StatusText(status)...), "\r\n"...)
}

// appendField writes the lines of a name. What would be another line to the client is not written as one.
func appendField(out []byte, name string, values []string) []byte {
	if !http1.IsToken(name) {
		return out
	}
	for _, value := range values {
		out = append(append(out, name...), ": "...)
		if http1.PlainText(value) {
			out = append(out, value...)
		} else {
			for i := range len(value) {
				c := value[i]
				if c < ' ' && c != '\t' || c == 0x7f {
					c = ' '
				}
				out = append(out, c)
			}
		}
		out = append(out, "\r\n"...)
	}
	return out
}
