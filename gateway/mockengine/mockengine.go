// Package mockengine is an inference engine for tests of the gateway: it speaks every protocol that engines speak, does
// to each call what its test told it to, and keeps a ledger of what it was sent, what it gave out, and whether its
// client stayed. What a gateway should make of it, and engines that run by themselves, do not belong here.
package mockengine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// Behaviour is what the engine does to one call. The zero value answers well, with the usage that was asked for.
type Behaviour struct {
	Status     int         // answers with this status and Body at once; 0 is 200 with an answer of the path's protocol
	Header     http.Header // of the answer, besides its own
	Body       string      // of an answer that is not 200, or instead of the one made up
	Raw        []string    // the stream, piece by piece, each sent on its own, instead of the one made up
	Plain      string      // content type of Raw; text/event-stream when empty
	Reset      bool        // resets the connection before any header
	Silent     bool        // never answers; waits for its client to leave
	Gate       <-chan bool // waited for before the headers, of an answer that comes whole and of SGLang's streams
	TokenGate  <-chan bool // waited for after the headers of a stream, before its first token
	Tokens     int         // given out; 60 when 0, none below 0
	CutAfter   int         // resets the connection after so many tokens
	CloseAfter int         // closes it without the last chunk after so many tokens
	StallAfter int         // goes silent after so many tokens, until its client leaves
	ErrorAfter int         // tells an error inside of the stream after so many tokens, 1 for the first
	ErrorFirst bool        // tells an error inside of the stream before any token
	Broken     int         // the event of this token, counted from 1, is no JSON
	NoDone     bool        // ends without the protocol's end mark
	NoUsage    bool        // tells none, whatever was asked
	Cumulative bool        // tells usage with every token, as a sum
	Twice      bool        // tells usage with the last token and once more after it
	Cached     int         // tokens of the prompt that came from a cache
	Model      string      // in the answer; the one that was asked for when empty
}

// Seen is a line of the ledger.
type Seen struct {
	Path   string
	Header http.Header
	Body   []byte
	Tokens int           // given out
	Left   chan struct{} // closed when its client left before the end
	Ended  chan struct{} // closed when the engine is through with it
}

// Engine is a running mock engine.
type Engine struct {
	Addr string // host:port

	mu      sync.Mutex
	script  []Behaviour // of the calls to come; the last one stays
	ledger  []*Seen
	arrived chan *Seen
}

// New starts an engine that treats its first calls as told, and all further ones as the last of them.
func New(tb testing.TB, script ...Behaviour) *Engine {
	tb.Helper()
	e := &Engine{script: script, arrived: make(chan *Seen, 10_000)}
	s := httptest.NewServer(http.HandlerFunc(e.serve))
	tb.Cleanup(func() {
		s.CloseClientConnections() // what is silent on purpose would wait for ever
		s.Close()
	})
	e.Addr = strings.TrimPrefix(s.URL, "http://")
	return e
}

// Set changes what is done to all further calls.
func (e *Engine) Set(b Behaviour) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.script = []Behaviour{b}
}

// Ledger is what was seen so far, in order.
func (e *Engine) Ledger() []*Seen {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]*Seen(nil), e.ledger...)
}

// Arrived gives each call once, when its body has been read.
func (e *Engine) Arrived() <-chan *Seen { return e.arrived }

func (e *Engine) next() Behaviour {
	if len(e.script) == 0 {
		return Behaviour{}
	}
	b := e.script[0]
	if len(e.script) > 1 {
		e.script = e.script[1:]
	}
	return b
}

func (e *Engine) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet { // of a probe
		return
	}
	raw, err := io.ReadAll(r.Body)
	seen := &Seen{Path: r.URL.RequestURI(), Header: r.Header.Clone(), Body: raw, Left: make(chan struct{}), Ended: make(chan struct{})}
	e.mu.Lock()
	b := e.next()
	e.ledger = append(e.ledger, seen)
	e.mu.Unlock()
	defer close(seen.Ended)
	if err != nil {
		close(seen.Left)
		return
	}
	select {
	case e.arrived <- seen:
	default: // a test that sends so many does not wait for each
	}
	c := &call{e: e, b: b, w: w, r: r, seen: seen}
	if c.run(); r.Context().Err() != nil {
		close(seen.Left)
	}
}

// call is one call being answered.
type call struct {
	e    *Engine
	b    Behaviour
	w    http.ResponseWriter
	r    *http.Request
	seen *Seen
	ask  struct {
		Model   string
		Stream  bool
		Options struct {
			Usage bool `json:"include_usage"`
		} `json:"stream_options"`
	}
	prompt int
}

func (c *call) wait(gate <-chan bool) bool {
	if gate == nil {
		return true
	}
	select {
	case <-gate:
		return true
	case <-c.r.Context().Done():
		return false
	}
}

func (c *call) run() {
	if text := c.seen.Body; len(text) <= 1<<20 {
		json.Unmarshal(text, &c.ask) //nolint:errcheck // a form has another way to say it
		c.prompt = len(bytes.Fields(text)) + c.b.Cached
	}
	if c.b.Model == "" {
		c.b.Model = c.ask.Model
	}
	if c.b.Tokens == 0 {
		c.b.Tokens = 60
	}
	switch {
	case c.b.Reset:
		c.reset()
		return
	case c.b.Silent:
		<-c.r.Context().Done()
		return
	case !c.wait(c.b.Gate):
		return
	}
	for name, values := range c.b.Header {
		c.w.Header()[name] = values
	}
	switch {
	case c.b.Status != 0:
		c.answer(c.b.Status, c.b.Body)
	case c.b.Raw != nil:
		c.raw()
	case c.b.Body != "":
		c.answer(http.StatusOK, c.b.Body)
	case c.ask.Stream:
		c.stream()
	default:
		c.whole()
	}
}

func (c *call) answer(status int, body string) {
	if c.w.Header().Get("Content-Type") == "" {
		c.w.Header().Set("Content-Type", "application/json")
	}
	c.w.WriteHeader(status)
	io.WriteString(c.w, body) //nolint:errcheck // the client left
}

func (c *call) hijacked() *net.TCPConn {
	conn, _, err := http.NewResponseController(c.w).Hijack()
	if err != nil {
		return nil
	}
	tcp, _ := conn.(*net.TCPConn)
	return tcp
}

// reset ends the connection in the way a process that was killed with data unread does.
func (c *call) reset() {
	if conn := c.hijacked(); conn != nil {
		conn.SetLinger(0) //nolint:errcheck // a connection that is gone already is as good
		conn.Close()
	}
}

func (c *call) flush() { http.NewResponseController(c.w).Flush() } //nolint:errcheck // the next write tells

func (c *call) raw() {
	kind := c.b.Plain
	if kind == "" {
		kind = "text/event-stream"
	}
	c.w.Header().Set("Content-Type", kind)
	c.flush()
	if !c.wait(c.b.TokenGate) {
		return
	}
	for _, piece := range c.b.Raw {
		if _, err := io.WriteString(c.w, piece); err != nil {
			return
		}
		c.flush()
	}
}

// usage is what the path's protocol writes.
func (c *call) usage(completion int) map[string]any {
	total := c.prompt + completion
	if strings.HasSuffix(c.r.URL.Path, "/responses") {
		return map[string]any{"input_tokens": c.prompt, "output_tokens": completion, "total_tokens": total, "input_tokens_details": map[string]int{"cached_tokens": c.b.Cached}}
	}
	if strings.HasSuffix(c.r.URL.Path, "/messages") {
		return map[string]any{"input_tokens": c.prompt - c.b.Cached, "cache_read_input_tokens": c.b.Cached, "output_tokens": completion}
	}
	return map[string]any{"prompt_tokens": c.prompt, "completion_tokens": completion, "total_tokens": total, "prompt_tokens_details": map[string]int{"cached_tokens": c.b.Cached}}
}

func encode(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err) // maps of texts and numbers
	}
	return string(raw)
}

func words(n int) string { return strings.Repeat("word ", max(0, n)) }

func (c *call) whole() {
	n := max(0, c.b.Tokens)
	body := map[string]any{"id": "x-1", "model": c.b.Model}
	if !c.b.NoUsage {
		body["usage"] = c.usage(n)
	}
	switch path := c.r.URL.Path; {
	case strings.HasSuffix(path, "/chat/completions"):
		body["object"], body["choices"] = "chat.completion", []any{map[string]any{"index": 0, "message": map[string]any{"role": "assistant", "content": words(n)}, "finish_reason": "stop"}}
	case strings.HasSuffix(path, "/completions"):
		body["object"], body["choices"] = "text_completion", []any{map[string]any{"index": 0, "text": words(n), "finish_reason": "stop"}}
	case strings.HasSuffix(path, "/responses"):
		body["object"], body["status"], body["error"] = "response", "completed", nil
		body["output"] = []any{map[string]any{"type": "message", "role": "assistant", "content": []any{map[string]any{"type": "output_text", "text": words(n)}}}}
	case strings.HasSuffix(path, "/messages"):
		body["type"], body["role"], body["stop_reason"] = "message", "assistant", "end_turn"
		body["content"] = []any{map[string]any{"type": "text", "text": words(n)}}
	case strings.Contains(path, "/audio/"):
		body = map[string]any{"text": words(n)}
	case strings.Contains(path, "tokenize"):
		body = map[string]any{"count": c.prompt, "tokens": []int{1, 2}}
	default: // embeddings, rerank, score, images
		n = 0
		body["data"] = []any{map[string]any{"embedding": []float64{0.5}, "index": 0}}
		if !c.b.NoUsage {
			body["usage"] = map[string]int{"prompt_tokens": c.prompt, "total_tokens": c.prompt}
		}
	}
	c.seen.Tokens = n
	text := encode(body)
	if c.b.CutAfter > 0 {
		c.w.Header().Set("Content-Length", fmt.Sprint(len(text)))
		c.answer(http.StatusOK, text[:len(text)/2])
		c.flush()
		c.reset()
		return
	}
	c.answer(http.StatusOK, text)
}

// event writes one event of the path's protocol.
func (c *call) event(kind string, body map[string]any) bool {
	name := ""
	if kind != "" {
		name = "event: " + kind + "\n"
		body["type"] = kind
	}
	if _, err := fmt.Fprintf(c.w, "%sdata: %s\n\n", name, encode(body)); err != nil {
		return false
	}
	c.flush()
	return c.r.Context().Err() == nil
}

func (c *call) stream() {
	c.w.Header().Set("Content-Type", "text/event-stream")
	c.flush()
	if !c.wait(c.b.TokenGate) {
		return
	}
	p := c.protocol()
	if c.b.ErrorFirst {
		p.fault()
		return
	}
	if !p.begin() {
		return
	}
	for n := 1; n <= c.b.Tokens; n++ {
		if n == c.b.Broken {
			io.WriteString(c.w, "data: {\"choices\":[{\"delta\":{\"content\n\n") //nolint:errcheck // the next write tells
		} else if !p.token(n) {
			return
		}
		c.seen.Tokens = n
		switch n {
		case c.b.CutAfter:
			c.reset()
			return
		case c.b.CloseAfter:
			if conn := c.hijacked(); conn != nil {
				conn.Close()
			}
			return
		case c.b.StallAfter:
			<-c.r.Context().Done()
			return
		case c.b.ErrorAfter:
			p.fault()
			return
		}
	}
	p.end()
}

// protocol is how a stream of one protocol goes.
type protocol struct {
	begin func() bool
	token func(n int) bool
	end   func()
	fault func()
}

func (c *call) protocol() protocol {
	switch path := c.r.URL.Path; {
	case strings.HasSuffix(path, "/responses"):
		return c.responses()
	case strings.HasSuffix(path, "/messages"):
		return c.messages()
	case strings.HasSuffix(path, "/chat/completions"):
		return c.chat(func(n int) map[string]any {
			return map[string]any{"index": 0, "delta": map[string]any{"content": "word "}, "finish_reason": c.finish(n)}
		})
	}
	return c.chat(func(n int) map[string]any {
		return map[string]any{"index": 0, "text": "word ", "finish_reason": c.finish(n)}
	})
}

func (c *call) finish(n int) any {
	if n == c.b.Tokens {
		return "stop"
	}
	return nil
}

func (c *call) chat(choice func(n int) map[string]any) protocol {
	told := c.ask.Options.Usage && !c.b.NoUsage
	return protocol{
		begin: func() bool { return true },
		token: func(n int) bool {
			body := map[string]any{"id": "x-1", "object": "chat.completion.chunk", "model": c.b.Model, "choices": []any{choice(n)}}
			if told && (c.b.Cumulative || c.b.Twice && n == c.b.Tokens) {
				body["usage"] = c.usage(n)
			}
			return c.event("", body)
		},
		end: func() {
			if told {
				c.event("", map[string]any{"id": "x-1", "object": "chat.completion.chunk", "model": c.b.Model, "choices": []any{}, "usage": c.usage(max(0, c.b.Tokens))})
			}
			if !c.b.NoDone {
				io.WriteString(c.w, "data: [DONE]\n\n") //nolint:errcheck // the client left
			}
		},
		fault: func() { c.event("", map[string]any{"error": map[string]any{"message": "boom", "code": 500}}) },
	}
}

func (c *call) responses() protocol {
	response := func(status string) map[string]any {
		return map[string]any{"id": "resp-1", "object": "response", "model": c.b.Model, "status": status, "error": nil, "output": []any{}}
	}
	return protocol{
		begin: func() bool {
			return c.event("response.created", map[string]any{"sequence_number": 0, "response": response("in_progress")})
		},
		token: func(n int) bool {
			return c.event("response.output_text.delta", map[string]any{"sequence_number": n, "delta": "word "})
		},
		end: func() {
			if c.b.NoDone {
				return
			}
			last := response("completed")
			if !c.b.NoUsage {
				last["usage"] = c.usage(max(0, c.b.Tokens))
			}
			c.event("response.completed", map[string]any{"sequence_number": c.b.Tokens + 1, "response": last})
		},
		fault: func() {
			last := response("failed")
			last["error"] = map[string]any{"code": "server_error", "message": "boom"}
			c.event("response.failed", map[string]any{"response": last})
		},
	}
}

func (c *call) messages() protocol {
	return protocol{
		begin: func() bool {
			start := map[string]any{"id": "msg-1", "type": "message", "role": "assistant", "model": c.b.Model, "content": []any{}}
			if !c.b.NoUsage {
				start["usage"] = c.usage(1)
			}
			return c.event("message_start", map[string]any{"message": start}) &&
				c.event("content_block_start", map[string]any{"index": 0, "content_block": map[string]any{"type": "text", "text": ""}})
		},
		token: func(int) bool {
			return c.event("content_block_delta", map[string]any{"index": 0, "delta": map[string]any{"type": "text_delta", "text": "word "}})
		},
		end: func() {
			c.event("content_block_stop", map[string]any{"index": 0})
			delta := map[string]any{"delta": map[string]any{"stop_reason": "end_turn"}}
			if !c.b.NoUsage {
				delta["usage"] = map[string]any{"output_tokens": max(0, c.b.Tokens)}
			}
			c.event("message_delta", delta)
			if !c.b.NoDone {
				c.event("message_stop", map[string]any{})
			}
		},
		fault: func() {
			c.event("error", map[string]any{"error": map[string]any{"type": "overloaded_error", "message": "boom"}})
		},
	}
}
