package admission

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"
)

// compactOf is compact of what a value is in JSON, without writing and reading the text: a job has some hundred fields,
// and most of them are empty.
func compactOf(v reflect.Value) (any, error) {
	if !v.IsValid() || v.IsZero() && v.Kind() != reflect.Struct {
		return nil, nil
	}
	if v.Type().Implements(marshaler) {
		return compactText(v)
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		return compactOf(v.Elem())
	case reflect.Struct:
		return compactStruct(v)
	case reflect.Map:
		if v.Type().Key().Kind() != reflect.String {
			return compactText(v)
		}
		return compactMap(v)
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return compactText(v)
		}
		return compactList(v)
	case reflect.Bool:
		return true, nil
	case reflect.String:
		if n, is := v.Interface().(json.Number); is {
			return number(n), nil
		}
		return v.String(), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return v.Int(), nil
	}
	return compactText(v)
}

var marshaler = reflect.TypeFor[json.Marshaler]()

func compactText(v reflect.Value) (any, error) {
	text, err := json.Marshal(v.Interface())
	if err != nil {
		return nil, fmt.Errorf("encode job: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var tree any
	if err := dec.Decode(&tree); err != nil {
		return nil, fmt.Errorf("read job: %w", err)
	}
	return compact(tree), nil
}

func compactStruct(v reflect.Value) (any, error) {
	s := shapeOf(v.Type())
	if s == nil {
		return compactText(v)
	}
	out := map[string]any{}
	for i := range s.fields {
		if err := put(out, s.fields[i].name, v.Field(s.fields[i].at)); err != nil {
			return nil, err
		}
	}
	if len(out) == 0 {
		return nil, nil
	}
	return out, nil
}

func compactMap(v reflect.Value) (any, error) {
	out := map[string]any{}
	for entries := v.MapRange(); entries.Next(); {
		if err := put(out, entries.Key().String(), entries.Value()); err != nil {
			return nil, err
		}
	}
	if len(out) == 0 {
		return nil, nil
	}
	return out, nil
}

func put(out map[string]any, name string, v reflect.Value) error {
	x, err := compactOf(v)
	if x != nil {
		out[name] = x
	}
	return err
}

func compactList(v reflect.Value) (any, error) {
	if v.Len() == 0 {
		return nil, nil
	}
	out := make([]any, v.Len())
	for i := range out {
		x, err := compactOf(v.Index(i))
		if err != nil {
			return nil, err
		}
		out[i] = x
	}
	return out, nil
}

// shape is how a struct looks in JSON.
type shape struct {
	fields []field
	byName map[string]int // the fields by their names in lower case: JSON is read whatever the case
}

type field struct {
	name string
	at   int
	kind reflect.Type
}

var shapes sync.Map // reflect.Type → *shape

// shapeOf is nil for a struct whose fields are not simply those of its JSON.
func shapeOf(t reflect.Type) *shape {
	if s, ok := shapes.Load(t); ok {
		return s.(*shape)
	}
	s := &shape{byName: map[string]int{}}
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" && options == "" || !f.IsExported() && !f.Anonymous {
			continue
		}
		if f.Anonymous || strings.Contains(options, "string") {
			s = nil
			break
		}
		if name == "" {
			name = f.Name
		}
		s.byName[strings.ToLower(name)] = len(s.fields)
		s.fields = append(s.fields, field{name, i, f.Type})
	}
	shapes.Store(t, s)
	return s
}

// beyond is what a tree has and the type has no fields for: fields of a Nomad newer than this code. Nil when there is none.
func beyond(have any, t reflect.Type) any {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch have := have.(type) {
	case map[string]any:
		return beyondObject(have, t)
	case []any:
		if t.Kind() != reflect.Slice {
			return nil
		}
		var out []any
		for i, x := range have {
			if more := compact(beyond(x, t.Elem())); more != nil {
				out = append(out, i, more)
			}
		}
		if out == nil {
			return nil
		}
		return out
	}
	return nil
}

func beyondObject(have map[string]any, t reflect.Type) any {
	var out map[string]any
	note := func(name string, more any) {
		if more == nil {
			return
		}
		if out == nil {
			out = map[string]any{}
		}
		out[name] = more
	}
	switch t.Kind() {
	case reflect.Struct:
		s := shapeOf(t)
		if s == nil {
			return nil
		}
		for name, x := range have {
			if at, known := s.byName[strings.ToLower(name)]; known {
				note(name, beyond(x, s.fields[at].kind))
			} else {
				note(name, x)
			}
		}
	case reflect.Map:
		for name, x := range have {
			note(name, beyond(x, t.Elem()))
		}
	}
	if out == nil {
		return nil
	}
	return out
}
