package admission

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"
)

// asText is canonical by way of the text that Nomad's API writes of a job: what compactOf and beyond must come to.
func asText(t *testing.T, job Tree) (known, unknown any) {
	t.Helper()
	stripped := Strip(job)
	var typed api.Job
	reread(t, stripped, &typed)
	written := map[string]any{}
	reread(t, typed, &written)
	dropServerFields(stripped)
	unknown = compact(notIn(map[string]any(stripped), written))
	typed.Canonicalize()
	settle(&typed)
	written = map[string]any{}
	reread(t, typed, &written)
	return compact(written), unknown
}

func reread(t *testing.T, from, to any) {
	t.Helper()
	text, err := json.Marshal(from)
	if err != nil {
		t.Fatal(err)
	}
	if tree, is := to.(*map[string]any); is {
		decoded, err := Decode(text)
		if err != nil {
			t.Fatal(err)
		}
		*tree = decoded
		return
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	if err := dec.Decode(to); err != nil {
		t.Fatal(err)
	}
}

// notIn is what a tree has and another has not.
func notIn(have, known any) any {
	switch have := have.(type) {
	case map[string]any:
		k, _ := known.(map[string]any)
		out := map[string]any{}
		for _, name := range slices.Sorted(maps.Keys(have)) {
			at, there := keyOf(k, name)
			if !there {
				out[name] = have[name]
			} else if more := notIn(have[name], k[at]); more != nil {
				out[name] = more
			}
		}
		if len(out) == 0 {
			return nil
		}
		return out
	case []any:
		k, _ := known.([]any)
		var out []any
		for i, x := range have {
			var other any
			if i < len(k) {
				other = k[i]
			}
			if more := compact(notIn(x, other)); more != nil {
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

// Every job of the test data, with fields that nobody knows at several places, comes to the same as by its text.
func TestCanonical_AsByItsText(t *testing.T) {
	t.Parallel()
	seen := 0
	for _, text := range jobTexts(t) {
		for _, change := range []func(Tree){
			func(Tree) {},
			func(j Tree) { j["Novelty"] = map[string]any{"a": json.Number("1"), "b": nil} },
			func(j Tree) {
				for _, g := range objects(j, "TaskGroups") {
					g["novelty"] = []any{nil, "x"}
					for _, task := range objects(g, "Tasks") {
						task["Meta"] = map[string]any{"Name": "n"}
						task["Newer"] = true
						task["Config"] = map[string]any{"numbers": []any{json.Number("1.50"), json.Number("0"), json.Number("1e3")}, "deep": map[string]any{"a": map[string]any{}}}
					}
				}
			},
		} {
			job, err := Decode(text)
			if err != nil {
				t.Fatal(err)
			}
			change(job)
			known, unknown, err := canonical(job)
			if err != nil {
				continue
			}
			seen++
			wantKnown, wantUnknown := asText(t, job)
			for what, diff := range map[string]string{"known": cmp.Diff(jsonOf(t, wantKnown), jsonOf(t, known)), "unknown": cmp.Diff(jsonOf(t, wantUnknown), jsonOf(t, unknown))} {
				if diff != "" {
					t.Errorf("%s: %s", what, diff)
				}
			}
		}
	}
	if seen < 20 {
		t.Errorf("only %d jobs could be read", seen)
	}
}

// All fields set: none is forgotten, whatever its kind.
func TestCompactOf_EveryField(t *testing.T) {
	t.Parallel()
	var job api.Job
	filled(reflect.ValueOf(&job).Elem(), 0)
	got, err := compactOf(reflect.ValueOf(job))
	if err != nil {
		t.Fatal(err)
	}
	var tree map[string]any
	reread(t, job, &tree)
	if diff := cmp.Diff(jsonOf(t, compact(tree)), jsonOf(t, got)); diff != "" {
		t.Error(diff)
	}
}

func filled(v reflect.Value, depth int) {
	if depth > 12 || !v.CanSet() {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		filled(v.Elem(), depth+1)
	case reflect.Struct:
		for i := range v.NumField() {
			filled(v.Field(i), depth+1)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			filled(v.Index(i), depth+1)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		x := reflect.New(v.Type().Elem()).Elem()
		filled(x, depth+1)
		if v.Type().Key().Kind() == reflect.String {
			v.SetMapIndex(reflect.ValueOf("k").Convert(v.Type().Key()), x)
		}
	case reflect.Interface:
		if v.NumMethod() == 0 {
			v.Set(reflect.ValueOf(1.5))
		}
	case reflect.String:
		v.SetString("s")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(7)
	case reflect.Float32, reflect.Float64:
		v.SetFloat(2.5)
	}
}

func BenchmarkSpecHash(b *testing.B) {
	job, err := Decode(jobTexts(b)[0])
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := SpecHash(job); err != nil {
			b.Fatal(err)
		}
	}
}
