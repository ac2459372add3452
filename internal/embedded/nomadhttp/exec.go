package nomadhttp

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/embedded/client"
)

var upgrader = websocket.Upgrader{
	ReadBufferSize: 2048, WriteBufferSize: 2048,
	// A page of another origin must not reach a task through its reader's browser.
	CheckOrigin: func(r *http.Request) bool {
		origin := r.Header.Get("Origin")
		if origin == "" {
			return true
		}
		u, err := url.Parse(origin)
		return err == nil && u.Host == r.Host
	},
}

// exec runs a command in a task over a websocket.
func (q *request) exec(b client.Backend, id string) (any, error) {
	command, err := q.command()
	if err != nil {
		return nil, err
	}
	conn, err := upgrader.Upgrade(q.w, q.r, nil)
	if err != nil {
		q.Logger.Debug("exec not upgraded", "error", err) // the upgrader has answered
		return noAnswer{}, nil
	}
	defer func() {
		if err := conn.Close(); err != nil {
			q.Logger.Trace("exec connection closed", "error", err)
		}
	}()
	ctx, cancel := context.WithCancel(q.r.Context())
	defer cancel()
	s := &session{conn: conn, resize: make(chan api.TerminalSize, 1)}
	stdin, feed := io.Pipe()
	go func() {
		s.receive(ctx, feed)
		if !s.over() {
			cancel() // the client went away
		}
	}()
	code, err := b.Exec(ctx, client.ExecRequest{
		AllocID: id, Task: q.query.Get("task"), Command: command, TTY: q.tty(), Stdin: stdin,
		Stdout: s.writer(func(o *api.ExecStreamingIOOperation) *api.ExecStreamingOutput {
			return &api.ExecStreamingOutput{Stdout: o}
		}),
		Stderr: s.writer(func(o *api.ExecStreamingIOOperation) *api.ExecStreamingOutput {
			return &api.ExecStreamingOutput{Stderr: o}
		}),
		Resize: s.resize,
	})
	s.finish(code, err)
	if err := stdin.Close(); err != nil {
		q.Logger.Trace("exec input closed", "error", err)
	}
	return noAnswer{}, nil
}

// session is one side of an exec's frames.
type session struct {
	conn   *websocket.Conn
	mu     sync.Mutex
	done   bool
	resize chan api.TerminalSize
}

func (s *session) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done
}

func (s *session) send(out *api.ExecStreamingOutput) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn.WriteJSON(out)
}

// receive passes on what the client types until it goes away.
func (s *session) receive(ctx context.Context, stdin *io.PipeWriter) {
	for {
		var in api.ExecStreamingInput
		if err := s.conn.ReadJSON(&in); err != nil {
			stdin.CloseWithError(io.EOF)
			return
		}
		if in.TTYSize != nil {
			select {
			case s.resize <- *in.TTYSize:
			case <-ctx.Done():
				return
			}
		}
		if in.Stdin == nil {
			continue
		}
		if len(in.Stdin.Data) > 0 {
			if _, err := stdin.Write(in.Stdin.Data); err != nil {
				continue // the command reads no more; its end is told on its own
			}
		}
		if in.Stdin.Close {
			stdin.CloseWithError(io.EOF)
		}
	}
}

type frameWriter struct {
	s    *session
	wrap func(*api.ExecStreamingIOOperation) *api.ExecStreamingOutput
}

func (s *session) writer(wrap func(*api.ExecStreamingIOOperation) *api.ExecStreamingOutput) io.Writer {
	return &frameWriter{s: s, wrap: wrap}
}

func (w *frameWriter) Write(p []byte) (int, error) {
	if err := w.s.send(w.wrap(&api.ExecStreamingIOOperation{Data: p})); err != nil {
		return 0, err
	}
	return len(p), nil
}

// finish tells how the command ended and closes the connection in form.
func (s *session) finish(code int, err error) {
	message := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
	switch {
	case err == nil:
		if err := s.send(&api.ExecStreamingOutput{Exited: true, Result: &api.ExecStreamingExitResult{ExitCode: code}}); err != nil {
			return
		}
	case errors.Is(err, client.ErrUnknownAlloc):
		message = websocket.FormatCloseMessage(4000+http.StatusNotFound%1000, err.Error())
	default:
		message = websocket.FormatCloseMessage(4000+http.StatusInternalServerError%1000, err.Error())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done = true
	if err := s.conn.WriteControl(websocket.CloseMessage, message, time.Now().Add(time.Second)); err != nil {
		return
	}
}
