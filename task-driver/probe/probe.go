// Package probe asks a running task whether it is ready and whether it is alive, and says when it should be ended: after
// the time that the load of a model may take, and after so many failures one behind another. Ending and restarting tasks
// do not belong here.
package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// The kinds of checks.
const (
	HTTP  = "http"
	HTTPS = "https" // whatever the certificate says: the address is the task's own
	TCP   = "tcp"
	Exec  = "exec"
	Image = "image" // the image's own HEALTHCHECK, which the container engine runs
)

// Check is one way to ask a task. It is kept in the task's handle, as JSON.
type Check struct {
	Type     string        `json:"type"`
	Port     string        `json:"port,omitempty"` // label of a port, or its number within the task
	Path     string        `json:"path,omitempty"`
	Command  []string      `json:"command,omitempty"`
	Interval time.Duration `json:"interval"`
	Timeout  time.Duration `json:"timeout"`
	Failures int           `json:"failures"` // one behind another, after which the answer counts
}

// Target is the task that is asked.
type Target interface {
	// Address is host:port of a port of the task.
	Address(ctx context.Context, port string) (string, error)
	// Exec runs a command in the task and returns its exit code.
	Exec(ctx context.Context, command []string) (int, error)
	// Health asks what the image's own HEALTHCHECK says; nil is well.
	Health(ctx context.Context) error
}

// ask asks once. The error is the reason for people; nil says that the task answers as it should.
func (c Check) ask(ctx context.Context, t Target) error {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	err := c.do(ctx, t)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("no answer within %s", c.Timeout)
	}
	return err
}

func (c Check) do(ctx context.Context, t Target) error {
	if c.Type == Exec {
		code, err := t.Exec(ctx, c.Command)
		if err == nil && code != 0 {
			err = fmt.Errorf("%s exits with %d", c.Command[0], code)
		}
		return err
	}
	if c.Type == Image {
		return t.Health(ctx)
	}
	addr, err := t.Address(ctx, c.Port)
	if err != nil {
		return err
	}
	if c.Type == TCP {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err != nil {
			return short(err)
		}
		return conn.Close()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url(addr), nil)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "heteroflow-driver")
	resp, err := client.Do(req)
	if err != nil {
		return short(err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	switch {
	case resp.StatusCode >= 300 || resp.StatusCode < 200:
		return fmt.Errorf("%s answers %d%s", c.Path, resp.StatusCode, FirstLine(string(body)))
	case err != nil:
		return short(err)
	}
	return nil
}

func (c Check) url(addr string) string { return c.Type + "://" + addr + c.Path }

// client asks tasks of this node: by no proxy, and without a connection that is kept.
var client = &http.Client{
	Transport: &http.Transport{
		DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see HTTPS
	},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// short is an error without the address that everybody knows.
func short(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		return fmt.Errorf("%s: %w", op.Op, op.Err)
	}
	return err
}

// FirstLine is what a task answers, as far as it fits in an event, behind a colon; empty without an answer.
func FirstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	line = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0xfffd {
			return -1
		}
		return r
	}, line)
	if line == "" {
		return ""
	}
	if len(line) > 120 {
		line = strings.ToValidUTF8(line[:120], "") + "…"
	}
	return ": " + line
}
