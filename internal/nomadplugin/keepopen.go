package nomadplugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// fatalError asks for the process to end.
type fatalError struct{ err error }

func (e *fatalError) Error() string { return e.err.Error() }
func (e *fatalError) Unwrap() error { return e.err }

// Fatal marks an error of a stream as one that this process cannot get over. The process exits and the host starts
// a new one, which is the only trouble the host recovers from by itself: an error on a stream makes it drop the
// plugin for good.
func Fatal(err error) error {
	if err == nil {
		return nil
	}
	return &fatalError{err}
}

// exit ends the process; tests replace it.
var exit = os.Exit

// pauser waits before an author's function is called again; attempt counts from 0. It returns early with ctx.
type pauser func(ctx context.Context, attempt int)

// defaultPause waits 1 s, doubling to 30 s.
func defaultPause(ctx context.Context, attempt int) {
	wait := 30 * time.Second
	if attempt < 5 {
		wait = time.Second << attempt
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// keepOpen runs an author's stream function until ctx ends, whatever it does: a return, an error and a panic are
// logged, and after a pause it is called again. early is called after each early return, with its error or nil.
// An ErrUnsupported is final: the stream then only waits for its end.
func keepOpen(ctx context.Context, log hclog.Logger, pause pauser, run func(context.Context) error, early func(error)) {
	for attempt := 0; ; attempt++ {
		started := time.Now()
		err := protect(log, func() error { return run(ctx) })
		if ctx.Err() != nil {
			return
		}
		var fatal *fatalError
		if errors.As(err, &fatal) {
			log.Error("plugin cannot go on and exits", "error", err)
			// One pause, so that a process that fails at once does not keep the host busy with starting it.
			pause(ctx, 0)
			exit(1)
			return
		}
		if errors.Is(err, ErrUnsupported) {
			<-ctx.Done()
			return
		}
		log.Warn("stream function returned early and is called again", "error", err)
		early(err)
		if time.Since(started) > time.Minute {
			attempt = 0
		}
		pause(ctx, attempt)
	}
}

// protect runs f and turns a panic into an error.
func protect(log hclog.Logger, f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			log.Error("stream function panicked", "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	return f()
}

// oneAtATime lets several goroutines of an author use one stream, which takes one message at a time.
func oneAtATime[T any](send func(T) error) func(T) error {
	var mu sync.Mutex
	return func(m T) error {
		mu.Lock()
		defer mu.Unlock()
		return send(m)
	}
}
