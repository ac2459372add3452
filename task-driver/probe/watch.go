package probe

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/heteroflow/heteroflow/internal/inference"
)

// Watch follows one task.
type Watch struct {
	plan   Plan
	target Target
	tell   func(text string, notes map[string]string)

	mu     sync.Mutex
	state  machine
	engine inference.Engine
	asked  int // for the engine, since the task became ready
	end    context.CancelCauseFunc
}

// New makes a watch of a task that started at a moment. What people should know goes to tell, with notes for programs.
func New(plan Plan, started time.Time, t Target, tell func(text string, notes map[string]string)) *Watch {
	return &Watch{plan: plan, target: t, tell: tell, state: machine{plan: plan, start: started}}
}

// errEnd is why a watch ended the asking.
type errEnd string

func (e errEnd) Error() string { return string(e) }

// Run asks until ctx ends or the task is to be ended; then it returns why. An empty reason says that ctx ended.
func (w *Watch) Run(ctx context.Context) (why string) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	w.end = end
	var asking sync.WaitGroup
	if w.plan.Ready != nil {
		asking.Go(func() { w.every(ctx, *w.plan.Ready, func() bool { return true }, w.state.answerReady) })
	}
	if w.plan.Live != nil {
		asking.Go(func() { w.every(ctx, *w.plan.Live, w.state.asksLive, w.state.answerLive) })
	}
	asking.Wait()
	var verdict errEnd
	if errors.As(context.Cause(ctx), &verdict) {
		return string(verdict)
	}
	return ""
}

// every asks a check again and again.
func (w *Watch) every(ctx context.Context, c Check, due func() bool, answer func(time.Time, error) step) {
	ticker := time.NewTicker(c.Interval)
	defer ticker.Stop()
	for {
		w.mu.Lock()
		ask := due()
		w.mu.Unlock()
		if ask {
			err := c.ask(ctx, w.target)
			if ctx.Err() != nil {
				return
			}
			w.follow(ctx, c, err, answer)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// follow takes in one answer.
func (w *Watch) follow(ctx context.Context, c Check, err error, answer func(time.Time, error) step) {
	w.mu.Lock()
	s := answer(time.Now(), err)
	w.mu.Unlock()
	if s.event != "" {
		w.tell(s.event, map[string]string{"ready": strconv.FormatBool(w.Ready())})
	}
	if err == nil && (c.Type == HTTP || c.Type == HTTPS) && w.wonders(s.ready) {
		w.identify(ctx, c)
	}
	if s.end != "" {
		w.end(errEnd(s.end))
	}
}

// wonders reports whether the engine is to be asked for: when the task has become ready, and a few times more while none
// was made out.
func (w *Watch) wonders(anew bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if anew {
		w.asked = 0
	} else if w.engine.Kind != "" || w.asked >= identifyTries {
		return false
	}
	w.asked++
	return true
}

const identifyTries = 3

// identifyTimeout bounds the questions about the engine.
const identifyTimeout = 10 * time.Second

// identify asks what serves models at the address of the check. That none does is no fault of the task.
func (w *Watch) identify(ctx context.Context, c Check) {
	ctx, cancel := context.WithTimeout(ctx, identifyTimeout)
	defer cancel()
	addr, err := w.target.Address(ctx, c.Port)
	if err != nil {
		return
	}
	e, err := inference.Identify(ctx, client, c.Type+"://"+addr)
	if err != nil {
		return
	}
	w.mu.Lock()
	old := w.engine
	w.engine = e
	w.mu.Unlock()
	if old.String() != e.String() {
		w.tell("Serving: "+e.String(), notes(e))
	}
}

// notes is an engine as attributes.
func notes(e inference.Engine) map[string]string {
	out := map[string]string{"engine": e.Kind}
	if e.Version != "" {
		out["engine_version"] = e.Version
	}
	if len(e.Models) > 0 {
		out["models"] = strings.Join(e.Models, ",")
	}
	return out
}

// Ready reports whether the task answers its readiness check; without one, whether it has begun to answer.
func (w *Watch) Ready() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state.ready || w.plan.Ready == nil && w.state.began
}

// Attributes are what is known of the task: ready, and engine, engine_version and models once they were found.
func (w *Watch) Attributes() map[string]string {
	ready := w.Ready()
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string]string{}
	if w.engine.Kind != "" {
		out = notes(w.engine)
	}
	out["ready"] = strconv.FormatBool(ready)
	return out
}
