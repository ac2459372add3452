package body

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"
)

// Request is what the gateway reads from the body of a request. Every other field stays in the body untouched.
type Request struct {
	Raw []byte // the body

	Model     string
	Stream    bool
	WantUsage bool // the client itself asked the stream for usage

	// MaxTokens is the longest answer asked for, of max_tokens, max_completion_tokens and max_output_tokens; nil
	// without any.
	MaxTokens *int64
	// Choices is how many answers are asked for, of n and best_of; 0 without either.
	Choices int64
	// PromptTokens is an estimate: a token for four bytes of text, and one for each number of a prompt of numbers.
	// Pictures and sounds count nothing.
	PromptTokens int

	modelAt   Span
	optionsAt Span // value of stream_options
	max       int64
	longest   int64
	room      [5][]byte
	reader    piecesReader
	includeAt Span // value of include_usage in it
	open      int  // place after the first bracket
}

// prompts are the fields that an engine reads as its prompt.
var prompts = map[string]bool{
	"messages": true, "prompt": true, "input": true, "system": true, "instructions": true, "tools": true, "query": true,
	"documents": true, "text_1": true, "text_2": true, "queries": true, "suffix": true,
}

// Read takes what routing needs out of a body of JSON. Errors wrap ErrBad.
func Read(raw []byte) (*Request, error) {
	r := &Request{}
	if err := r.Read(raw); err != nil {
		return nil, err
	}
	return r, nil
}

// Read does what the function Read does, in memory that is there.
func (r *Request) Read(raw []byte) error {
	*r = Request{Raw: raw}
	if bytes.HasPrefix(raw, []byte("\xef\xbb\xbf")) {
		return fmt.Errorf("%w: it begins with a byte order mark: send UTF-8 without one", ErrBad)
	}
	s := scanner{b: raw}
	err := r.read(&s)
	// Bytes beyond ASCII can only be in strings, which were looked at, or where nothing may be.
	if (err != nil || s.beyond) && !utf8.Valid(raw) {
		return fmt.Errorf("%w: it is not UTF-8", ErrBad)
	}
	return err
}

func (r *Request) read(s *scanner) error {
	start := s.blank(0)
	if s.at(start) != '{' {
		return fmt.Errorf("%w: it is not a JSON object", ErrBad)
	}
	r.open = start + 1
	seen := names{}
	end, err := s.object(start, func(name []byte, at int) (int, error) {
		if !seen.add(name) {
			return at, fmt.Errorf("%w: the field %q is there twice", ErrBad, name)
		}
		return r.field(s, name, at)
	})
	if err != nil {
		return err
	}
	if rest := s.blank(end); rest < len(s.b) {
		return s.bad(rest, "something after the end of the object")
	}
	if r.Model == "" {
		return fmt.Errorf("%w: you must provide a model parameter", ErrBad)
	}
	return nil
}

// field reads one field at the top. Names are taken letter by letter, as engines take them: with "Stream" read as
// "stream", a body could be one thing to the gateway and another to the engine, and its tokens would not be counted.
func (r *Request) field(s *scanner, name []byte, at int) (end int, err error) {
	s.text, s.numbers = 0, 0
	switch string(name) {
	case "model":
		r.Model, end, err = s.text1(at, "model")
		r.modelAt = Span{at, end}
	case "stream":
		r.Stream, end, err = s.flag(at, "stream")
	case "stream_options":
		end, err = r.options(s, at)
	case "max_tokens", "max_completion_tokens", "max_output_tokens":
		end, err = s.value(at)
		if n, bad := strconv.ParseInt(string(s.b[at:end]), 10, 64); err == nil && bad == nil && (r.MaxTokens == nil || n > r.max) {
			r.max = n
			r.MaxTokens = &r.max
		}
	case "n", "best_of":
		end, err = s.value(at)
		if n, bad := strconv.ParseInt(string(s.b[at:end]), 10, 64); err == nil && bad == nil {
			r.Choices = max(r.Choices, n)
		}
	default:
		end, err = s.value(at)
	}
	if prompts[string(name)] {
		r.PromptTokens += (s.text+3)/4 + s.numbers
	}
	return end, err
}

// Longest is how many tokens all answers together may have, 0 or more; nil when that is not said.
func (r *Request) Longest() *int64 {
	if r.MaxTokens == nil {
		return nil
	}
	const most = 1 << 30
	r.longest = min(max(0, r.max), most) * min(max(1, r.Choices), most)
	return &r.longest
}

// options reads stream_options.
func (r *Request) options(s *scanner, at int) (end int, err error) {
	if s.at(at) == 'n' {
		end, err = s.value(at)
		r.optionsAt = Span{at, end}
		return end, err
	}
	if s.at(at) != '{' {
		return at, fmt.Errorf("%w: stream_options must be an object", ErrBad)
	}
	seen := names{}
	end, err = s.object(at, func(name []byte, at int) (end int, err error) {
		if !seen.add(name) {
			return at, fmt.Errorf("%w: the field stream_options.%s is there twice", ErrBad, name)
		}
		if string(name) != "include_usage" {
			return s.value(at)
		}
		r.WantUsage, end, err = s.flag(at, "stream_options.include_usage")
		r.includeAt = Span{at, end}
		return end, err
	})
	r.optionsAt = Span{at, end}
	return end, err
}

// text1 reads a string that must be one.
func (s *scanner) text1(at int, name string) (string, int, error) {
	if s.at(at) != '"' {
		end, err := s.value(at)
		if err != nil {
			return "", end, err
		}
		return "", end, fmt.Errorf("%w: %s must be a string, not %s", ErrBad, name, kind(s.b[at]))
	}
	end, escaped, err := s.str(at)
	if err != nil {
		return "", end, err
	}
	if escaped {
		return unquote(s.b[at:end]), end, nil
	}
	return string(s.b[at+1 : end-1]), end, nil
}

// flag reads a bool; null is false.
func (s *scanner) flag(at int, name string) (bool, int, error) {
	end, err := s.value(at)
	if err != nil {
		return false, end, err
	}
	switch s.b[at] {
	case 't':
		return true, end, nil
	case 'f', 'n':
		return false, end, nil
	}
	return false, end, fmt.Errorf("%w: %s must be a bool, not %s", ErrBad, name, kind(s.b[at]))
}

func kind(first byte) string {
	switch first {
	case '"':
		return "a string"
	case '{':
		return "an object"
	case '[':
		return "a list"
	case 't', 'f':
		return "a bool"
	case 'n':
		return "null"
	}
	return "a number"
}

// names are the names of an object's fields. Few are compared one by one.
type names struct {
	few  [16][]byte
	n    int      // of them
	more [][]byte // beyond those
	many map[string]bool
}

// add reports whether the name is new.
func (n *names) add(name []byte) bool {
	if n.many != nil {
		if n.many[string(name)] {
			return false
		}
		n.many[string(name)] = true
		return true
	}
	for _, have := range n.few[:n.n] {
		if bytes.Equal(have, name) {
			return false
		}
	}
	for _, have := range n.more {
		if bytes.Equal(have, name) {
			return false
		}
	}
	if n.n < len(n.few) {
		n.few[n.n] = name
		n.n++
		return true
	}
	if n.more = append(n.more, name); len(n.more) > 48 {
		n.many = map[string]bool{}
		for _, have := range append(n.more, n.few[:]...) {
			n.many[string(have)] = true
		}
	}
	return true
}

// Sent is the body as it goes to an engine: the model's name replaced unless it is empty or the one that was asked,
// and usage asked of a stream when askUsage is set. All other bytes are those of the client.
func (r *Request) Sent(model string, askUsage bool) Pieces { return r.sent(nil, model, askUsage) }

// Reader reads what Sent gives, and tells its length. A reader that was given before must not be used any more.
func (r *Request) Reader(model string, askUsage bool) (io.Reader, int64) {
	p := r.sent(r.room[:0], model, askUsage)
	r.reader = piecesReader{rest: p}
	return &r.reader, int64(p.Len())
}

func (r *Request) sent(to Pieces, model string, askUsage bool) Pieces {
	var edits [2]edit
	n := 0
	if model != "" && model != r.Model {
		edits[n] = edit{r.modelAt, quote(model)}
		n++
	}
	if askUsage && r.Stream && !r.WantUsage {
		edits[n] = r.askUsage()
		n++
	}
	if n == 2 && edits[1].at.Start < edits[0].at.Start {
		edits[0], edits[1] = edits[1], edits[0]
	}
	return apply(to, r.Raw, edits[:n]...)
}

func (r *Request) askUsage() edit {
	const want = `{"include_usage":true}`
	switch {
	case r.includeAt.Found():
		return edit{r.includeAt, []byte("true")}
	case !r.optionsAt.Found():
		return edit{Span{r.open, r.open}, []byte(`"stream_options":` + want + `,`)}
	case r.Raw[r.optionsAt.Start] == 'n', bytes.IndexByte(r.Raw[r.optionsAt.Start:r.optionsAt.End], '"') < 0: // null or empty
		return edit{r.optionsAt, []byte(want)}
	}
	return edit{Span{r.optionsAt.Start + 1, r.optionsAt.Start + 1}, []byte(`"include_usage":true,`)}
}
