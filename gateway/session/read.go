package session

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"sync"

	"github.com/cespare/xxhash/v2"
)

// Scope is what a request's keys hold for, besides what its body says.
type Scope struct {
	Tenant string
	Model  string
	Header string // of X-Session-Id; empty when it was not sent
	// Single says that requests of this kind do not continue one another (embeddings, rerank), so that only keys that
	// the client itself sent tell a session.
	Single bool
}

const (
	// bytesPerToken turns text into tokens for comparing loads. It is near for English; engines report the truth later.
	bytesPerToken = 4
	// mediaTokens stands for a picture or a sound, whose bytes say little about its tokens.
	mediaTokens = 1000

	longBlock  = 2048 // bytes after which a block ends inside a message
	shortBlock = 512  // bytes below which the end of a message ends no block, so that short messages do not fill an index
	maxBlocks  = 1024 // of one chain; the rest of a longer prompt counts as new
)

// Read finds out what choosing a backend needs to know of an OpenAI or Anthropic request body. It decodes and keeps
// nothing of it. Of repeated fields the last counts, as it does for engines; fields of a wrong type count as missing.
func Read(body []byte, in Scope) Prompt {
	room := rooms.Get().(*[16]message) //nolint:forcetypeassert // nothing else is put there
	defer func() {
		clear(room[:])
		rooms.Put(room)
	}()
	f := scan(body, room[:0])
	p := Prompt{}
	p.Keys[LevelHeader] = in.key(LevelHeader, in.Header)
	p.Keys[LevelCacheKey] = in.key(LevelCacheKey, inside(f.cacheKey))
	p.Keys[LevelUser] = in.key(LevelUser, inside(f.user))

	c, opening := chain{}, opening{}
	c.hash.Reset()
	opening.hash.Reset()
	c.raw(f.tools)
	same := f.tools == nil // both hashes are of the same bytes so far
	message := func(role string, content []byte) {
		c.message(role, content)
		switch {
		case !opening.wants(role):
			same = false
		case same && len(c.blocks) < maxBlocks:
			opening.hash = c.hash
			opening.step(role)
		default:
			same = false
			opening.message(role, content)
		}
	}
	for _, text := range [...][]byte{f.system, f.instructions} {
		if text != nil {
			message("system", text)
		}
	}
	for _, m := range f.messages {
		role := inside(m.role)
		message(role, m.content)
		c.raw(m.calls)
		opening.calls(role, m.calls)
		same = same && m.calls == nil
	}
	if f.prompt != nil {
		c.message("", f.prompt) // one text without roles, in which no turn can be told from another
	}
	p.Chain, p.Tokens = c.end()
	if !in.Single {
		p.Keys[LevelAnswered] = in.hashed(LevelAnswered, opening.answered)
		p.Keys[LevelOpening] = in.hashed(LevelOpening, opening.asked)
	}
	return p
}

// rooms are for the messages of a body, of which most have few.
var rooms = sync.Pool{New: func() any { return new([16]message) }}

// fields are the texts of a body's members that matter here, nil where there is none.
type fields struct {
	cacheKey, user, tools, system, instructions, prompt []byte
	messages                                            []message
}

type message struct{ role, content, calls []byte }

func scan(body []byte, room []message) fields {
	f := fields{messages: room}
	s := scanner{text: body}
	s.members(func(name string) {
		switch name {
		case "prompt_cache_key":
			f.cacheKey = s.given()
		case "user":
			f.user = s.given()
		case "tools":
			f.tools = s.given()
		case "system":
			f.system = s.given()
		case "instructions":
			f.instructions = s.given()
		case "prompt":
			f.prompt = s.given()
		case "messages", "input":
			f.messages = s.messages(f.messages[:0])
		}
	})
	return f
}

// given is a value, nil for null.
func (s *scanner) given() []byte {
	if v := s.value(); string(v) != "null" {
		return v
	}
	return nil
}

var asUser = []byte(`"user"`)

// messages reads a list of messages, or an input that is one text or a list of texts, which the user said. Items
// without a role (a call, a call's output) are taken whole.
func (s *scanner) messages(list []message) []message {
	if s.peek() != '[' || !holdsTexts(s.text[s.at:]) {
		if c := s.peek(); c == '"' || c == '[' {
			list = append(list, message{role: asUser, content: s.value()})
		}
		return list
	}
	s.elements(func() {
		start := s.at
		m := message{}
		s.members(func(name string) {
			switch name {
			case "role":
				m.role = s.value()
			case "content":
				m.content = s.given()
			case "tool_calls":
				m.calls = s.given()
			}
		})
		switch {
		case s.at == start:
			m = message{role: asUser, content: s.value()}
		case m.role == nil:
			m.content = s.text[start:s.at]
		}
		list = append(list, m)
	})
	return list
}

// holdsTexts reports whether a list holds messages, parts or texts, and not the tokens of one text.
func holdsTexts(list []byte) bool {
	first := (&scanner{text: list, at: 1}).peek()
	return first == '{' || first == '"'
}

// parts calls f with each text of a content and with everything in it that is no text. A string and a list that
// holds one text part say the same; cache_control does not count, since clients move it from turn to turn.
func parts(content []byte, f func(part []byte, media bool)) {
	if len(content) == 0 {
		return
	}
	switch content[0] {
	case '"':
		f(unquoted(content), false)
	case '[':
		if !holdsTexts(content) {
			f(content, false) // the tokens of a prompt that comes tokenised
			return
		}
		s := scanner{text: content}
		s.elements(func() {
			part := s.value()
			if len(part) > 0 && part[0] == '{' {
				object(part, f)
				return
			}
			f(unquoted(part), false)
		})
	default:
		f(content, false)
	}
}

// object is one part of a content.
func object(part []byte, f func(part []byte, media bool)) {
	var text []byte
	media := false
	s := scanner{text: part}
	s.members(func(name string) {
		switch name {
		case "text":
			text = unquoted(s.value())
		case "type":
			kind := s.value()
			media = bytes.Contains(kind, []byte("image")) || bytes.Contains(kind, []byte("audio")) || bytes.Contains(kind, []byte("video"))
		}
	})
	switch {
	case text != nil:
		f(text, false)
	case media:
		f(part, true)
	default:
		s := scanner{text: part}
		s.members(func(name string) {
			if name != "cache_control" {
				f(s.value(), false)
			}
		})
	}
}

// unquoted is a string's text as it was sent: equal texts from one client are written equally.
func unquoted(text []byte) []byte {
	if len(text) < 2 || text[len(text)-1] != '"' {
		return text
	}
	return text[1 : len(text)-1]
}

// opening hashes how a conversation began.
type opening struct {
	hash     xxhash.Digest
	state    int    // 0 before the first user message, 1 before the first answer, 2 after it
	asked    uint64 // system and first user message; 0 when there is none
	answered uint64 // and the first answer
}

// wants reports whether a message of the role belongs to the beginning.
func (o *opening) wants(role string) bool {
	return o.state == 0 && (role == "system" || role == "developer" || role == "user") || o.state == 1 && role == "assistant"
}

// message adds one that belongs to the beginning.
func (o *opening) message(role string, content []byte) {
	o.hash.WriteString(mark(role))                                   //nolint:errcheck // a hash takes everything
	parts(content, func(part []byte, _ bool) { o.hash.Write(part) }) //nolint:errcheck // a hash takes everything
	o.step(role)
}

// step takes notice of a message that was added.
func (o *opening) step(role string) {
	switch role {
	case "user":
		o.state, o.asked = 1, o.hash.Sum64()
	case "assistant":
		o.state, o.answered = 2, o.hash.Sum64()
	}
}

// calls adds the calls of the first answer, which often has nothing else.
func (o *opening) calls(role string, calls []byte) {
	if o.state == 2 && role == "assistant" && calls != nil && o.answered != 0 {
		o.hash.Write(calls) //nolint:errcheck // a hash takes everything
		o.answered, o.state = o.hash.Sum64(), 3
	}
}

// mark begins a message, so that its text cannot pass for the end of the one before.
func mark(role string) string {
	switch role {
	case "user":
		return "\x00u"
	case "assistant":
		return "\x00a"
	case "system", "developer":
		return "\x00s"
	}
	return "\x00t"
}

// chain hashes a prompt from its beginning and ends blocks at the ends of messages and inside long ones.
type chain struct {
	hash   xxhash.Digest
	blocks []Block
	bytes  int // of text, so far
	since  int // bytes since the last block ended
	tokens int // of media, so far
}

func (c *chain) message(role string, content []byte) {
	c.hash.WriteString(mark(role)) //nolint:errcheck // a hash takes everything
	parts(content, func(part []byte, media bool) {
		if media {
			c.tokens += mediaTokens
			c.hash.Write(part) //nolint:errcheck // a hash takes everything
			c.since += shortBlock
			return
		}
		c.write(part)
	})
	c.endMessage()
}

func (c *chain) raw(text []byte) {
	if text != nil {
		c.write(text)
		c.endMessage()
	}
}

func (c *chain) write(text []byte) {
	for len(text) > 0 {
		if len(c.blocks) == maxBlocks {
			c.bytes += len(text)
			return
		}
		n := min(len(text), longBlock-min(c.since, longBlock-1))
		c.hash.Write(text[:n]) //nolint:errcheck // a hash takes everything
		c.bytes, c.since, text = c.bytes+n, c.since+n, text[n:]
		if c.since >= longBlock {
			c.endBlock()
		}
	}
}

func (c *chain) endMessage() {
	if c.since >= shortBlock {
		c.endBlock()
	}
}

func (c *chain) endBlock() {
	if len(c.blocks) < maxBlocks {
		c.blocks = append(c.blocks, Block{Hash: c.hash.Sum64(), Tokens: c.bytes/bytesPerToken + c.tokens})
	}
	c.since = 0
}

func (c *chain) end() ([]Block, int) { return c.blocks, c.bytes/bytesPerToken + c.tokens }

// key is the key of a text that the client sent to name its session.
func (in Scope) key(level int, text string) Key {
	if text == "" {
		return 0
	}
	var room [256]byte
	return first(sha256.Sum256(append(in.head(room[:0], level), text...)))
}

// hashed is the key of a hash. The outer hash is a strong one, so that nobody can make a request whose key is that of
// another tenant's session.
func (in Scope) hashed(level int, sum uint64) Key {
	if sum == 0 {
		return 0
	}
	var room [256]byte
	return first(sha256.Sum256(binary.BigEndian.AppendUint64(in.head(room[:0], level), sum)))
}

// head is what every key begins with, so that none is that of another tenant, model or level.
func (in Scope) head(to []byte, level int) []byte {
	to = append(to, byte(level))
	for _, s := range [...]string{in.Tenant, in.Model} {
		to = binary.BigEndian.AppendUint32(to, uint32(len(s)))
		to = append(to, s...)
	}
	return to
}

func first(sum [sha256.Size]byte) Key { return Key(max(1, binary.BigEndian.Uint64(sum[:]))) }
