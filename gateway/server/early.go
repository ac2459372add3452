package server

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"sync"

	"github.com/heteroflow/heteroflow/gateway/relay"
)

// early is a response that may begin before any backend has answered: a stream that waits is kept alive by comments. An
// error that comes later is then told inside of the stream. And an error that says that no backend answered is kept
// back until it is known that no other one will.
type early struct {
	http.ResponseWriter
	r      *http.Request
	stream bool

	mu    sync.Mutex
	begun bool // the headers of a stream were sent while it waited
	taken bool // an answer has begun
	ended bool
	error int // status of an error that is kept back
	body  bytes.Buffer
}

func newEarly(w http.ResponseWriter, r *http.Request, stream bool) *early {
	return &early{ResponseWriter: w, r: r, stream: stream}
}

// Unwrap is for http.ResponseController.
func (e *early) Unwrap() http.ResponseWriter { return e.ResponseWriter }

// still tells the client of a stream that its request waits.
func (e *early) still() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stream {
		e.comment()
	}
}

// Knock finds out whether a client that sends nothing more still listens.
func (e *early) Knock() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.begun {
		e.comment()
	} else if !e.taken && !e.ended {
		e.ResponseWriter.WriteHeader(http.StatusProcessing)
	}
}

// comment writes a line that clients pass over. The lock is held.
func (e *early) comment() {
	if e.taken || e.ended {
		return
	}
	if !e.begun {
		e.begun = true
		h := e.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-cache, no-transform")
		h.Set("X-Accel-Buffering", "no")
		e.ResponseWriter.WriteHeader(http.StatusOK)
	}
	if _, err := io.WriteString(e.ResponseWriter, ": the request waits for a backend\n\n"); err == nil {
		http.NewResponseController(e.ResponseWriter).Flush() //nolint:errcheck // the next write tells
	}
}

// WriteHeader begins the answer, or keeps an error back.
func (e *early) WriteHeader(status int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case status < http.StatusOK:
		if e.begun {
			e.comment()
		} else if !e.taken {
			e.ResponseWriter.WriteHeader(status)
		}
	case status >= http.StatusBadGateway || e.begun && status != http.StatusOK:
		e.error = status
	default:
		e.taken = true
		if !e.begun {
			e.ResponseWriter.WriteHeader(status)
		}
	}
}

// Write writes a piece of the answer, or of the error that is kept back.
func (e *early) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.error != 0 {
		return e.body.Write(p)
	}
	e.taken = true
	return e.ResponseWriter.Write(p)
}

// FlushError sends on what was written of an answer.
func (e *early) FlushError() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.error != 0 {
		return nil
	}
	return http.NewResponseController(e.ResponseWriter).Flush()
}

// failed reports whether an error is kept back.
func (e *early) failed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.error != 0
}

// forget drops an error that was kept back.
func (e *early) forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.error = 0
	e.body.Reset()
	if !e.begun {
		for _, name := range []string{"Content-Type", "Content-Length", "Retry-After"} {
			e.Header().Del(name)
		}
	}
}

// commit tells the client the error that was kept back, if there is one.
func (e *early) commit() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.error == 0 || e.ended {
		return
	}
	e.ended = true
	if !e.begun {
		e.ResponseWriter.WriteHeader(e.error)
		e.ResponseWriter.Write(e.body.Bytes()) //nolint:errcheck // the client left; nobody to tell
		return
	}
	var told struct {
		Error struct {
			Message string
			Code    any
		}
	}
	message, code := "the request failed", ""
	if json.Unmarshal(e.body.Bytes(), &told) == nil && told.Error.Message != "" {
		message = told.Error.Message
		code, _ = told.Error.Code.(string)
	}
	io.WriteString(e.ResponseWriter, relay.BrokenEvent(e.r.URL.Path, code, message)) //nolint:errcheck // as above
	control := http.NewResponseController(e.ResponseWriter)
	if control.Flush() != nil {
		return
	}
	if conn, _, err := control.Hijack(); err == nil {
		conn.Close() // without the last chunk, so that nobody takes it for whole
	}
}

// close ends what may still be written to the response.
func (e *early) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended = true
}
