// Package relay carries one request to an engine and its answer back: it tries another backend while nothing of an
// answer has been passed on, reads usage as it goes by, ends what broke as broken, and stops the backend when the
// client leaves. Who may call, and which backends there are, do not belong here.
package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/heteroflow/heteroflow/gateway/balance"
	"github.com/heteroflow/heteroflow/gateway/body"
	"github.com/heteroflow/heteroflow/gateway/upstream"
	"github.com/heteroflow/heteroflow/internal/inference"
	"github.com/heteroflow/heteroflow/internal/store"
)

// Rules say how long a backend may take, and how often another is tried. Zero values mean the defaults.
type Rules struct {
	Headers    time.Duration // to the headers of a stream; 1 minute
	Whole      time.Duration // to those of an answer that comes whole, which is all of its work; 10 minutes
	FirstToken time.Duration // from the headers of a stream to its first event; 5 minutes
	Idle       time.Duration // between two pieces of an answer; 1 minute
	Keepalive  time.Duration // between comments in a silent stream; 15 seconds, below 0 none
	Tries      int           // backends tried for one request; 2, and 1 forbids another one
}

func (r Rules) withDefaults() Rules {
	for _, d := range []struct {
		to   *time.Duration
		then time.Duration
	}{
		{&r.Headers, time.Minute},
		{&r.Whole, 10 * time.Minute},
		{&r.FirstToken, 5 * time.Minute},
		{&r.Idle, time.Minute},
		{&r.Keepalive, 15 * time.Second},
	} {
		if *d.to == 0 {
			*d.to = d.then
		}
	}
	if r.Tries == 0 {
		r.Tries = 2
	}
	return r
}

// For gives the rules for a kind of engine: one whose headers come with the first token has as long for them.
func (r Rules) For(h inference.Habits) Rules {
	r = r.withDefaults()
	if h.HeadersWithToken {
		r.Headers = max(r.Headers, r.FirstToken)
	}
	return r
}

// Call is one request, as far as it is understood.
type Call struct {
	Operation Operation
	Content   Content
	Model     string // as the client named it, and as it is named in the answer
	Stream    bool
	WantUsage bool // the client itself asked the stream for usage
	// PromptTokens is an estimate, for engines that tell nothing.
	PromptTokens int

	Service string // whose budget of further tries is used
	Pool    *balance.Pool
	Ask     balance.Ask
	Rules   Rules
	Client  Client // nil where it cannot be told how it does
}

// Client is who waits for the answer.
type Client interface {
	// HalfClosed knocks when the client will send nothing more, which says that it left or that it only waits.
	HalfClosed(k interface{ Knock() })
}

// Outcome is what happened to one request.
type Outcome struct {
	Status    int // sent to the client; 499 when it left before
	End       string
	Backend   string // id of the last one tried
	Tried     []Try
	FirstByte time.Duration // 0 when nothing came
	Usage     body.Usage
	Estimated bool // some of the usage is an estimate
	Chunks    int  // events of a stream that gave out tokens
}

// Try is one backend that was asked.
type Try struct {
	Backend string `json:"backend"`
	Status  int    `json:"status,omitempty"` // 0: it did not answer
	Error   string `json:"error,omitempty"`  // why its answer was not taken
}

// StatusClientGone stands for an answer nobody waited for. Source: nginx's log convention.
const StatusClientGone = 499

const (
	maxKept  = 1 << 20  // of a whole answer that is kept until it is complete
	maxEvent = 32 << 20 // one event of a stream, which is passed on whole
	maxError = 1 << 20  // of an error's text

	// hold is how long the headers of a stream are kept back for its first event: a backend that breaks at once can
	// then be answered for with a real status.
	hold = 250 * time.Millisecond
	// writeWait is how long a client may take to read what was written: one that reads nothing must not hold a backend.
	writeWait = 2 * time.Minute
)

// Sender sends one request to a backend.
type Sender interface {
	Send(ctx context.Context, r *upstream.Request) (*upstream.Response, error)
}

// Relay sends requests to backends. It is safe for concurrent use.
type Relay struct {
	to        Sender
	via       string
	noOptions sync.Map // ids of backends that refuse stream_options

	mu      sync.RWMutex
	budgets map[string]*budget // by service
}

// New makes a relay with connections of its own; its name tells it from others, so that a request that comes back to it
// is found.
func New(name string) *Relay { return NewWith(name, nil) }

// NewWith makes a relay that sends by the sender, or by connections of its own where that is nil.
func NewWith(name string, to Sender) *Relay {
	if to == nil {
		to = upstream.New()
	}
	return &Relay{to: to, via: "1.1 heteroflow-" + name, budgets: map[string]*budget{}}
}

// Looped reports whether the request has been here before, or at so many gateways that it goes in circles.
func (r *Relay) Looped(in *http.Request) bool {
	gateways := 0
	for _, value := range in.Header["Via"] {
		for hop := range strings.SplitSeq(value, ",") {
			hop = strings.TrimSpace(hop)
			if hop == r.via {
				return true
			}
			if strings.HasPrefix(hop, "1.1 heteroflow-") {
				gateways++
			}
		}
	}
	return gateways > 8
}

// errBackend marks a failure after which another backend may be tried, since nothing reached the client.
type errBackend struct {
	err    error
	status int // the backend's own answer, when it had one
	body   []byte
	header http.Header
}

func (e *errBackend) Error() string { return e.err.Error() }
func (e *errBackend) Unwrap() error { return e.err }

// outcome is what the failure says of the backend. One that says it is full answers in good health.
func (e *errBackend) outcome() balance.Outcome {
	after := retryAfter(e.header)
	if e.status == http.StatusTooManyRequests || e.status == http.StatusServiceUnavailable && after > 0 {
		return balance.Busy(after)
	}
	return balance.Failed
}

// What a backend did not do in time.
var (
	errSilent = errors.New("no answer came in time")
	errNoWord = errors.New("no first token came in time")
	errStall  = errors.New("the answer stopped going on")
)

// Exchange answers the client by a backend of the pool. It always writes a response unless the client has left.
func (r *Relay) Exchange(w http.ResponseWriter, in *http.Request, call *Call) Outcome {
	x := &exchange{relay: r, w: w, flusher: *http.NewResponseController(w), in: in, call: *call, began: time.Now()}
	x.out.Tried = x.tried[:0]
	c := &x.call
	c.Rules = c.Rules.withDefaults()
	if c.Client != nil && in.ProtoAtLeast(1, 1) {
		c.Client.HalfClosed(x)
	}
	defer x.close()
	allowed := r.budget(c.Service)
	allowed.request(x.began)
	c.Ask.Stream = c.Stream
	var last *errBackend
	for len(x.out.Tried) < c.Rules.Tries {
		if last != nil && !allowed.take(time.Now()) {
			break
		}
		lease := &x.lease
		if !c.Pool.TakeInto(lease, &c.Ask) {
			break
		}
		x.out.Backend = lease.ID
		x.tellRoute(lease)
		var again bool
		if last, again = x.take(lease); !again {
			x.settle()
			return x.out
		}
		if c.Ask.Not == nil {
			c.Ask.Not = map[string]bool{}
		}
		c.Ask.Not[lease.ID] = true
	}
	x.giveUp(last)
	x.settle()
	return x.out
}

// budget is that of a service.
func (r *Relay) budget(service string) *budget {
	r.mu.RLock()
	b := r.budgets[service]
	r.mu.RUnlock()
	if b != nil {
		return b
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.budgets[service] == nil {
		r.budgets[service] = &budget{}
	}
	return r.budgets[service]
}

// RouteHeader tells the client why a backend was chosen: balance.Lease's Route.
const RouteHeader = "X-Session-Route"

func (x *exchange) tellRoute(lease *balance.Lease) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.headersSent {
		x.w.Header()[RouteHeader] = lease.Routes()
	}
}

// take asks one backend. Again says that another may be asked.
func (x *exchange) take(lease *balance.Lease) (failure *errBackend, again bool) {
	x.status = 0
	failure = failureOf(x.ask())
	isRetry := failure != nil
	gone := x.in.Context().Err() != nil
	broken := x.call.Content.Err()
	try := Try{Backend: lease.ID, Status: x.status}
	switch {
	case gone || broken != nil || x.out.End == store.EndClientGone:
		lease.Done(balance.Neutral)
	case isRetry:
		try.Error = failure.Error()
		lease.Done(failure.outcome())
	case x.out.End == store.EndDone:
		lease.Done(balance.Success)
	case x.out.End == store.EndUpstreamError && x.out.Status < http.StatusInternalServerError && x.out.Status != http.StatusOK:
		lease.Done(balance.Neutral) // the request's fault
	default:
		lease.Done(balance.Failed)
	}
	x.out.Tried = append(x.out.Tried, try)
	switch {
	case gone && x.out.End != store.EndDone:
		x.out.End = store.EndClientGone
		if !x.headersSent {
			x.out.Status = StatusClientGone
		}
		return nil, false
	case isRetry && broken != nil:
		x.refuseContent(broken)
		return nil, false
	}
	return failure, isRetry
}

// failureOf is the failure of a backend that an error is; nil where it is none.
func failureOf(err error) *errBackend {
	if err == nil {
		return nil
	}
	var failure *errBackend
	if !errors.As(err, &failure) {
		return nil
	}
	return failure
}

// exchange is one request on its way, with room for what most requests need.
type exchange struct {
	relay   *Relay
	w       http.ResponseWriter
	flusher http.ResponseController
	in      *http.Request
	call    Call
	lease   balance.Lease
	request upstream.Request
	sends   int
	resp    *upstream.Response // the last one
	status  int                // of the backend's answer
	began   time.Time
	out     Outcome
	tried   [2]Try
	answer  body.Answer // that comes whole
	events  int         // passed on
	told    int         // chunks when the engine last told usage

	mu          sync.Mutex // of what follows, and of writing to the client
	headersSent bool
	streaming   http.Header // of a stream whose headers may be sent, until they are
	wrote       time.Time   // when a stream was last written to
	bounded     time.Time   // when the bound of writes was last set
	tick        *time.Timer // sends headers that were kept back, then comments
	closed      bool        // the client gets nothing more of this exchange
}

// close ends what runs beside the exchange.
func (x *exchange) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.closed = true
	if x.tick != nil {
		x.tick.Stop()
	}
	if x.resp != nil {
		x.resp.Recycle()
	}
	if !x.bounded.IsZero() {
		x.flusher.SetWriteDeadline(time.Time{}) //nolint:errcheck // a connection that was cut needs none
	}
}

// Knock finds out whether a client that will send nothing more still listens: what is written to one that left comes
// back as an error. Before the answer begins that is an interim response, in a silent stream a comment.
func (x *exchange) Knock() {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.closed:
	case !x.headersSent:
		x.w.WriteHeader(http.StatusProcessing)
	case x.streaming != nil:
		x.comment()
	}
}

// comment writes a line that clients pass over. The lock is held.
func (x *exchange) comment() {
	if _, err := io.WriteString(x.w, ": keepalive\n\n"); err == nil {
		x.flusher.Flush() //nolint:errcheck // the next write tells
	}
	x.wrote = time.Now()
}

// refuseContent answers when what the client sent went wrong while it was passed on.
func (x *exchange) refuseContent(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.out.End = store.EndRefused
	switch {
	case errors.Is(err, body.ErrTooLarge):
		x.out.Status = http.StatusRequestEntityTooLarge
		x.writeError("invalid_request_error", "body_too_large", "The body is over the limit.")
	case errors.Is(err, body.ErrBad):
		x.out.Status = http.StatusBadRequest
		x.writeError("invalid_request_error", "", strings.TrimPrefix(err.Error(), body.ErrBad.Error()+": "))
	default: // the client stopped sending
		x.out.End, x.out.Status = store.EndClientGone, StatusClientGone
	}
}

func (x *exchange) writeError(kind, code, message string) {
	x.headersSent = true
	WriteError(x.w, x.in, x.out.Status, kind, code, message)
}

// giveUp tells the client that no backend answered, in the form that what was already sent allows.
func (x *exchange) giveUp(last *errBackend) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.out.End = store.EndUpstreamError
	timeout := last != nil && (errors.Is(last, errSilent) || errors.Is(last, errNoWord))
	if timeout {
		x.out.End = store.EndUpstreamTimeout
	}
	switch {
	case x.headersSent:
		x.fail("no_backend", "no backend answered")
	case last != nil && last.status != 0:
		x.out.Status = last.status
		answerHeaders(x.w.Header(), last.header)
		x.w.Header().Set("Content-Length", fmt.Sprint(len(last.body)))
		x.headersSent = true
		x.w.WriteHeader(last.status)
		x.w.Write(last.body) //nolint:errcheck // the client left; nothing else to tell
	case timeout:
		x.out.Status = http.StatusGatewayTimeout
		x.writeError("api_error", "upstream_timeout", "no backend of this model answered in time; try again")
	case last != nil:
		x.out.Status = http.StatusBadGateway
		x.writeError("api_error", "upstream_unreachable", "no backend of this model answered; try again")
	default:
		x.out.End = store.EndRefused
		x.out.Status = http.StatusServiceUnavailable
		x.w.Header().Set("Retry-After", "1")
		x.writeError("api_error", "no_backend", fmt.Sprintf("the model %q has no live backend now; try again", x.call.Model))
	}
}

// fail ends an answer that has begun: in a stream with the protocol's error event and no end mark, and in any case
// with the connection cut, so that no client takes a broken answer for a whole one. The lock is held.
func (x *exchange) fail(code, message string) {
	if x.streaming != nil {
		if _, err := io.WriteString(x.w, brokenEvent(x.call.Operation.Shape, x.events, code, message)); err != nil {
			return
		}
	}
	x.cut()
}

// cut ends the connection without the last chunk. The lock is held.
func (x *exchange) cut() {
	if err := x.flusher.Flush(); err != nil {
		return
	}
	if conn, _, err := x.flusher.Hijack(); err == nil {
		conn.Close()
	}
}

// ask sends the request to the backend that was taken. An *errBackend means that nothing of its answer reached the
// client. What a backend did to a connection that had been idle, and a refusal of what the gateway itself put into
// the request, cost one further attempt there.
func (x *exchange) ask() error {
	askUsage := x.call.Stream && !x.call.WantUsage && x.call.Operation.AskUsage
	if askUsage {
		_, refused := x.relay.noOptions.Load(x.lease.ID)
		askUsage = !refused
	}
	for attempt := 0; ; attempt++ {
		err := x.try(askUsage)
		if attempt > 0 || failureOf(err) == nil || x.in.Context().Err() != nil {
			return err
		}
		switch {
		case errors.Is(err, upstream.ErrStale):
		case errors.Is(err, errOptions):
			x.relay.noOptions.Store(x.lease.ID, true)
			askUsage = false
		default:
			return err
		}
	}
}

var errOptions = errors.New("stream_options are refused")

func (x *exchange) try(askUsage bool) error {
	c := &x.call
	wait := c.Rules.Whole
	if c.Stream {
		wait = c.Rules.Headers
	}
	resp, err := x.send(askUsage, wait)
	if err != nil {
		return &errBackend{err: fmt.Errorf("ask %s: %w", x.lease.Addr, late(err, errSilent))}
	}
	x.resp = resp
	defer resp.Body.Close() // closing the connection is what stops the engine
	x.status = resp.Status
	switch resp.Status {
	case http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout, http.StatusTooManyRequests:
		return x.refusal(resp, nil)
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		if askUsage {
			failure := x.refusal(resp, errOptions)
			if bytes.Contains(failure.body, []byte("stream_options")) {
				return failure
			}
			resp.Body = read{bytes.NewReader(failure.body)}
		}
	}
	if resp.Status == http.StatusOK && strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		return x.stream(resp)
	}
	return x.whole(resp)
}

// send sends the request to the backend that was taken.
func (x *exchange) send(askUsage bool, wait time.Duration) (*upstream.Response, error) {
	r := &x.request
	if x.sends++; x.sends > 1 {
		r = &upstream.Request{} // whoever sends may still read the one before
	}
	fields := fieldLists.Get().(*[]upstream.Field) //nolint:forcetypeassert // nothing else is put there
	*fields = appendFields((*fields)[:0], x.in.Header, x.relay.via)
	defer func() {
		clear(*fields)
		fieldLists.Put(fields)
	}()
	*r = upstream.Request{Method: x.in.Method, Addr: x.lease.Addr, Target: x.in.URL.RequestURI(), Header: *fields, Wait: wait}
	r.Body, r.Length = x.call.Content.Reader(askUsage)
	return x.relay.to.Send(x.in.Context(), r)
}

var fieldLists = sync.Pool{New: func() any { return new([]upstream.Field) }}

// read is a body that has been read.
type read struct{ *bytes.Reader }

func (r read) Next() ([]byte, error) {
	b := make([]byte, r.Len())
	if len(b) == 0 {
		return nil, io.EOF
	}
	n, err := r.Read(b)
	return b[:n], err
}
func (read) Wait(time.Duration) {}
func (read) Close()             {}

// refusal reads an answer that says no.
func (x *exchange) refusal(resp *upstream.Response, why error) *errBackend {
	resp.Body.Wait(x.call.Rules.Idle)
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxError))
	failure := &errBackend{err: fmt.Errorf("%s answered %d", x.lease.Addr, resp.Status), status: resp.Status, body: answer, header: resp.Header}
	if why != nil {
		failure.err = fmt.Errorf("%s answered %d: %w", x.lease.Addr, resp.Status, why)
	}
	if err != nil {
		return &errBackend{err: fmt.Errorf("read error of %s: %w", x.lease.Addr, late(err, errStall))}
	}
	return failure
}

// late says what it was that did not come in time, where it is time that ran out.
func late(err, what error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return what
	}
	return err
}

// none are no tokens. It is never changed.
var none = new(int64)

// settle completes the usage: with what is known without being told, then with estimates.
func (x *exchange) settle() {
	o, op := &x.out, &x.call.Operation
	began := x.status == http.StatusOK && (o.FirstByte > 0 || o.End == store.EndClientGone)
	switch {
	case len(o.Tried) == 0, op.Free, // no model ran
		o.End != store.EndDone && o.End != store.EndClientGone && o.Chunks == 0 && !o.Usage.Known(): // nothing came that would be paid for
		o.Usage = body.Usage{PromptTokens: none, CompletionTokens: none}
		return
	case op.Token == "" && op.Text && o.Usage.PromptTokens != nil && o.Usage.CompletionTokens == nil:
		o.Usage.CompletionTokens = none // embeddings and scores give out no tokens
	}
	if o.Usage.PromptTokens == nil && op.Text && (began || o.End == store.EndClientGone) {
		n := int64(x.call.PromptTokens)
		o.Usage.PromptTokens, o.Estimated = &n, true
	}
	if known := o.Usage.CompletionTokens; op.Token != "" && (known == nil && (x.streaming != nil || o.End == store.EndClientGone) || known != nil && o.End != store.EndDone && x.told < o.Chunks && *known < int64(o.Chunks)) {
		o.Usage.CompletionTokens, o.Estimated = new(int64(o.Chunks)), true
	}
}
