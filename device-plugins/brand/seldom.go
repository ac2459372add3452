package brand

import (
	"context"
	"strings"
	"time"
)

// An answer is what a call gave that need not be made at every reading.
type answer struct {
	text string
	err  error
	at   time.Time
}

// An answer holds for holdAnswer, and at most maxAnswers of them are kept: more than a machine with 64 chips needs.
const (
	holdAnswer = time.Minute
	maxAnswers = 256
)

// seldom makes calls whose answers hold for a while no oftener than that. A call that did not end in time says nothing, so
// that the answer before it stays: a chip that was divided is not whole because its tool is slow.
func (d *Detector) seldom(ctx context.Context, tool string, call Call) Call {
	return func(args ...string) (string, error) {
		if d.spec.Seldom == nil || !d.spec.Seldom(args) {
			return call(args...)
		}
		key := strings.Join(append([]string{tool}, args...), "\x00")
		d.mu.Lock()
		last, had := d.held[key]
		d.mu.Unlock()
		if had && d.now().Sub(last.at) < holdAnswer {
			return last.text, last.err
		}
		text, err := call(args...)
		if ctx.Err() != nil {
			if had {
				return last.text, last.err
			}
			return "", err
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if len(d.held) >= maxAnswers {
			clear(d.held)
		}
		d.held[key] = answer{text: text, err: err, at: d.now()}
		return text, err
	}
}
