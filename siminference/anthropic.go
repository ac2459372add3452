package siminference

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// messages answers Anthropic's Messages API as vLLM and SGLang serve it beside OpenAI's. Source of the events and their
// order: Anthropic's API reference, streaming messages.
func (e *Engine) messages(w http.ResponseWriter, r *http.Request) {
	req, ok := e.read(w, r)
	if !ok {
		return
	}
	if req.MaxTokens == nil || *req.MaxTokens < 1 {
		writeError(w, http.StatusBadRequest, "invalid_request_error", "max_tokens: write how many tokens the answer may have, 1 or more")
		return
	}
	prompt := CountTokens(text(req.System))
	for _, m := range req.Messages {
		prompt += CountTokens(text(m.Content))
	}
	leave, err := e.enter(r.Context())
	if err != nil {
		return // the client left while waiting
	}
	defer leave()
	began := time.Now()
	defer func() { e.metrics.e2e.Observe(time.Since(began).Seconds()) }()
	e.metrics.prompt.Add(float64(prompt))
	a := answer{engine: e, id: e.id("msg"), prompt: prompt, want: *req.MaxTokens, began: began}
	if req.Stream {
		a.streamMessage(w, r)
		return
	}
	a.wholeMessage(w, r)
}

// message is the envelope of an answer.
func (a answer) message(content []any, completion int, stop any) map[string]any {
	return map[string]any{
		"id": a.id, "type": "message", "role": "assistant", "model": a.engine.cfg.Model, "content": content,
		"stop_reason": stop, "stop_sequence": nil, "usage": map[string]int{"input_tokens": a.prompt, "output_tokens": completion},
	}
}

func (a answer) wholeMessage(w http.ResponseWriter, r *http.Request) {
	var out strings.Builder
	count := 0
	done, err := a.engine.decode(r.Context(), a.prompt, a.want, func(word string) error {
		a.firstToken(count)
		count++
		out.WriteString(word)
		return nil
	})
	if a.ended(err); err != nil {
		return
	}
	writeJSON(w, http.StatusOK, a.message([]any{map[string]any{"type": "text", "text": out.String()}}, done, "max_tokens"))
}

func (a answer) streamMessage(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusOK)
	flusher := http.NewResponseController(w)
	send := func(kind string, event map[string]any) error {
		event["type"] = kind
		body, err := json.Marshal(event)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "event: %s\ndata: %s\n\n", kind, body); err != nil {
			return err
		}
		return flusher.Flush()
	}
	err := send("message_start", map[string]any{"message": a.message([]any{}, 0, nil)})
	if err == nil {
		err = send("content_block_start", map[string]any{"index": 0, "content_block": map[string]any{"type": "text", "text": ""}})
	}
	count, done := 0, 0
	if err == nil {
		done, err = a.engine.decode(r.Context(), a.prompt, a.want, func(word string) error {
			a.firstToken(count)
			count++
			return send("content_block_delta", map[string]any{"index": 0, "delta": map[string]any{"type": "text_delta", "text": word}})
		})
	}
	if err == nil {
		err = send("content_block_stop", map[string]any{"index": 0})
	}
	if err == nil {
		err = send("message_delta", map[string]any{
			"delta": map[string]any{"stop_reason": "max_tokens", "stop_sequence": nil}, "usage": map[string]int{"output_tokens": done},
		})
	}
	if err == nil {
		err = send("message_stop", map[string]any{})
	}
	a.ended(err)
}

// ended counts how the answer ended.
func (a answer) ended(err error) {
	reason := length
	if err != nil {
		reason = "abort"
	}
	a.engine.metrics.success.WithLabelValues(reason).Inc()
}
