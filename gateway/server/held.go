package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/heteroflow/heteroflow/gateway/body"
	"github.com/heteroflow/heteroflow/gateway/hold"
	"github.com/heteroflow/heteroflow/gateway/relay"
	"github.com/heteroflow/heteroflow/gateway/route"
	"github.com/heteroflow/heteroflow/internal/inference"
	"github.com/heteroflow/heteroflow/internal/store"
)

const (
	// PriorityHeader says which of one key's waiting requests go first.
	PriorityHeader  = "X-Request-Priority"
	usualPriority   = 50
	highestPriority = 100

	// stillEvery is between two comments in a stream that waits.
	stillEvery = 15 * time.Second
	// chances is how often a request is sent that no backend has answered, while its service may be held for.
	chances = 3
	// comeBack is how long the list of backends is given to change after all in it failed.
	comeBack = 10 * time.Second
)

// priority reads the header; an error says what to write.
func priority(r *http.Request) (int, error) {
	text := r.Header.Get(PriorityHeader)
	if text == "" {
		return usualPriority, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > highestPriority {
		return 0, fmt.Errorf("the header %s is %q: write a whole number from 0 to %d, the higher the earlier", PriorityHeader, text, highestPriority)
	}
	return n, nil
}

// held sends a call once there is a place for it. The target is looked up again after a wait, as a service that comes up
// may say more of itself than one that is not there.
func (c *call) held(target route.Target, size int64) relay.Outcome {
	call := c.sent(target)
	first, err := priority(c.r)
	if err != nil {
		relay.WriteError(c.w, c.r, http.StatusBadRequest, "invalid_request_error", "invalid_priority", err.Error())
		return refused(http.StatusBadRequest)
	}
	if target.Queue == nil || !target.Queue.Holds() {
		return c.h.relay.Exchange(c.w, c.r, &call)
	}
	return c.queued(target, size, first, call)
}

// queued does it for a service whose requests may wait.
func (c *call) queued(target route.Target, size int64, priority int, call relay.Call) relay.Outcome {
	w := newEarly(c.w, c.r, call.Stream)
	defer w.close()
	request := hold.Request{Tenant: c.who.Tenant, Key: c.who.KeyID, Priority: priority, Tokens: call.PromptTokens, Bytes: size}
	var out relay.Outcome
	for chance := 1; ; chance++ {
		changed, err := c.wait(w, target, request, &out, func(t route.Target) relay.Outcome {
			call := c.sent(t)
			return c.h.relay.Exchange(w, c.r, &call)
		})
		switch {
		case err != nil:
			return c.notServed(w, err, out)
		case !w.failed() || answered(out) || chance == chances || c.r.Context().Err() != nil:
			w.commit()
			return out
		}
		// Nothing answered and nothing was sent: the backends may be on their way out, and others on their way in.
		select {
		case <-changed:
		case <-time.After(comeBack):
		case <-c.r.Context().Done():
		}
		w.forget()
	}
}

// wait waits for the call's turn and sends it. Changed is closed when the list of backends is another than it was then.
func (c *call) wait(w *early, target route.Target, request hold.Request, out *relay.Outcome, send func(route.Target) relay.Outcome) (changed <-chan struct{}, err error) {
	ticket, err := target.Queue.Join(request)
	if err != nil {
		return nil, err
	}
	var tokens int
	defer func() { ticket.Leave(tokens) }()
	if ticket.Waits() {
		if client := c.client(); client != nil && c.r.ProtoAtLeast(1, 1) {
			client.HalfClosed(w)
		}
		if err := ticket.Wait(c.r.Context(), stillEvery, w.still); err != nil {
			return nil, err
		}
		if now, ok := c.h.table.Lookup(c.row.Model); ok && may(c.who, now) {
			target = now
		}
	}
	_, _, changed = target.Pool.Ready()
	next := send(target)
	next.Tried = append(out.Tried, next.Tried...)
	*out = next
	if n := out.Usage.CompletionTokens; n != nil {
		tokens = int(*n)
	}
	return changed, nil
}

// answered reports whether a backend gave any answer.
func answered(o relay.Outcome) bool {
	for _, t := range o.Tried {
		if t.Status != 0 {
			return true
		}
	}
	return o.FirstByte > 0
}

// notServed tells the client why its request was not sent to any backend.
func (c *call) notServed(w *early, err error, out relay.Outcome) relay.Outcome {
	model := c.row.Model
	answer := func(status int, after int, code, message string) {
		w.forget()
		w.Header().Set("Retry-After", strconv.Itoa(after))
		relay.WriteError(w, c.r, status, "api_error", code, message)
		out.Status = status
	}
	if len(out.Tried) == 0 {
		out = refused(0)
	}
	switch {
	case errors.Is(err, hold.ErrFull):
		answer(http.StatusTooManyRequests, 5, "queue_full", fmt.Sprintf("Too many requests wait for the model %q; try again later.", model))
	case errors.Is(err, hold.ErrBusy):
		answer(http.StatusServiceUnavailable, 10, "overloaded", fmt.Sprintf("No backend of the model %q had a free place in time; try again later.", model))
	case errors.Is(err, hold.ErrCold):
		answer(http.StatusGatewayTimeout, 30, "model_not_started", fmt.Sprintf("The model %q is being started and was not ready in time; try again later.", model))
	case errors.Is(err, hold.ErrNothing):
		answer(http.StatusServiceUnavailable, 30, "no_backend", fmt.Sprintf("The model %q has no live backend, and there is none that could be started.", model))
	case errors.Is(err, context.Canceled):
		out.Status, out.End = relay.StatusClientGone, store.EndClientGone
		return out
	default:
		answer(http.StatusServiceUnavailable, 5, "no_backend", fmt.Sprintf("The model %q cannot be served now; try again later.", model))
	}
	w.commit()
	return out
}

// refused is the outcome of a request that no backend was asked for.
func refused(status int) relay.Outcome {
	return relay.Outcome{Status: status, End: store.EndRefused, Usage: body.Usage{PromptTokens: none, CompletionTokens: none}}
}

// rulesOf are those of the gateway with what the target's service says of its own.
func (h *handler) rulesOf(t route.Target) relay.Rules {
	r, own := h.rules, t.Times
	for _, d := range []struct {
		to  *time.Duration
		own time.Duration
	}{{&r.Headers, own.Headers}, {&r.Whole, own.Whole}, {&r.FirstToken, own.FirstToken}, {&r.Idle, own.Idle}} {
		if d.own > 0 {
			*d.to = d.own
		}
	}
	if own.Tries > 0 {
		r.Tries = own.Tries
	}
	return r.For(inference.HabitsOf(t.Engine))
}
