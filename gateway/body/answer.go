package body

import (
	"bytes"
	"strconv"
)

// Usage is what an engine says it used; nil where it said nothing.
type Usage struct {
	PromptTokens     *int64 // all of the prompt, what came from a cache included
	CachedTokens     *int64 // of the prompt
	CompletionTokens *int64
}

// Merge takes what the other one says. The last word holds: engines that tell usage more than once tell sums.
func (u *Usage) Merge(later Usage) {
	for _, pair := range [][2]**int64{
		{&u.PromptTokens, &later.PromptTokens}, {&u.CachedTokens, &later.CachedTokens}, {&u.CompletionTokens, &later.CompletionTokens},
	} {
		if *pair[1] != nil {
			*pair[0] = *pair[1]
		}
	}
}

// Known reports whether an engine said anything.
func (u Usage) Known() bool {
	return u.PromptTokens != nil || u.CachedTokens != nil || u.CompletionTokens != nil
}

// Answer reads an answer, or one event of a stream, as it comes in pieces: its usage, what kind of event it is, and
// whether it tells of an error. It looks at the fields at the top and, where the protocols wrap an answer, at those of
// "response" and "message". What is not JSON passes and says nothing. The zero value is ready.
type Answer struct {
	// Model takes the place of the model's name where that is another one; empty leaves it. It is set once.
	Model string

	Usage     Usage
	HasUsage  bool   // this answer, or this event, told some
	UsageOnly bool   // and "choices" is there and empty
	Failed    bool   // "error" is there and not null
	Type      string // of the field "type" at the top
	Renamed   bool   // the model's name is another one than Model

	mode    mode
	scope   int    // 1 at the top, 2 inside of a wrapped answer
	pending []byte // the beginning of a field that is not whole yet
	depth   int    // of what is walked over, from the field's value on
	inText  bool   // and whether the walk is inside of a string
	escape  bool   // whose next byte follows a backslash
	empty   bool   // choices
	quoted  []byte // Model as it is written
}

type mode int

const (
	atStart mode = iota
	atField      // between two fields of an object that is looked at
	walking      // over a value that is not looked at
	over         // at the end, or not JSON
)

// maxField is the longest field that is kept to be read as a whole; a usage has a few hundred bytes.
const maxField = 64 << 10

// Reset makes ready for another answer of the same exchange: the usage told so far stays.
func (a *Answer) Reset() {
	*a = Answer{Model: a.Model, Usage: a.Usage, pending: a.pending[:0], quoted: a.quoted}
}

// See reads the next piece. It keeps nothing of it.
func (a *Answer) See(piece []byte) { a.read(nil, piece, false) }

// Feed reads the next piece and appends to out what goes on to the client: all as it is, but for the model's name.
// The beginning of a field may be held back until more of it has come; Rest gives it.
func (a *Answer) Feed(out, piece []byte) []byte { return a.read(out, piece, true) }

// Rest appends what was held back when no further piece comes.
func (a *Answer) Rest(out []byte) []byte {
	out = append(out, a.pending...)
	a.pending = a.pending[:0]
	return out
}

func (a *Answer) read(out, piece []byte, pass bool) []byte {
	b := piece
	if len(a.pending) > 0 {
		a.pending = append(a.pending, piece...)
		b = a.pending
	}
	w := walk{a: a, s: scanner{b: b}, out: out, pass: pass}
	done := w.run()
	w.give(done)
	a.pending = append(a.pending[:0], b[done:]...)
	return w.out
}

// walk is one step of reading an answer.
type walk struct {
	a    *Answer
	s    scanner
	out  []byte
	from int // what is before it was passed on
	pass bool
}

// give passes on what is before the place and was not passed on yet.
func (w *walk) give(to int) {
	if w.pass {
		w.out = append(w.out, w.s.b[w.from:to]...)
	}
	w.from = to
}

// run reads as far as it can and gives the place up to which nothing has to be read again.
func (w *walk) run() int {
	i, n := 0, len(w.s.b)
	for i < n {
		switch w.a.mode {
		case atStart:
			if i = w.s.blank(i); i == n {
				return n
			}
			w.a.mode, w.a.scope = atField, 1
			if w.s.b[i] != '{' {
				w.a.mode = over
			}
			i++
		case atField:
			next, whole := w.field(i)
			if !whole && n-i <= maxField {
				return i
			}
			if !whole {
				w.a.mode = over
				return n
			}
			i = next
		case walking:
			i = w.skip(i)
		case over:
			return n
		}
	}
	return n
}

// field reads what stands at i between fields, or a field. Whole is false when more bytes are needed.
func (w *walk) field(i int) (next int, whole bool) {
	s, a := &w.s, w.a
	if i = s.blank(i); i == len(s.b) {
		return i, true
	}
	switch s.b[i] {
	case ',':
		return i + 1, true
	case '}':
		if a.scope--; a.scope == 0 {
			a.mode = over
		}
		return i + 1, true
	case '"':
	default:
		a.mode = over
		return i, true
	}
	name, _, at, err := s.key(i)
	if at >= len(s.b) {
		return i, false
	}
	if err != nil {
		a.mode = over
		return i, true
	}
	key, first := string(s.b[name.Start:name.End]), s.b[at]
	switch {
	case a.scope == 1 && first == '{' && (key == "response" || key == "message"):
		a.scope = 2
		return at + 1, true
	case key == "model" && first == '"', key == "usage" && first == '{', key == "error", key == "type" && first == '"' && a.scope == 1:
		end, err := s.value(at)
		if end >= len(s.b) { // also the end of a number is only seen by what follows it
			if len(s.b)-i <= maxField {
				return i, false
			}
			break
		}
		if err != nil {
			a.mode = over
			return i, true
		}
		w.known(key, at, end)
		return end, true
	case key == "choices" && first == '[' && a.scope == 1:
		inside := s.blank(at + 1)
		if inside == len(s.b) {
			return i, false
		}
		a.empty = s.b[inside] == ']'
		a.UsageOnly = a.HasUsage && a.empty
	}
	a.mode, a.depth, a.inText, a.escape = walking, 0, false, false
	return at, true
}

// known takes a field that is looked at.
func (w *walk) known(key string, at, end int) {
	a, raw := w.a, w.s.b[at:end]
	switch key {
	case "model":
		if a.Model == "" || string(raw[1:len(raw)-1]) == a.Model {
			return
		}
		if len(a.quoted) == 0 {
			a.quoted = quote(a.Model)
		}
		if bytes.Equal(a.quoted, raw) {
			return
		}
		a.Renamed = true
		if w.pass {
			w.give(at)
			w.out = append(w.out, a.quoted...)
			w.from = end
		}
	case "usage":
		a.HasUsage, a.UsageOnly = true, a.empty
		a.Usage.Merge(readUsage(raw))
	case "error":
		a.Failed = string(raw) != "null"
	case "type":
		a.Type = string(raw[1 : len(raw)-1])
	}
}

// skip walks over a value until its end, or until the bytes end.
func (w *walk) skip(i int) int {
	a, b := w.a, w.s.b
	for i < len(b) {
		switch {
		case a.escape:
			a.escape = false
			i++
		case a.inText:
			if i, _ = plain(b, i); i == len(b) {
				return i
			}
			a.escape = b[i] == '\\'
			if b[i] == '"' {
				a.inText = false
				if a.depth == 0 {
					a.mode = atField
					return i + 1
				}
			}
			i++
		default:
			switch b[i] {
			case '"':
				a.inText = true
			case '{', '[':
				a.depth++
			case '}', ']':
				if a.depth == 0 { // of the object around; a number or a word ended
					a.mode = atField
					return i
				}
				if a.depth--; a.depth == 0 {
					a.mode = atField
					return i + 1
				}
			case ',':
				if a.depth == 0 {
					a.mode = atField
					return i
				}
			}
			i++
		}
	}
	return i
}

// readUsage reads a usage as any of the protocols writes it. OpenAI counts what came from a cache among the prompt's
// tokens, Anthropic beside them. Sources: OpenAI's API reference, chat completions and responses; Anthropic's, messages;
// DeepSeek's for prompt_cache_hit_tokens.
func readUsage(raw []byte) Usage {
	s := scanner{b: raw}
	n := counts{}
	if _, err := s.object(0, func(name []byte, at int) (int, error) { return n.field(&s, name, at) }); err != nil {
		return Usage{}
	}
	return n.usage()
}

// counts are the numbers of a usage.
type counts struct{ prompt, completion, total, cached, read, written count }

// count is a number that may not be there.
type count struct {
	n  int64
	is bool
}

func (n *counts) field(s *scanner, name []byte, at int) (end int, err error) {
	to := n.of(name)
	if to == nil && s.at(at) == '{' && (string(name) == "prompt_tokens_details" || string(name) == "input_tokens_details") {
		return s.object(at, func(name []byte, at int) (int, error) {
			if string(name) == "cached_tokens" {
				return n.cached.read(s, at)
			}
			return s.value(at)
		})
	}
	if to == nil {
		return s.value(at)
	}
	return to.read(s, at)
}

// of gives the number that a field tells, nil when it tells none.
func (n *counts) of(name []byte) *count {
	switch string(name) {
	case "prompt_tokens", "input_tokens":
		return &n.prompt
	case "completion_tokens", "output_tokens":
		return &n.completion
	case "total_tokens":
		return &n.total
	case "prompt_cache_hit_tokens":
		return &n.cached
	case "cache_read_input_tokens":
		return &n.read
	case "cache_creation_input_tokens":
		return &n.written
	}
	return nil
}

func (c *count) read(s *scanner, at int) (end int, err error) {
	end, err = s.value(at)
	if n, bad := strconv.ParseInt(string(s.b[at:end]), 10, 64); bad == nil && n >= 0 {
		*c = count{n, true}
	}
	return end, err
}

func (n *counts) usage() Usage {
	if !n.prompt.is && !n.completion.is && n.total.is { // rerankers tell nothing else, and give out no tokens
		n.prompt = n.total
	}
	if n.prompt.is {
		n.prompt.n += n.read.n + n.written.n
	}
	if !n.cached.is {
		n.cached = n.read
	}
	told := &[3]int64{n.prompt.n, n.cached.n, n.completion.n}
	u := Usage{}
	for i, of := range []struct {
		to   **int64
		from count
	}{{&u.PromptTokens, n.prompt}, {&u.CachedTokens, n.cached}, {&u.CompletionTokens, n.completion}} {
		if of.from.is {
			*of.to = &told[i]
		}
	}
	return u
}

// Words is the number of bytes of text that an answer gives out: what an estimate of its tokens goes by.
func Words(answer []byte) int {
	s := scanner{b: answer}
	sum := 0
	var visit func(name []byte, at int) (int, error)
	visit = func(name []byte, at int) (int, error) {
		switch s.at(at) {
		case '{':
			return s.object(at, visit)
		case '[':
			return s.list(at, func(at int) (int, error) { return visit(name, at) })
		}
		s.text = 0
		end, err := s.value(at)
		switch string(name) {
		case "content", "text", "reasoning", "reasoning_content", "arguments", "thinking":
			sum += s.text
		}
		return end, err
	}
	if _, err := s.object(s.blank(0), visit); err != nil {
		return 0
	}
	return sum
}
