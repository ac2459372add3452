package siminference

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"time"
)

const maxBody = 64 << 20

// request is the part of OpenAI's completion requests that changes a simulated answer.
type request struct {
	Model               string          `json:"model"`
	Messages            []message       `json:"messages"`
	System              json.RawMessage `json:"system"` // of Anthropic's API
	Prompt              json.RawMessage `json:"prompt"`
	Input               json.RawMessage `json:"input"`
	EncodingFormat      string          `json:"encoding_format"`
	Stream              bool            `json:"stream"`
	MaxTokens           *int            `json:"max_tokens"`
	MaxCompletionTokens *int            `json:"max_completion_tokens"`
	StreamOptions       *struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

type message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

type usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
}

// A shape is what differs between chat and text completions.
type shape struct {
	idPrefix, object, chunkObject string
	choice                        func(text string, finish *string) map[string]any
	delta                         func(word string, first bool, finish *string) map[string]any
}

var chatShape = shape{
	idPrefix: "chatcmpl", object: "chat.completion", chunkObject: "chat.completion.chunk",
	choice: func(text string, finish *string) map[string]any {
		return map[string]any{"index": 0, "message": map[string]any{"role": "assistant", "content": text}, "finish_reason": finish}
	},
	delta: func(word string, first bool, finish *string) map[string]any {
		delta := map[string]any{}
		if first {
			delta["role"] = "assistant"
		}
		if finish == nil {
			delta["content"] = word
		}
		return map[string]any{"index": 0, "delta": delta, "finish_reason": finish}
	},
}

var textShape = shape{
	idPrefix: "cmpl", object: "text_completion", chunkObject: "text_completion",
	choice: func(text string, finish *string) map[string]any {
		return map[string]any{"index": 0, "text": text, "finish_reason": finish}
	},
	delta: func(word string, _ bool, finish *string) map[string]any {
		return map[string]any{"index": 0, "text": word, "finish_reason": finish}
	},
}

func (e *Engine) models(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": []any{
		map[string]any{"id": e.cfg.Model, "object": "model", "created": e.started.Unix(), "owned_by": "heteroflow-sim"},
	}})
}

func (e *Engine) generate(s shape) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		req, ok := e.read(w, r)
		if !ok {
			return
		}
		prompt := 0
		for _, m := range req.Messages {
			prompt += CountTokens(text(m.Content))
		}
		prompt += CountTokens(text(req.Prompt))
		n := e.cfg.MaxTokens
		for _, limit := range []*int{req.MaxTokens, req.MaxCompletionTokens} {
			if limit != nil {
				n = *limit
			}
		}
		if n < 1 {
			writeError(w, http.StatusBadRequest, "invalid_request_error", fmt.Sprintf("max_tokens is %d: write 1 or more", n))
			return
		}
		leave, err := e.enter(r.Context())
		if err != nil {
			return // the client left while waiting
		}
		defer leave()
		began := time.Now()
		defer func() { e.metrics.e2e.Observe(time.Since(began).Seconds()) }()
		e.metrics.prompt.Add(float64(prompt))
		answer := answer{engine: e, shape: s, id: e.id(s.idPrefix), created: began.Unix(), prompt: prompt, want: n, began: began}
		if req.Stream {
			answer.stream(r.Context(), w, req.StreamOptions != nil && req.StreamOptions.IncludeUsage)
			return
		}
		answer.whole(r.Context(), w)
	}
}

// answer is one generation on its way to a client.
type answer struct {
	engine       *Engine
	shape        shape
	id           string
	created      int64
	prompt, want int
	began        time.Time
}

var length = "length"

func (a answer) envelope(object string, choices []any) map[string]any {
	return map[string]any{
		"id": a.id, "object": object, "created": a.created, "model": a.engine.cfg.Model,
		"system_fingerprint": "simulated", "choices": choices,
	}
}

func (a answer) usage(completion int) usage {
	return usage{PromptTokens: a.prompt, CompletionTokens: completion, TotalTokens: a.prompt + completion}
}

func (a answer) firstToken(i int) {
	if i == 0 {
		a.engine.metrics.ttft.Observe(time.Since(a.began).Seconds())
	}
}

func (a answer) whole(ctx context.Context, w http.ResponseWriter) {
	var out strings.Builder
	count := 0
	done, err := a.engine.decode(ctx, a.prompt, a.want, func(word string) error {
		a.firstToken(count)
		count++
		out.WriteString(word)
		return nil
	})
	if a.ended(err); err != nil {
		return
	}
	body := a.envelope(a.shape.object, []any{a.shape.choice(out.String(), &length)})
	body["usage"] = a.usage(done)
	writeJSON(w, http.StatusOK, body)
}

func (a answer) stream(ctx context.Context, w http.ResponseWriter, withUsage bool) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusOK)
	flusher := http.NewResponseController(w)
	send := func(event map[string]any) error {
		body, err := json.Marshal(event)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "data: %s\n\n", body); err != nil {
			return err
		}
		return flusher.Flush()
	}
	count := 0
	done, err := a.engine.decode(ctx, a.prompt, a.want, func(word string) error {
		a.firstToken(count)
		count++
		return send(a.envelope(a.shape.chunkObject, []any{a.shape.delta(word, count == 1, nil)}))
	})
	if err == nil {
		err = send(a.envelope(a.shape.chunkObject, []any{a.shape.delta("", false, &length)}))
	}
	if err == nil && withUsage {
		last := a.envelope(a.shape.chunkObject, []any{})
		last["usage"] = a.usage(done)
		err = send(last)
	}
	if err == nil {
		_, err = io.WriteString(w, "data: [DONE]\n\n")
	}
	a.ended(err)
}

// embeddings answers with vectors that depend on the text alone, so that equal texts have equal vectors.
func (e *Engine) embeddings(w http.ResponseWriter, r *http.Request) {
	req, ok := e.read(w, r)
	if !ok {
		return
	}
	leave, err := e.enter(r.Context())
	if err != nil {
		return
	}
	defer leave()
	var inputs []string
	if err := json.Unmarshal(req.Input, &inputs); err != nil {
		inputs = []string{text(req.Input)}
	}
	tokens := 0
	data := make([]any, 0, len(inputs))
	for i, input := range inputs {
		tokens += CountTokens(input)
		var embedding any = vector(input)
		if req.EncodingFormat == "base64" { // what OpenAI's own SDKs ask for unless told otherwise
			embedding = packed(vector(input))
		}
		data = append(data, map[string]any{"object": "embedding", "index": i, "embedding": embedding})
	}
	e.metrics.prompt.Add(float64(tokens))
	e.metrics.success.WithLabelValues("stop").Inc()
	writeJSON(w, http.StatusOK, map[string]any{
		"object": "list", "model": e.cfg.Model, "data": data, "usage": map[string]int{"prompt_tokens": tokens, "total_tokens": tokens},
	})
}

func vector(s string) []float64 {
	const size = 8
	v := make([]float64, size)
	norm := 0.0
	for i, r := range s {
		v[i%size] += float64(r%97) + 1
	}
	for _, x := range v {
		norm += x * x
	}
	for i := range v {
		if norm > 0 {
			v[i] /= math.Sqrt(norm)
		}
	}
	return v
}

// packed is a vector as OpenAI's API packs it: little-endian 32-bit floats in base64.
func packed(v []float64) string {
	raw := make([]byte, 0, 4*len(v))
	for _, x := range v {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(float32(x)))
	}
	return base64.StdEncoding.EncodeToString(raw)
}

// read decodes the body and checks the model; on failure it has answered.
func (e *Engine) read(w http.ResponseWriter, r *http.Request) (request, bool) {
	var req request
	if !e.Ready() {
		writeError(w, http.StatusServiceUnavailable, "service_unavailable", "the simulated model is still loading")
		return req, false
	}
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&req)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		writeError(w, http.StatusRequestEntityTooLarge, "invalid_request_error", fmt.Sprintf("the body is over %d bytes", tooLarge.Limit))
	case err != nil:
		writeError(w, http.StatusBadRequest, "invalid_request_error", "the body is not the JSON this route takes: "+err.Error())
	case req.Model != e.cfg.Model:
		writeError(w, http.StatusNotFound, "NotFoundError", fmt.Sprintf("the model %q does not exist; this engine serves %q", req.Model, e.cfg.Model))
	default:
		return req, true
	}
	return req, false
}

// text reads a content or prompt that is a string, a list of strings, or a list of typed parts.
func text(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var parts []json.RawMessage
	if json.Unmarshal(raw, &parts) != nil {
		return ""
	}
	var b strings.Builder
	for _, part := range parts {
		var typed struct {
			Text string `json:"text"`
		}
		if json.Unmarshal(part, &s) == nil {
			b.WriteString(s)
		} else if json.Unmarshal(part, &typed) == nil {
			b.WriteString(typed.Text)
		}
		b.WriteByte(' ')
	}
	return b.String()
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// An error here means that the client left; there is nobody to tell.
	json.NewEncoder(w).Encode(body) //nolint:errcheck // see above
}

func writeError(w http.ResponseWriter, status int, kind, message string) {
	writeJSON(w, status, map[string]any{"error": map[string]any{"message": message, "type": kind, "param": nil, "code": status}})
}
