package admission

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Decode reads the JSON of a job into a tree. It keeps numbers as they are written.
func Decode(text []byte) (Tree, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var t Tree
	if err := dec.Decode(&t); err != nil {
		return nil, fmt.Errorf("read job: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, fmt.Errorf("read job: text after the end of the object")
	}
	if t == nil {
		return nil, fmt.Errorf("read job: null instead of an object")
	}
	return t, nil
}

// clone copies a tree deeply.
func clone(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, x := range v {
			out[k] = clone(x)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			out[i] = clone(x)
		}
		return out
	}
	return v
}

func cloneTree(t Tree) Tree {
	if t == nil {
		return Tree{}
	}
	return clone(t).(map[string]any)
}

// keyOf finds the key of a field of Nomad's, whose JSON is read without regard to case. The exact name wins.
func keyOf(m map[string]any, name string) (string, bool) {
	if _, ok := m[name]; ok {
		return name, true
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if strings.EqualFold(k, name) {
			return k, true
		}
	}
	return name, false
}

// get is the value of a field of Nomad's, nil when it is absent or null.
func get(m map[string]any, name string) any {
	k, _ := keyOf(m, name)
	return m[k]
}

// set writes a field under the key that it has, or its name.
func set(m map[string]any, name string, value any) {
	k, _ := keyOf(m, name)
	m[k] = value
}

func unset(m map[string]any, name string) {
	k, _ := keyOf(m, name)
	delete(m, k)
}

func getMap(m map[string]any, name string) map[string]any {
	v, _ := get(m, name).(map[string]any)
	return v
}

func getList(m map[string]any, name string) []any {
	v, _ := get(m, name).([]any)
	return v
}

func getString(m map[string]any, name string) string {
	v, _ := get(m, name).(string)
	return v
}

// objects lists the objects of a list field with their places; others are left out.
func objects(m map[string]any, name string) []map[string]any {
	var out []map[string]any
	for _, v := range getList(m, name) {
		if o, ok := v.(map[string]any); ok {
			out = append(out, o)
		}
	}
	return out
}

// integer reads a whole number however it was decoded.
func integer(v any) (int64, bool) {
	switch v := v.(type) {
	case json.Number:
		if i, err := v.Int64(); err == nil {
			return i, true
		}
		f, err := v.Float64()
		return int64(f), err == nil && f == float64(int64(f))
	case float64:
		return int64(v), v == float64(int64(v))
	case int:
		return int64(v), true
	case int64:
		return v, true
	}
	return 0, false
}
