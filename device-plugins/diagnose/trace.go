package diagnose

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os/exec"
	"strings"
	"sync"

	"github.com/heteroflow/heteroflow/device-plugins/vendorcli"
)

// A Tracer runs tools and remembers how they fared. It is safe for concurrent use.
type Tracer struct {
	vendorcli.Runner

	mu    sync.Mutex
	calls []Call
	said  []string
	hung  bool
}

// Trace returns a tracer of a runner.
func Trace(r vendorcli.Runner) *Tracer { return &Tracer{Runner: r} }

const (
	mostCalls = 40      // told of one tool: a tool with a page for every card repeats itself
	mostSaid  = 4 << 10 // of one answer: complaints are short, and stand at its beginning or alone
)

// Run runs a tool.
func (t *Tracer) Run(ctx context.Context, name string, args ...string) (vendorcli.Output, error) {
	out, err := t.Runner.Run(ctx, name, args...)
	c := Call{Args: strings.Join(args, " "), Form: form(out.Stdout)}
	var start *fs.PathError
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err == nil:
		c.Status = &out.ExitCode
		if c.Form == "nothing" && out.Stderr != "" {
			c.Form = "text"
		}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		c.Trouble, t.hung = "no answer in time", true
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return out, err
	case errors.As(err, &start):
		c.Trouble = "cannot be started: " + start.Err.Error()
	default:
		c.Trouble = err.Error()
	}
	for _, text := range []string{out.Stdout, out.Stderr} {
		if text != "" && len(t.said) < mostCalls {
			t.said = append(t.said, text[:min(len(text), mostSaid)])
		}
	}
	if len(t.calls) < mostCalls {
		t.calls = append(t.calls, c)
	}
	return out, err
}

// form is that of a printed text. Some tools print a banner before their JSON.
func form(text string) string {
	text = strings.TrimSpace(text)
	switch {
	case text == "":
		return "nothing"
	case strings.HasPrefix(text, "<"):
		return "xml"
	}
	if at := strings.IndexAny(text, "{["); at >= 0 && json.Valid([]byte(text[at:])) {
		return "json"
	}
	return "text"
}

// Calls are the calls made, in their order, without those of a tool that is not there.
func (t *Tracer) Calls() []Call {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]Call(nil), t.calls...)
}

// Said is the beginning of what the tools printed.
func (t *Tracer) Said() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.said...)
}

// Hung tells whether a tool did not answer in time.
func (t *Tracer) Hung() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.hung
}
