package toolout

import (
	"cmp"
	"encoding/json"
	"iter"
	"strings"
	"unicode/utf8"
)

// A Value is one JSON value as it stands in a text, which is known to be well formed. Nothing of it is decoded before it is
// asked for: decoded, a text takes up many times its length. The empty Value is one that is not there.
type Value string

// maxTries bounds how often JSON is looked for: each try may read to the end.
const maxTries = 4

// JSON finds the first JSON value that starts a line: tools print banners before it and warnings behind it.
func JSON(out string) (Value, bool) {
	if !strings.ContainsAny(out, "{[") {
		return "", false
	}
	for tries := 0; out != "" && tries < maxTries; {
		line, below, _ := strings.Cut(out, "\n")
		if start := strings.TrimLeft(line, " \t\r"); start != "" && (start[0] == '{' || start[0] == '[') {
			tries++
			text := out[len(line)-len(start):]
			if rest, ok := skip(text, 0); ok {
				return Value(text[:len(text)-len(rest)]), true
			}
		}
		out = below
	}
	return "", false
}

// nesting is how deep values may lie in one another. Real ones are six deep.
const nesting = 64

// skip finds what stands behind the value that a text begins with; not ok when it begins with none.
func skip(s string, depth int) (rest string, ok bool) {
	if s == "" || depth > nesting {
		return "", false
	}
	switch s[0] {
	case '{', '[':
		return skipNested(s, depth)
	case '"':
		_, rest, ok = cutString(s)
		return rest, ok
	}
	end := 0
	for end < len(s) && (s[end] >= 'a' && s[end] <= 'z' || digit(s[end]) || strings.IndexByte("+-.E", s[end]) >= 0) {
		end++
	}
	word := s[:end]
	return s[end:], word == "true" || word == "false" || word == "null" || isNumber(word)
}

func isNumber(word string) bool {
	digits := strings.TrimPrefix(word, "-")
	if digits == "" || !digit(digits[0]) || len(digits) > 1 && digits[0] == '0' && digit(digits[1]) {
		return false
	}
	for len(digits) > 0 && digit(digits[0]) {
		digits = digits[1:]
	}
	if fraction, ok := strings.CutPrefix(digits, "."); ok {
		digits = strings.TrimLeft(fraction, "0123456789")
		if digits == fraction {
			return false
		}
	}
	if digits == "" {
		return true
	}
	power := strings.TrimLeft(digits[1:], "+-")
	return (digits[0] == 'e' || digits[0] == 'E') && len(digits)-len(power) <= 2 && power != "" && strings.Trim(power, "0123456789") == ""
}

func skipNested(s string, depth int) (rest string, ok bool) {
	isObject, end := s[0] == '{', s[0]+2 // } and ] stand two behind { and [
	if s = space(s[1:]); s != "" && s[0] == end {
		return s[1:], true
	}
	for {
		if isObject {
			if s, ok = behindKey(s); !ok {
				return "", false
			}
		}
		if s, ok = skip(s, depth+1); !ok {
			return "", false
		}
		if s = space(s); s == "" || s[0] != end && s[0] != ',' {
			return "", false
		}
		if s[0] == end {
			return s[1:], true
		}
		s = space(s[1:])
	}
}

func behindKey(s string) (rest string, ok bool) {
	if _, s, ok = cutString(s); !ok {
		return "", false
	}
	if s, ok = strings.CutPrefix(space(s), ":"); !ok {
		return "", false
	}
	return space(s), true
}

func space(s string) string {
	for s != "" && (s[0] == ' ' || s[0] == '\n' || s[0] == '\t' || s[0] == '\r') {
		s = s[1:]
	}
	return s
}

// cutString parts a text behind the string that it begins with, which keeps its quotes.
func cutString(s string) (quoted, rest string, ok bool) {
	if s == "" || s[0] != '"' {
		return "", "", false
	}
	for i := 1; i < len(s) && s[i] >= ' '; i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return s[:i+1], s[i+1:], true
		}
	}
	return "", "", false
}

// unquote is what a string says; empty where an escape in it is none.
func unquote(quoted string) string {
	if !strings.Contains(quoted, `\`) && utf8.ValidString(quoted) {
		return quoted[1 : len(quoted)-1]
	}
	var s string
	if json.Unmarshal([]byte(quoted), &s) != nil {
		return ""
	}
	return s
}

// IsObject tells whether the value has fields.
func (v Value) IsObject() bool { return v != "" && v[0] == '{' }

// IsList tells whether the value has items.
func (v Value) IsList() bool { return v != "" && v[0] == '[' }

// Items are the values of a list, in their order, up to a number that no real list has; none of any other value.
func (v Value) Items() iter.Seq[Value] {
	return func(yield func(Value) bool) {
		if !v.IsList() {
			return
		}
		s := space(string(v[1:]))
		for n := 0; s[0] != ']' && n < mostListed; n++ {
			rest, _ := skip(s, 0)
			if !yield(Value(s[:len(s)-len(rest)])) {
				return
			}
			s = space(strings.TrimPrefix(space(rest), ","))
		}
	}
}

// Fields are the keys and the values of an object, in their order; none of any other value.
func (v Value) Fields() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		if !v.IsObject() {
			return
		}
		for s := space(string(v[1:])); s[0] != '}'; s = space(strings.TrimPrefix(s, ",")) {
			key, _, _ := cutString(s)
			s, _ = behindKey(s)
			rest, _ := skip(s, 0)
			if !yield(unquote(key), Value(s[:len(s)-len(rest)])) {
				return
			}
			s = space(rest)
		}
	}
}

// Get walks into a value by keys; case and blanks around a key do not matter where none is the very same. It is empty for
// what is not there.
func (v Value) Get(path ...string) Value {
	for _, want := range path {
		if !v.IsObject() {
			return ""
		}
		var same, alike Value
		for key, value := range v.Fields() {
			if key == want {
				same = value
				break
			}
			if alike == "" && strings.EqualFold(strings.TrimSpace(key), want) {
				alike = value
			}
		}
		v = cmp.Or(same, alike)
	}
	return v
}

// Text is what Get finds as text, empty when it says nothing: {"value": 550, "unit": "W"} is "550 W"; lists and other objects
// say nothing.
func (v Value) Text(path ...string) string {
	found := v.Get(path...)
	switch {
	case found == "":
		return ""
	case found[0] == '"':
		return Text(unquote(string(found)))
	case found[0] == '-' || digit(found[0]):
		return string(found)
	case found.IsObject():
		if value := found.Get("value"); value != "" && !value.IsObject() && value.Text() != "" {
			return strings.TrimSpace(value.Text() + " " + found.Text("unit"))
		}
	}
	return ""
}
