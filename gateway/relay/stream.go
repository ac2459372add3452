package relay

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/heteroflow/heteroflow/gateway/body"
	"github.com/heteroflow/heteroflow/gateway/upstream"
	"github.com/heteroflow/heteroflow/internal/store"
)

// stream passes on events as they come, as they are but for the model's name and a usage that the client did not ask
// for. Until the first event has been passed on, a backend that breaks costs the client nothing.
func (x *exchange) stream(resp *upstream.Response) error {
	resp.Body.Wait(x.call.Rules.FirstToken)
	lateWord := errNoWord
	x.mu.Lock()
	x.streaming = resp.Header
	switch keepalive := x.call.Rules.Keepalive; {
	case x.tick == nil:
		x.tick = time.AfterFunc(hold, x.ticked)
	case !x.headersSent:
		x.tick.Reset(hold)
	case keepalive > 0:
		x.tick.Reset(keepalive)
	}
	x.mu.Unlock()

	s := sse{call: &x.call, asked: []byte(`"model":"` + x.call.Model + `"`), answer: body.Answer{Usage: x.out.Usage}}
	var rest []byte // of an event that is not whole yet
	for {
		b, err := resp.Body.Next()
		if len(b) > 0 && lateWord == errNoWord {
			lateWord = errStall
			resp.Body.Wait(x.call.Rules.Idle)
		}
		from := len(rest)
		if from > 0 {
			rest = append(rest, b...)
			b = rest
		}
		whole := boundary(b, from)
		if err == io.EOF {
			whole = len(b) // an end that is told, also in the middle of a line
		}
		if whole > 0 {
			out := s.read(b[:whole])
			x.out.Usage, x.out.Chunks = s.answer.Usage, s.chunks
			if s.toldNow {
				x.told = s.chunks
			}
			if !x.pass(out, s.events) {
				x.out.End = store.EndClientGone
				return nil
			}
		}
		if from == 0 || whole > 0 {
			rest = keep(rest, b[whole:])
		}
		if len(rest) > maxEvent {
			return x.broke(&s, fmt.Errorf("an event is over %d bytes", maxEvent))
		}
		if err != nil {
			if err == io.EOF && resp.Unbounded && !s.finished {
				err = io.ErrUnexpectedEOF // the end of the connection is all that told the end
			}
			return x.broke(&s, late(err, lateWord))
		}
	}
}

// keep keeps what is left, which may lie in the same memory. A stream that waits holds no more than a little.
func keep(rest, left []byte) []byte {
	if len(left) == 0 && cap(rest) > 1<<10 {
		return nil
	}
	return append(rest[:0], left...)
}

// broke is the end of a stream, good or bad.
func (x *exchange) broke(s *sse, err error) error {
	sent := s.events > 0
	switch {
	case s.finished && s.failed:
		x.out.End = store.EndUpstreamError
		return nil
	case s.finished, err == io.EOF && sent && !s.failed:
		x.out.End = store.EndDone
		return nil
	case !sent:
		x.unpromise()
		return &errBackend{err: fmt.Errorf("stream of %s ended before its first event: %w", x.lease.Addr, err)}
	case x.in.Context().Err() != nil:
		x.out.End = store.EndClientGone
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.events = s.events
	switch {
	case s.failed:
		x.out.End = store.EndUpstreamError // as the engine itself told the client
		if err != io.EOF {
			x.cut()
		}
	case errors.Is(err, errStall):
		x.out.End = store.EndUpstreamTimeout
		x.fail("upstream_timeout", "the backend stopped in the middle of the answer")
	default:
		x.out.End = store.EndUpstreamCut
		x.fail("upstream_cut", "the backend stopped in the middle of the answer")
	}
	return nil
}

// unpromise forgets a stream whose headers have not been sent.
func (x *exchange) unpromise() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.headersSent {
		x.streaming = nil
		x.tick.Stop()
	}
}

// ticked sends the headers that were kept back, then comments when nothing else was sent for a while.
func (x *exchange) ticked() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed || x.streaming == nil {
		return
	}
	keepalive := x.call.Rules.Keepalive
	next := keepalive
	switch {
	case !x.headersSent:
		x.sendHeaders()
		x.flusher.Flush() //nolint:errcheck // the next write tells
	case time.Since(x.wrote) >= keepalive:
		x.bound()
		x.comment()
	default:
		next = keepalive - time.Since(x.wrote)
	}
	if keepalive > 0 {
		x.tick.Reset(next)
	}
}

// sendHeaders begins the answer. The lock is held.
func (x *exchange) sendHeaders() {
	h := x.w.Header()
	answerHeaders(h, x.streaming)
	delete(h, "Content-Length")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no") // keeps a front proxy from collecting events
	x.bound()
	x.w.WriteHeader(http.StatusOK)
	x.headersSent, x.out.Status, x.wrote = true, http.StatusOK, time.Now()
}

// bound limits how long the client may take to read what is written next. The lock is held.
func (x *exchange) bound() { x.boundAt(time.Now()) }

func (x *exchange) boundAt(now time.Time) {
	if now.Sub(x.bounded) > writeWait/4 {
		x.flusher.SetWriteDeadline(now.Add(writeWait)) //nolint:errcheck // a writer without deadlines has a reader that cannot stall it
		x.bounded = now
	}
}

// pass gives events to the client, and reports whether it took them.
func (x *exchange) pass(out []byte, events int) bool {
	if len(out) == 0 {
		return true
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.headersSent {
		x.sendHeaders()
	}
	x.wrote = time.Now()
	x.boundAt(x.wrote)
	if _, err := x.w.Write(out); err != nil {
		return false
	}
	if err := x.flusher.Flush(); err != nil {
		return false
	}
	if x.out.FirstByte == 0 && events > 0 {
		x.out.FirstByte = x.wrote.Sub(x.began)
		x.lease.FirstByte()
	}
	return true
}

// boundary gives the place after the last whole event. Nothing before from ends one, but for what it shares with what
// comes after.
func boundary(b []byte, from int) int {
	if n := len(b); n >= 2 && b[n-1] == '\n' && b[n-2] == '\n' {
		return n // as nearly always
	}
	from = max(0, from-3)
	end := 0
	for _, blank := range [][]byte{[]byte("\n\n"), []byte("\n\r\n")} {
		if i := bytes.LastIndex(b[from:], blank); i >= 0 {
			end = max(end, from+i+len(blank))
		}
	}
	return end
}

// sse reads the events of one stream.
type sse struct {
	call     *Call
	asked    []byte
	answer   body.Answer
	out      []byte
	with     []byte // of the event written anew last
	events   int    // passed on
	chunks   int    // that gave out tokens
	finished bool   // the protocol's end was seen
	failed   bool   // an error was told
	toldNow  bool   // usage was told in what was read last
}

var (
	usageName = []byte(`"usage"`)
	errorName = []byte(`"error"`)
	modelName = []byte(`"model"`)
	doneData  = []byte("[DONE]")
)

// read reads whole events and gives what of them goes to the client: the very bytes in most cases.
func (s *sse) read(b []byte) []byte {
	s.toldNow = false
	changed := false
	for rest := b; len(rest) > 0; {
		event := rest[:next(rest)]
		rest = rest[len(event):]
		keep, with := s.event(event)
		switch {
		case !changed && keep && with == nil:
			continue
		case !changed:
			changed = true
			s.out = append(s.out[:0], b[:len(b)-len(rest)-len(event)]...)
		}
		if !keep {
			continue
		}
		if with == nil {
			with = event
		}
		s.out = append(s.out, with...)
	}
	if changed {
		return s.out
	}
	return b
}

// next is the length of the first event.
func next(b []byte) int {
	for i := 0; ; {
		n := bytes.IndexByte(b[i:], '\n')
		if n < 0 {
			return len(b)
		}
		i += n + 1
		if i < len(b) && b[i] == '\n' {
			return i + 1
		}
		if i+1 < len(b) && b[i] == '\r' && b[i+1] == '\n' {
			return i + 2
		}
	}
}

// event reads one event. With is what goes to the client in its place, nil for the event itself.
func (s *sse) event(event []byte) (keep bool, with []byte) {
	data := bytes.Index(event, []byte("data:"))
	if data < 0 || data > 0 && !bytes.Contains(event, []byte("\ndata:")) { // a comment, or one of its kind
		return true, nil
	}
	if data == 0 && bytes.HasPrefix(bytes.TrimLeft(event[5:], " "), doneData) {
		s.finished = true
		s.events++
		return true, nil
	}
	ends := s.call.Operation.Shape != OpenAI && (bytes.Contains(event, []byte("message_stop")) ||
		bytes.Contains(event, []byte("response.completed")) || bytes.Contains(event, []byte("response.incomplete")) || bytes.Contains(event, []byte("response.failed")))
	rename := bytes.Contains(event, modelName) && !bytes.Contains(event, s.asked)
	usage := bytes.Contains(event, usageName)
	if usage || ends || rename || bytes.Contains(event, errorName) {
		with = s.look(event, rename)
		switch s.answer.Type {
		case "message_stop", "response.completed", "response.incomplete", "response.failed":
			s.finished = s.finished || s.call.Operation.Shape != OpenAI
		}
		s.answer.Failed = s.answer.Failed || s.answer.Type == "error"
		s.failed = s.failed || s.answer.Failed
		s.toldNow = s.toldNow || s.answer.HasUsage
		if s.answer.UsageOnly && !s.call.WantUsage && s.call.Operation.AskUsage {
			return false, nil
		}
	} else {
		s.answer.Failed = false
	}
	if token := s.call.Operation.Token; token != "" && !s.answer.Failed && bytes.Contains(event, []byte(token)) {
		s.chunks++
	}
	s.events++
	return true, with
}

// look reads the data of an event, and writes it anew where the model has another name in it.
func (s *sse) look(event []byte, rename bool) (with []byte) {
	s.answer.Reset()
	s.answer.Model = s.call.Model // known as such where it is the same
	with = s.with[:0]
	for line := range bytes.Lines(event) {
		value, isData := bytes.CutPrefix(line, []byte("data:"))
		switch {
		case !rename && isData:
			s.answer.See(value)
		case rename && isData:
			with = append(with, "data:"...)
			with = s.answer.Feed(with, value)
		case rename:
			with = append(with, line...)
		}
	}
	if !rename {
		return nil
	}
	s.with = s.answer.Rest(with)
	return s.with
}
