package proxy

import (
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"sync"

	"github.com/heteroflow/heteroflow/internal/httpx"
	"github.com/heteroflow/heteroflow/internal/nomadapi"
	"github.com/heteroflow/heteroflow/placement-service/submit"
)

// bodyLimit is the largest request that is read into memory: a job with its source.
const bodyLimit = 32 << 20

// readTree reads the body as a generic tree. shape is a pointer to Nomad's own type for the body: it checks the
// types, so that the error names the field, and gives keys that are written in another case their name, since Nomad
// takes any case and a key that we overlooked must not reach it.
func readTree(w http.ResponseWriter, r *http.Request, shape any) (submit.Tree, error) {
	body, err := httpx.ReadBody(w, r, bodyLimit)
	if err != nil {
		return nil, err
	}
	if err := httpx.UnmarshalLoose(body, shape); err != nil {
		return nil, err
	}
	var tree submit.Tree
	if err := nomadapi.DecodeTree(body, &tree); err != nil || tree == nil {
		return nil, httpx.NewProblem(http.StatusBadRequest, httpx.CodeWrongType, "the body must be a JSON object")
	}
	if err := rename(tree, reflect.TypeOf(shape), ""); err != nil {
		return nil, err
	}
	return tree, nil
}

// rename gives the keys of known fields their own case, all the way down. Two keys for one field are refused:
// which of them counts would depend on the reader. So is null for an object in a list.
func rename(value any, t reflect.Type, path string) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch v := value.(type) {
	case []any:
		if t.Kind() != reflect.Slice && t.Kind() != reflect.Array {
			return nil
		}
		for i, item := range v {
			if item == nil && isObject(t.Elem()) {
				return nullEntry(fmt.Sprintf("%s/%d", path, i))
			}
			if err := rename(item, t.Elem(), fmt.Sprintf("%s/%d", path, i)); err != nil {
				return err
			}
		}
	case map[string]any:
		if t.Kind() == reflect.Map {
			for key, item := range v {
				if err := rename(item, t.Elem(), path+"/"+key); err != nil {
					return err
				}
			}
		}
		if t.Kind() == reflect.Struct {
			return renameFields(v, t, path)
		}
	}
	return nil
}

func isObject(t reflect.Type) bool {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind() == reflect.Struct
}

// nullEntry refuses null for an object in a list: Nomad breaks the connection off on some of them, which nobody could
// tell from a Nomad that is away, and the job would be tried again for ever.
func nullEntry(path string) error {
	detail := "is null where an object belongs: leave the entry out of the list"
	return httpx.NewProblem(http.StatusBadRequest, "null_entry", path+" "+detail).At(path, detail)
}

func renameFields(v map[string]any, t reflect.Type, path string) error {
	for _, f := range fieldsOf(t) {
		if err := renameField(v, f.name, path); err != nil {
			return err
		}
		if item, ok := v[f.name]; ok {
			if err := rename(item, f.of, path+"/"+f.name); err != nil {
				return err
			}
		}
	}
	return nil
}

// field is one of a struct, by its name in JSON.
type field struct {
	name string
	of   reflect.Type
}

// fields are those of Nomad's types: reflect.Type → []field. They are looked up for every object of every job.
var fields sync.Map

func fieldsOf(t reflect.Type) []field {
	if known, ok := fields.Load(t); ok {
		return known.([]field)
	}
	var out []field
	for _, f := range reflect.VisibleFields(t) {
		if !f.IsExported() || f.Anonymous {
			continue
		}
		name := f.Name
		if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag != "" && tag != "-" {
			name = tag
		}
		out = append(out, field{name, f.Type})
	}
	fields.Store(t, out)
	return out
}

func renameField(v map[string]any, name, path string) error {
	for key, item := range v {
		if key == name || !strings.EqualFold(key, name) {
			continue
		}
		if _, twice := v[name]; twice {
			detail := fmt.Sprintf("is given as %q and as %q: write it once", name, key)
			return httpx.NewProblem(http.StatusBadRequest, "field_twice", path+"/"+name+" "+detail).At(path+"/"+name, detail)
		}
		v[name] = item
		delete(v, key)
	}
	return nil
}
