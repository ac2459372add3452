package httpx

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
)

// pointerAt is the JSON pointer of the value that the decoder had read, or begun to read, at the offset.
func pointerAt(body []byte, offset int64) string {
	found := ""
	walk(body, func(path []string, start int64, _ bool) bool {
		if start >= offset {
			return false
		}
		found = pointer(path)
		return true
	})
	return found
}

// findField is the JSON pointer of the first field with the name that the type does not have. When none is found it
// is where such a field would be at the top.
func findField(body []byte, t reflect.Type, field string) string {
	found := pointer([]string{field})
	walk(body, func(path []string, _ int64, key bool) bool {
		if key && path[len(path)-1] == field && !hasField(t, path) {
			found = pointer(path)
			return false
		}
		return true
	})
	return found
}

// hasField reports whether decoding into t reaches the path.
func hasField(t reflect.Type, path []string) bool {
	for _, step := range path {
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		switch t.Kind() {
		case reflect.Map, reflect.Slice, reflect.Array:
			t = t.Elem()
		case reflect.Struct:
			field, ok := fieldOf(t, step)
			if !ok {
				return false
			}
			t = field
		default:
			return true // any value, or a type that reads itself
		}
	}
	return true
}

// fieldOf is the type of the struct's field with the JSON name; like the decoder it does not mind upper case.
func fieldOf(t reflect.Type, name string) (reflect.Type, bool) {
	for _, f := range reflect.VisibleFields(t) {
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == "" {
			tag = f.Name
		}
		if f.IsExported() && tag != "-" && strings.EqualFold(tag, name) {
			return f.Type, true
		}
	}
	return nil, false
}

// walk visits each value of a JSON text in the order of its start: with its path, where it starts, and whether it is
// the value of an object's field. It stops when visit says so or the text is broken.
func walk(body []byte, visit func(path []string, start int64, field bool) bool) {
	w := walker{d: json.NewDecoder(bytes.NewReader(body)), body: body, visit: visit}
	w.d.UseNumber()
	w.value(nil, false)
}

type walker struct {
	d     *json.Decoder
	body  []byte
	visit func(path []string, start int64, field bool) bool
}

// value reports whether to go on.
func (w walker) value(path []string, field bool) bool {
	start := w.nextStart()
	token, err := w.d.Token()
	if err != nil || !w.visit(path, start, field) {
		return false
	}
	switch token {
	case json.Delim('['):
		for i := 0; w.d.More(); i++ {
			if !w.value(append(path, strconv.Itoa(i)), false) {
				return false
			}
		}
	case json.Delim('{'):
		for w.d.More() {
			key, err := w.d.Token()
			if err != nil || !w.value(append(path, key.(string)), true) {
				return false
			}
		}
	default:
		return true
	}
	_, err = w.d.Token() // the closing bracket
	return err == nil
}

// nextStart skips what may stand between the last token and the next value.
func (w walker) nextStart() int64 {
	at := w.d.InputOffset()
	for at < int64(len(w.body)) && strings.IndexByte(" \t\r\n,:", w.body[at]) >= 0 {
		at++
	}
	return at
}

// pointer writes a path as RFC 6901 says.
func pointer(path []string) string {
	escape := strings.NewReplacer("~", "~0", "/", "~1")
	var b strings.Builder
	for _, step := range path {
		b.WriteByte('/')
		b.WriteString(escape.Replace(step))
	}
	return b.String()
}
