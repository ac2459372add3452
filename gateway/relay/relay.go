package relay

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/gateway/balance"
	"github.com/heteroflow/heteroflow/internal/store"
)

// Outcome is what happened to one request.
type Outcome struct {
	Status    int // sent to the client; 499 when it left before
	End       string
	Backend   string // id of the last one tried
	Tries     int
	FirstByte time.Duration // 0 when nothing came
	Usage     Usage
}

// StatusClientGone stands for an answer nobody waited for. Source: nginx's log convention.
const StatusClientGone = 499

const (
	maxAnswer = 256 << 20 // a whole answer kept until it is complete
	maxEvent  = 32 << 20  // one event of a stream, which is passed on whole
	maxTries  = 3

	// writeWait is how long a client may take to read what was written: one that reads nothing must not hold a backend.
	writeWait = 2 * time.Minute
)

// Relay sends requests to backends. It is safe for concurrent use.
type Relay struct {
	client *http.Client
}

// New makes a relay. headerTimeout bounds the wait for a backend's headers; the answer itself has no time limit.
func New(headerTimeout time.Duration) *Relay {
	return &Relay{client: &http.Client{
		Transport: &http.Transport{
			DialContext:           (&net.Dialer{Timeout: 3 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
			MaxIdleConnsPerHost:   512,
			IdleConnTimeout:       60 * time.Second,
			ResponseHeaderTimeout: headerTimeout,
			DisableCompression:    true, // bytes pass as the engine wrote them
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
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

// Exchange answers the client by a backend of the pool; ask says which one to prefer. It always writes a response unless the client has left.
func (r *Relay) Exchange(w http.ResponseWriter, in *http.Request, req Request, pool *balance.Pool, ask balance.Ask) Outcome {
	x := &exchange{relay: r, w: w, in: in, req: req, began: time.Now()}
	body, err := req.AskUsage()
	if err != nil {
		WriteError(w, http.StatusBadRequest, "invalid_request_error", "", err.Error())
		return Outcome{Status: http.StatusBadRequest, End: store.EndRefused}
	}
	ask.Not, ask.Stream = map[string]bool{}, req.Stream
	var last *errBackend
	for x.out.Tries < maxTries {
		lease := pool.Take(ask)
		if lease == nil {
			break
		}
		ask.Not[lease.ID] = true
		x.lease = lease
		x.out.Tries++
		x.out.Backend = lease.ID
		err := x.try(lease.Addr, body)
		var retry *errBackend
		isRetry := errors.As(err, &retry)
		switch {
		case in.Context().Err() != nil:
			lease.Done(balance.Neutral)
		case isRetry && retry.status == http.StatusTooManyRequests:
			lease.Done(balance.Busy(0))
		case isRetry, x.out.End == store.EndUpstreamCut:
			lease.Done(balance.Failed)
		case x.out.End == store.EndDone:
			lease.Done(balance.Success)
		default:
			lease.Done(balance.Neutral)
		}
		if in.Context().Err() != nil && x.out.End != store.EndDone {
			x.out.End = store.EndClientGone
			if !x.headersSent {
				x.out.Status = StatusClientGone
			}
			return x.out
		}
		if !isRetry {
			return x.out
		}
		last = retry
	}
	x.giveUp(last)
	return x.out
}

// exchange is one request on its way.
type exchange struct {
	relay       *Relay
	w           http.ResponseWriter
	in          *http.Request
	req         Request
	lease       *balance.Lease // the one being tried
	began       time.Time
	headersSent bool
	out         Outcome
}

// giveUp tells the client that no backend answered, in the form that what was already sent allows.
func (x *exchange) giveUp(last *errBackend) {
	x.out.End = store.EndUpstreamError
	switch {
	case x.headersSent:
		x.failStream("no backend answered")
	case last != nil && last.status != 0:
		x.out.Status = last.status
		copyHeaders(x.w.Header(), last.header)
		x.w.Header().Set("Content-Length", fmt.Sprint(len(last.body)))
		x.w.WriteHeader(last.status)
		x.w.Write(last.body) //nolint:errcheck // the client left; nothing else to tell
	case last != nil:
		x.out.Status = http.StatusBadGateway
		WriteError(x.w, http.StatusBadGateway, "api_error", "upstream_unreachable", "no backend of this model answered; try again")
	default:
		x.out.End = store.EndRefused
		var none int64
		x.out.Usage = Usage{PromptTokens: &none, CompletionTokens: &none} // no engine was asked: known to be nothing
		x.out.Status = http.StatusServiceUnavailable
		x.w.Header().Set("Retry-After", "1")
		WriteError(x.w, http.StatusServiceUnavailable, "api_error", "no_backend", fmt.Sprintf("the model %q has no live backend now; try again", x.req.Model))
	}
}

// try sends the request to one backend. An *errBackend means that nothing of its answer reached the client.
func (x *exchange) try(addr string, body []byte) error {
	ctx, cancel := context.WithCancel(x.in.Context())
	defer cancel() // closing the connection is what stops the engine
	out, err := http.NewRequestWithContext(ctx, x.in.Method, "http://"+addr+x.in.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		return &errBackend{err: fmt.Errorf("make request to %s: %w", addr, err)}
	}
	copyHeaders(out.Header, x.in.Header)
	for _, name := range credentials { // the client's key is the gateway's business alone
		out.Header.Del(name)
	}
	out.Header.Del("Accept-Encoding")
	resp, err := x.relay.client.Do(out)
	if err != nil {
		return &errBackend{err: fmt.Errorf("ask %s: %w", addr, err)}
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout, http.StatusTooManyRequests:
		answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		if err != nil {
			return &errBackend{err: fmt.Errorf("read error of %s: %w", addr, err)}
		}
		return &errBackend{err: fmt.Errorf("%s answered %d", addr, resp.StatusCode), status: resp.StatusCode, body: answer, header: resp.Header}
	}
	if resp.StatusCode == http.StatusOK && strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		return x.stream(resp)
	}
	return x.whole(resp)
}

// whole passes on an answer that is complete, so that one cut short can be asked of another backend.
func (x *exchange) whole(resp *http.Response) error {
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return &errBackend{err: fmt.Errorf("read answer: %w", err)}
	}
	if len(answer) > maxAnswer {
		return &errBackend{err: fmt.Errorf("answer is over %d bytes", maxAnswer)}
	}
	if x.headersSent {
		// A stream was promised to the client by a backend that then died; this one answers whole.
		return &errBackend{err: errors.New("backend does not stream")}
	}
	x.out.FirstByte = time.Since(x.began)
	if usage, _, _ := inspect(answer); usage != nil {
		x.out.Usage = *usage
	}
	x.out.Status = resp.StatusCode
	x.out.End = store.EndDone
	if resp.StatusCode >= 400 {
		x.out.End = store.EndUpstreamError
	}
	copyHeaders(x.w.Header(), resp.Header)
	x.w.Header().Set("Content-Length", fmt.Sprint(len(answer)))
	x.w.WriteHeader(resp.StatusCode)
	if _, err := x.w.Write(answer); err != nil {
		x.out.End = store.EndClientGone
	}
	return nil
}

// stream passes on events as they come. Headers go out at once; until the first event has, a backend that dies
// costs the client nothing.
func (x *exchange) stream(resp *http.Response) error {
	flusher := http.NewResponseController(x.w)
	defer x.patience(flusher, 0)
	x.patience(flusher, writeWait)
	if !x.headersSent {
		copyHeaders(x.w.Header(), resp.Header)
		x.w.Header().Del("Content-Length")
		x.w.Header().Set("Cache-Control", "no-cache, no-transform")
		x.w.Header().Set("X-Accel-Buffering", "no") // keeps a front proxy from collecting events
		x.w.WriteHeader(http.StatusOK)
		x.headersSent = true
		x.out.Status = http.StatusOK
		if err := flusher.Flush(); err != nil {
			x.out.End = store.EndClientGone
			return nil
		}
	}
	events := bufio.NewReaderSize(resp.Body, 32<<10)
	var event []byte // lines of the event being read
	sent, finished, failed := false, false, false
	for {
		line, err := events.ReadSlice('\n')
		event = append(event, line...)
		if len(event) > maxEvent {
			err = fmt.Errorf("an event is over %d bytes", maxEvent)
		} else if err == bufio.ErrBufferFull {
			continue // the line goes on
		}
		if blank := endsBlank(event); len(event) > 0 && (blank && err == nil || err == io.EOF) {
			keep, end, bad := x.see(event)
			finished = finished || end
			failed = failed || bad
			if keep {
				x.patience(flusher, writeWait)
				if _, err := x.w.Write(event); err != nil {
					x.out.End = store.EndClientGone
					return nil
				}
				if err := flusher.Flush(); err != nil {
					x.out.End = store.EndClientGone
					return nil
				}
				if !sent {
					sent = true
					x.out.FirstByte = time.Since(x.began)
					x.lease.FirstByte()
				}
			}
			event = event[:0]
		}
		if err == nil {
			continue
		}
		switch {
		case finished && failed:
			x.out.End = store.EndUpstreamError
		case finished || err == io.EOF && sent && !failed:
			x.out.End = store.EndDone
		case !sent:
			return &errBackend{err: fmt.Errorf("stream ended before its first event: %w", err)}
		case failed:
			x.out.End = store.EndUpstreamError
		default:
			x.out.End = store.EndUpstreamCut
			x.failStream("the backend stopped in the middle of the answer")
		}
		return nil
	}
}

// endsBlank reports whether the last line of what was read so far of an event is empty, which ends the event.
func endsBlank(event []byte) bool {
	if !bytes.HasSuffix(event, []byte("\n")) {
		return false
	}
	before := bytes.TrimSuffix(event[:len(event)-1], []byte("\r"))
	return len(before) == 0 || before[len(before)-1] == '\n'
}

// patience bounds the next writes to the client; 0 lifts the bound.
func (x *exchange) patience(c *http.ResponseController, wait time.Duration) {
	var deadline time.Time
	if wait > 0 {
		deadline = time.Now().Add(wait)
	}
	c.SetWriteDeadline(deadline) //nolint:errcheck // a writer without deadlines has a reader that cannot stall it
}

// see reads usage out of an event and says whether the client gets it.
func (x *exchange) see(event []byte) (keep, end, failed bool) {
	for line := range bytes.Lines(event) {
		data, ok := bytes.CutPrefix(bytes.TrimRight(line, "\r\n"), []byte("data:"))
		if !ok {
			continue
		}
		data = bytes.TrimSpace(data)
		if string(data) == "[DONE]" {
			return true, true, false
		}
		usage, only, bad := inspect(data)
		if usage != nil {
			x.out.Usage = *usage // the last one holds: some engines repeat it
			if only && !x.req.WantUsage {
				return false, false, bad
			}
		}
		failed = failed || bad
	}
	return true, false, failed
}

// failStream ends a stream that has begun: an error event, no end mark, and the connection cut, so that no client
// takes a broken answer for a whole one.
func (x *exchange) failStream(message string) {
	body := fmt.Sprintf("data: {\"error\":{\"message\":%q,\"type\":\"api_error\",\"param\":null,\"code\":\"upstream_cut\"}}\n\n", message)
	if _, err := io.WriteString(x.w, body); err == nil {
		if err := http.NewResponseController(x.w).Flush(); err == nil {
			x.abort()
		}
	}
}

func (x *exchange) abort() {
	conn, _, err := http.NewResponseController(x.w).Hijack()
	if err == nil {
		conn.Close() // without the last chunk
	}
}

// credentials are the headers in which auth.Token finds a key.
var credentials = []string{"Authorization", "X-Nomad-Token"}

// hopByHop headers belong to one connection. Source: RFC 9110 section 7.6.1.
var hopByHop = []string{"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

func copyHeaders(to, from http.Header) {
	named := map[string]bool{}
	for _, value := range from.Values("Connection") {
		for _, name := range strings.Split(value, ",") {
			named[http.CanonicalHeaderKey(strings.TrimSpace(name))] = true
		}
	}
	for name, values := range from {
		if named[name] {
			continue
		}
		to[name] = append([]string(nil), values...)
	}
	for _, name := range hopByHop {
		to.Del(name)
	}
}
