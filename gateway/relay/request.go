// Package relay carries one OpenAI request to a backend and its answer back: it reads what routing needs from the
// body, asks streams for their usage, tries another backend while nothing of an answer has been passed on, and
// stops the backend when the client leaves. Who may call, and which backends there are, do not belong here.
package relay

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// Request is what the gateway reads from a body. The body itself is passed on as it came but for AskUsage.
type Request struct {
	Model     string
	Stream    bool
	WantUsage bool // the client itself asked the stream for usage
	Body      []byte
}

// ErrBody wraps everything wrong with a body; its text may be shown to the client.
var ErrBody = errors.New("bad body")

// Read takes the fields that routing needs. Every other field stays in the body untouched.
func Read(body []byte) (Request, error) {
	var top map[string]json.RawMessage
	if err := json.Unmarshal(body, &top); err != nil || top == nil {
		return Request{}, fmt.Errorf("%w: it is not a JSON object: %v", ErrBody, err)
	}
	var fields struct {
		Model  *string
		Stream *bool
	}
	var options map[string]json.RawMessage
	var include bool
	// Names are taken letter by letter, as engines take them: with "Stream" read as "stream", a body could be one thing
	// to the gateway and another to the engine, and its tokens would not be counted.
	if err := errors.Join(field(top, "model", &fields.Model), field(top, "stream", &fields.Stream), field(top, "stream_options", &options)); err != nil {
		return Request{}, err
	}
	if err := field(options, "include_usage", &include); err != nil {
		return Request{}, err
	}
	if fields.Model == nil || *fields.Model == "" {
		return Request{}, fmt.Errorf("%w: you must provide a model parameter", ErrBody)
	}
	r := Request{Model: *fields.Model, Body: body}
	r.Stream = fields.Stream != nil && *fields.Stream
	r.WantUsage = include
	return r, nil
}

// field reads one field of an object; it stays as it is when the object has none.
func field(object map[string]json.RawMessage, name string, out any) error {
	raw, ok := object[name]
	if !ok {
		return nil
	}
	if err := json.Unmarshal(raw, out); err != nil {
		var wrongType *json.UnmarshalTypeError
		if errors.As(err, &wrongType) {
			return fmt.Errorf("%w: %s must be a %s, not a %s", ErrBody, name, wrongType.Type, wrongType.Value)
		}
		return fmt.Errorf("%w: %s: %s", ErrBody, name, err)
	}
	return nil
}

// AskUsage returns the body with stream_options.include_usage set, so that a stream ends with its usage. All other
// options and fields stay.
func (r Request) AskUsage() ([]byte, error) {
	if !r.Stream || r.WantUsage {
		return r.Body, nil
	}
	var top map[string]json.RawMessage
	if err := json.Unmarshal(r.Body, &top); err != nil {
		return nil, fmt.Errorf("read body again: %w", err)
	}
	options := map[string]json.RawMessage{}
	if raw, ok := top["stream_options"]; ok && string(raw) != "null" {
		if err := json.Unmarshal(raw, &options); err != nil {
			return nil, fmt.Errorf("%w: stream_options must be an object", ErrBody)
		}
	}
	options["include_usage"] = json.RawMessage("true")
	if _, there := top["stream_options"]; !there {
		// The usual case costs no new encoding of a long prompt: the option is put in front of the first field.
		open := bytes.IndexByte(r.Body, '{')
		head := `{"stream_options":{"include_usage":true},`
		return append(append(make([]byte, 0, len(r.Body)+len(head)), head...), r.Body[open+1:]...), nil
	}
	raw, err := json.Marshal(options)
	if err != nil {
		return nil, fmt.Errorf("encode stream_options: %w", err)
	}
	top["stream_options"] = raw
	body, err := json.Marshal(top)
	if err != nil {
		return nil, fmt.Errorf("encode body: %w", err)
	}
	return body, nil
}

// Usage is the token count an engine reported; nil where it reported none.
type Usage struct {
	PromptTokens     *int64 `json:"prompt_tokens"`
	CompletionTokens *int64 `json:"completion_tokens"`
}

// inspect reads the usage of an answer or a stream event, and whether the event carries nothing but usage.
func inspect(data []byte) (u *Usage, usageOnly, isError bool) {
	if !bytes.Contains(data, []byte(`"usage"`)) && !bytes.Contains(data, []byte(`"error"`)) {
		return nil, false, false
	}
	var event struct {
		Usage   *Usage            `json:"usage"`
		Choices []json.RawMessage `json:"choices"`
		Error   json.RawMessage   `json:"error"`
	}
	if json.Unmarshal(data, &event) != nil {
		return nil, false, false
	}
	failed := len(event.Error) > 0 && string(event.Error) != "null"
	return event.Usage, event.Usage != nil && event.Choices != nil && len(event.Choices) == 0, failed
}
