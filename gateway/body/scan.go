// Package body reads what routing and metering need out of request and answer bodies in one pass, without decoding
// them, and changes single values where they stand. Who is sent what, and what tokens cost, do not belong here.
package body

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
)

// ErrBad wraps everything wrong with a body; its text may be shown to the client.
var ErrBad = errors.New("bad body")

// MaxDepth is how deep lists and objects may stand in each other. Engines' own readers stop at about 1,000.
const MaxDepth = 256

// Span is a range of bytes, End exclusive. The zero value is a field that is not there.
type Span struct{ Start, End int }

// Found reports whether there is such a field.
func (s Span) Found() bool { return s.End > 0 }

// scanner walks over JSON. Its methods take the place where to begin and give the place after what they read.
type scanner struct {
	b     []byte
	stack [MaxDepth]byte // '{' or '[' of what is open
	depth int

	text    int  // bytes of texts, as far as they look like words
	numbers int  // numbers that stand for themselves
	beyond  bool // some string has bytes beyond ASCII
}

func (s *scanner) bad(at int, what string) error {
	if at >= len(s.b) {
		return fmt.Errorf("%w: it is not valid JSON: it ends in the middle (after %d bytes)", ErrBad, len(s.b))
	}
	return fmt.Errorf("%w: it is not valid JSON: %s at byte %d", ErrBad, what, at)
}

func (s *scanner) blank(i int) int {
	for i < len(s.b) && (s.b[i] == ' ' || s.b[i] == '\n' || s.b[i] == '\r' || s.b[i] == '\t') {
		i++
	}
	return i
}

func (s *scanner) at(i int) byte {
	if i < len(s.b) {
		return s.b[i]
	}
	return 0
}

const (
	ones = 0x0101010101010101
	high = 0x8080808080808080
)

// marked has the high bit of each byte set that means something inside of a string, and other bits that mean nothing. The
// lowest mark is true; those above it may come from a borrow. With one bit turned a quote is the next after the control
// characters, and a blank is not.
func marked(w uint64) uint64 {
	low, slash := w^(ones*('"'^0x20)), w^(ones*'\\')
	return (low-ones*0x21)&^low | (slash-ones)&^slash
}

// plain gives the place of the next byte that means something inside of a string: a quote, a backslash, or a control
// character. Beyond tells whether there are bytes beyond ASCII before it, or soon after it. It looks at 32 bytes at a
// time, then at eight.
func plain(b []byte, i int) (at int, beyond bool) {
	seen := uint64(0)
	for ; i+32 <= len(b); i += 32 {
		s := b[i : i+32 : i+32]
		one, two, three, four := binary.LittleEndian.Uint64(s), binary.LittleEndian.Uint64(s[8:]), binary.LittleEndian.Uint64(s[16:]), binary.LittleEndian.Uint64(s[24:])
		if (marked(one)|marked(two)|marked(three)|marked(four))&high != 0 {
			break
		}
		seen |= one | two | three | four
	}
	for ; i+8 <= len(b); i += 8 {
		w := binary.LittleEndian.Uint64(b[i:])
		seen |= w
		if marks := marked(w) & high; marks != 0 {
			return i + bits.TrailingZeros64(marks)/8, seen&high != 0
		}
	}
	for ; i < len(b); i++ {
		if b[i] == '"' || b[i] == '\\' || b[i] < 0x20 {
			break
		}
		seen |= uint64(b[i])
	}
	return i, seen&high != 0
}

// plain is that of its text.
func (s *scanner) plain(i int) int {
	at, beyond := plain(s.b, i)
	s.beyond = s.beyond || beyond
	return at
}

// str reads a string whose opening quote is at i.
func (s *scanner) str(i int) (end int, escaped bool, err error) {
	for i = s.plain(i + 1); ; i = s.plain(i) {
		switch {
		case i >= len(s.b):
			return i, escaped, s.bad(i, "")
		case s.b[i] == '"':
			return i + 1, escaped, nil
		case s.b[i] != '\\':
			return i, escaped, s.bad(i, "a control character inside of a string")
		}
		escaped = true
		switch s.at(i + 1) {
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			i += 2
		case 'u':
			for n := i + 2; n < i+6; n++ {
				if c := s.at(n); (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'f') {
					return n, escaped, s.bad(n, "a bad escape")
				}
			}
			i += 6
		default:
			return i + 1, escaped, s.bad(i+1, "a bad escape")
		}
	}
}

func (s *scanner) digits(i int) (int, error) {
	if c := s.at(i); c < '0' || c > '9' {
		return i, s.bad(i, "a bad number")
	}
	for c := s.at(i); c >= '0' && c <= '9'; c = s.at(i) {
		i++
	}
	return i, nil
}

func (s *scanner) number(i int) (end int, err error) {
	if s.b[i] == '-' {
		i++
	}
	if s.at(i) == '0' {
		i++
	} else if i, err = s.digits(i); err != nil {
		return i, err
	}
	if s.at(i) == '.' {
		if i, err = s.digits(i + 1); err != nil {
			return i, err
		}
	}
	if s.at(i)|0x20 == 'e' {
		i++
		if c := s.at(i); c == '+' || c == '-' {
			i++
		}
		return s.digits(i)
	}
	return i, nil
}

func (s *scanner) word(i int, word string) (int, error) {
	if rest := s.b[i:]; len(rest) < len(word) && word[:len(rest)] == string(rest) {
		return len(s.b), s.bad(len(s.b), "")
	}
	if !bytes.HasPrefix(s.b[i:], []byte(word)) {
		return i, s.bad(i, "an unknown word")
	}
	return i + len(word), nil
}

func (s *scanner) push(i int, kind byte) error {
	if s.depth == MaxDepth {
		return fmt.Errorf("%w: its lists and objects stand more than %d deep in each other", ErrBad, MaxDepth)
	}
	s.stack[s.depth] = kind
	s.depth++
	return nil
}

// key reads the name of a field and the colon after it.
func (s *scanner) key(i int) (name Span, escaped bool, value int, err error) {
	if s.at(i) != '"' {
		return Span{}, false, i, s.bad(i, "the name of a field is missing")
	}
	end, escaped, err := s.str(i)
	if err != nil {
		return Span{}, escaped, end, err
	}
	colon := s.blank(end)
	if s.at(colon) != ':' {
		return Span{}, escaped, colon, s.bad(colon, "a colon is missing")
	}
	return Span{i + 1, end - 1}, escaped, s.blank(colon + 1), nil
}

// value walks over one value of any kind.
func (s *scanner) value(i int) (end int, err error) {
	base := s.depth
	for {
		switch c := s.at(i); {
		case c == '{' || c == '[':
			if err := s.push(i, c); err != nil {
				return i, err
			}
			i = s.blank(i + 1)
			if s.at(i) == c+2 { // both closing brackets stand two after their opening ones
				break // it is empty
			}
			if c == '{' {
				if _, _, i, err = s.key(i); err != nil {
					return i, err
				}
			}
			continue
		case c == '"':
			from := i
			if i, _, err = s.str(i); err != nil {
				return i, err
			}
			if words(s.b[from+1 : i-1]) {
				s.text += i - from - 2
			}
		case c == '-' || c >= '0' && c <= '9':
			if i, err = s.number(i); err != nil {
				return i, err
			}
			s.numbers++
		case c == 't':
			i, err = s.word(i, "true")
		case c == 'f':
			i, err = s.word(i, "false")
		case c == 'n':
			i, err = s.word(i, "null")
		default:
			return i, s.bad(i, "a value is missing")
		}
		if err != nil {
			return i, err
		}
		for { // close what ends here
			if s.depth == base {
				return i, nil
			}
			i = s.blank(i)
			open := s.stack[s.depth-1]
			if s.at(i) == open+2 {
				s.depth--
				i++
				continue
			}
			if s.at(i) != ',' {
				return i, s.bad(i, "a comma or a closing bracket is missing")
			}
			i = s.blank(i + 1)
			if open == '{' {
				if _, _, i, err = s.key(i); err != nil {
					return i, err
				}
			}
			break
		}
	}
}

// object calls visit for each field of the object at i. Visit reads the value at the given place and gives the place
// after it. A name is as it is written unless it has escapes, which are read.
func (s *scanner) object(i int, visit func(name []byte, at int) (int, error)) (end int, err error) {
	if s.at(i) != '{' {
		return i, s.bad(i, "an object is missing")
	}
	if err := s.push(i, '{'); err != nil {
		return i, err
	}
	i = s.blank(i + 1)
	for first := true; s.at(i) != '}'; first = false {
		if !first {
			if s.at(i) != ',' {
				return i, s.bad(i, "a comma or a closing bracket is missing")
			}
			i = s.blank(i + 1)
		}
		at, escaped, value, err := s.key(i)
		if err != nil {
			return value, err
		}
		name := s.b[at.Start:at.End]
		if escaped {
			name = []byte(unquote(s.b[at.Start-1 : at.End+1]))
		}
		if i, err = visit(name, value); err != nil {
			return i, err
		}
		i = s.blank(i)
	}
	s.depth--
	return i + 1, nil
}

// list calls visit for each value of the list at i, as object does.
func (s *scanner) list(i int, visit func(at int) (int, error)) (end int, err error) {
	if err := s.push(i, '['); err != nil {
		return i, err
	}
	i = s.blank(i + 1)
	for first := true; s.at(i) != ']'; first = false {
		if !first {
			if s.at(i) != ',' {
				return i, s.bad(i, "a comma or a closing bracket is missing")
			}
			i = s.blank(i + 1)
		}
		if i, err = visit(i); err != nil {
			return i, err
		}
		i = s.blank(i)
	}
	s.depth--
	return i + 1, nil
}

// unquote reads a valid JSON string with its quotes.
func unquote(raw []byte) string {
	var text string
	if json.Unmarshal(raw, &text) != nil {
		return string(raw)
	}
	return text
}

// words reports whether a text is one for a model to read, and not a file packed in letters.
func words(text []byte) bool {
	if bytes.HasPrefix(text, []byte("data:")) {
		return false
	}
	if len(text) < 4096 {
		return true
	}
	for _, c := range text[:256] {
		if (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && c != '+' && c != '/' && c != '=' && c != '-' && c != '_' {
			return true
		}
	}
	return false
}
