package session

import (
	"bytes"
	"encoding/json"
	"unsafe"
)

// scanner walks over JSON text without decoding it. It never recurses, so depth costs nothing, and takes broken text
// for as much as it can read of it: to refuse a body is for others.
type scanner struct {
	text []byte
	at   int
}

// peek skips white space and returns the byte after it, 0 at the end.
func (s *scanner) peek() byte {
	for s.at < len(s.text) {
		switch c := s.text[s.at]; c {
		case ' ', '\t', '\n', '\r':
			s.at++
		default:
			return c
		}
	}
	return 0
}

// value skips one value and returns its text, nil where there is none.
func (s *scanner) value() []byte {
	first := s.peek()
	start := s.at
	switch first {
	case 0, ',', ':', ']', '}':
		return nil
	case '"':
		s.skipString()
	case '{', '[':
		s.skipContainer()
	default:
		for s.at < len(s.text) && !ends(s.text[s.at]) {
			s.at++
		}
	}
	return s.text[start:s.at]
}

// ends reports whether a byte ends a number or a name.
func ends(c byte) bool {
	switch c {
	case ' ', '\t', '\n', '\r', ',', ':', ']', '}', '[', '{', '"':
		return true
	}
	return false
}

// skipString goes from the opening quote to behind the closing one, or to the end.
func (s *scanner) skipString() {
	for i := s.at + 1; ; {
		quote := bytes.IndexByte(s.text[i:], '"')
		if quote < 0 {
			s.at = len(s.text)
			return
		}
		i += quote
		escapes := 0
		for s.text[i-1-escapes] == '\\' { // ends at the opening quote at the latest
			escapes++
		}
		i++
		if escapes%2 == 0 {
			s.at = i
			return
		}
	}
}

func (s *scanner) skipContainer() {
	depth := 0
	for s.at < len(s.text) {
		switch s.text[s.at] {
		case '"':
			s.skipString()
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		s.at++
		if depth == 0 {
			return
		}
	}
}

// members walks over an object and calls f before each value. f may read the value from the scanner; one that it
// leaves is skipped. A value that is no object is left.
func (s *scanner) members(f func(name string)) {
	if s.peek() != '{' {
		return
	}
	s.at++
	for s.peek() == '"' {
		name := s.value()
		if s.peek() != ':' {
			return
		}
		s.at++
		if !s.each(func() { f(inside(name)) }) {
			return
		}
	}
	s.close('}')
}

// elements does for an array what members does for an object.
func (s *scanner) elements(f func()) {
	if s.peek() != '[' {
		return
	}
	s.at++
	for c := s.peek(); c != ']' && c != 0; c = s.peek() {
		if !s.each(f) {
			return
		}
	}
	s.close(']')
}

// each has one value read, and the comma after it. It is false where the text is broken.
func (s *scanner) each(f func()) bool {
	s.peek()
	start := s.at
	f()
	if s.at == start && s.value() == nil {
		return false
	}
	if s.peek() == ',' {
		s.at++
	}
	return true
}

func (s *scanner) close(c byte) {
	if s.peek() == c {
		s.at++
	}
}

// inside is what a string's text says, "" for text that is no string. It lies in the body where nothing is escaped.
func inside(text []byte) string {
	if len(text) < 2 || text[0] != '"' || text[len(text)-1] != '"' {
		return ""
	}
	raw := text[1 : len(text)-1]
	if bytes.IndexByte(raw, '\\') < 0 {
		return unsafe.String(unsafe.SliceData(raw), len(raw))
	}
	var s string
	if json.Unmarshal(text, &s) != nil {
		return ""
	}
	return s
}
