package host

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/hclspec"
)

// decode reads a document back without any target type, as the bytes are on the wire.
func decode(t *testing.T, doc []byte) map[string]any {
	t.Helper()
	got := map[string]any{}
	if err := nomadplugin.DecodeConfig(doc, &got); err != nil {
		t.Fatal(err)
	}
	return got
}

func rule() *hclspec.Spec {
	return nomadplugin.Object(nomadplugin.Fields{"match": nomadplugin.Attr("", "string", true), "n": nomadplugin.OptNumber("n", 1)})
}

func TestEncodeConfig(t *testing.T) {
	t.Parallel()
	attr := func(typ string) *hclspec.Spec {
		return nomadplugin.Object(nomadplugin.Fields{"x": nomadplugin.Attr("x", typ, false)})
	}
	one := func(s *hclspec.Spec) *hclspec.Spec { return nomadplugin.Object(nomadplugin.Fields{"x": s}) }
	set := &hclspec.Spec{Block: &hclspec.Spec_BlockSet{BlockSet: &hclspec.BlockSet{Name: "x", Nested: rule()}}}
	array := &hclspec.Spec{Block: &hclspec.Spec_Array{Array: &hclspec.Array{Values: []*hclspec.Spec{nomadplugin.Attr("a", "string", false), nomadplugin.Attr("b", "number", false)}}}}
	cases := map[string]struct {
		spec *hclspec.Spec
		in   map[string]any
		want any // of option x
	}{
		"an option that is not set":          {attr("string"), nil, nil},
		"an option that is null":             {attr("string"), map[string]any{"x": nil}, nil},
		"a whole number":                     {attr("number"), map[string]any{"x": 5}, int64(5)},
		"a fraction that a float holds":      {attr("number"), map[string]any{"x": 1.5}, 1.5},
		"a fraction that no float holds":     {attr("number"), map[string]any{"x": 0.1}, "0.1"},
		"a number for text":                  {attr("string"), map[string]any{"x": 5}, "5"},
		"text that looks like a template":    {attr("string"), map[string]any{"x": "${NOMAD_X} %{if}"}, "${NOMAD_X} %{if}"},
		"a list":                             {attr("list(string)"), map[string]any{"x": []string{"b", "a", "b"}}, []any{"b", "a", "b"}},
		"a set is sorted and has no doubles": {attr("set(string)"), map[string]any{"x": []string{"b", "a", "b"}}, []any{"a", "b"}},
		"a map":                              {attr("map(string)"), map[string]any{"x": map[string]any{"k": "v"}}, map[string]any{"k": "v"}},
		"an object":                          {attr("object({a = number})"), map[string]any{"x": map[string]any{"a": 1}}, map[string]any{"a": int64(1)}},
		"a tuple":                            {attr("tuple([string, number])"), map[string]any{"x": []any{"a", 1}}, []any{"a", int64(1)}},
		"any":                                {attr("any"), map[string]any{"x": []any{"a", true}}, []any{"a", true}},
		"a default":                          {one(nomadplugin.OptString("x", `C:\"${a}"`)), nil, `C:\"${a}"`},
		"a default that is overridden":       {one(nomadplugin.OptBool("x", true)), map[string]any{"x": false}, false},
		"a literal with a function":          {one(nomadplugin.Default(nomadplugin.Attr("x", "string", false), `upper("a")`)), nil, "A"},
		"free keys, as an object":            {one(nomadplugin.BlockAttrs("x", "string")), map[string]any{"x": map[string]any{"k": "v"}}, map[string]any{"k": "v"}},
		"free keys, as a job sends them":     {one(nomadplugin.BlockAttrs("x", "string")), map[string]any{"x": []any{map[string]any{"k": "v"}}}, map[string]any{"k": "v"}},
		"free keys, absent":                  {one(nomadplugin.BlockAttrs("x", "string")), nil, nil},
		"a nested block":                     {one(nomadplugin.Block("x", false, rule())), map[string]any{"x": []any{map[string]any{"match": "m"}}}, map[string]any{"match": "m", "n": int64(1)}},
		"a nested block, absent":             {one(nomadplugin.Block("", false, rule())), nil, nil},
		"repeated blocks": {
			one(nomadplugin.BlockList("x", rule())),
			map[string]any{"x": []any{map[string]any{"match": "a"}, map[string]any{"match": "b", "n": 2}}},
			[]any{map[string]any{"match": "a", "n": int64(1)}, map[string]any{"match": "b", "n": int64(2)}},
		},
		"repeated blocks, absent": {one(nomadplugin.BlockList("x", rule())), nil, []any{}},
		"a block set":             {one(set), map[string]any{"x": map[string]any{"match": "a"}}, []any{map[string]any{"match": "a", "n": int64(1)}}},
		"labelled blocks": {
			one(nomadplugin.BlockMap("x", []string{"name"}, rule())),
			map[string]any{"x": map[string]any{"first": map[string]any{"match": "a"}}},
			map[string]any{"first": map[string]any{"match": "a", "n": int64(1)}},
		},
		"fixed positions": {one(array), map[string]any{"a": "t", "b": 2}, []any{"t", int64(2)}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			doc, err := EncodeConfig(tc.spec, tc.in)
			if err != nil {
				t.Fatal(err)
			}
			got := decode(t, doc)
			if _, ok := got["x"]; !ok {
				t.Error("the key is missing")
			}
			if diff := cmp.Diff(tc.want, got["x"]); diff != "" {
				t.Errorf("x (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEncodeConfig_Refuses(t *testing.T) {
	t.Parallel()
	spec := nomadplugin.Object(nomadplugin.Fields{"name": nomadplugin.Attr("name", "string", true), "n": nomadplugin.Attr("n", "number", false)})
	cases := map[string]struct {
		spec *hclspec.Spec
		in   map[string]any
		want string
	}{
		"an unknown key":     {spec, map[string]any{"name": "a", "nmae": 1}, "nmae"},
		"a missing option":   {spec, nil, `"name" is required`},
		"words for a number": {spec, map[string]any{"name": "a", "n": "many"}, "number is required"},
		"an empty schema":    {&hclspec.Spec{}, nil, "schema"},
		"a bad type":         {nomadplugin.Object(nomadplugin.Fields{"x": nomadplugin.Attr("x", "text", false)}), nil, "type"},
		"a bad literal":      {nomadplugin.Object(nomadplugin.Fields{"x": nomadplugin.Default(nomadplugin.Attr("x", "string", false), "a b")}), nil, "literal"},
		"no name in default": {nomadplugin.Object(nomadplugin.Fields{"x": nomadplugin.Default(nomadplugin.Attr("", "string", false), `""`)}), nil, "no name"},
		"no labels":          {nomadplugin.Object(nomadplugin.Fields{"x": nomadplugin.BlockMap("x", nil, rule())}), nil, "labels"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := EncodeConfig(tc.spec, tc.in)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an error with %q", err, tc.want)
			}
			if err != nil && strings.Contains(err.Error(), "config:1") {
				t.Errorf("%v has a position in a document that no user wrote", err)
			}
		})
	}
}

func TestEncodeBody(t *testing.T) {
	t.Parallel()
	spec := nomadplugin.Object(nomadplugin.Fields{"labels": nomadplugin.BlockAttrs("labels", "string"), "rule": nomadplugin.BlockList("rule", rule())})
	file, diags := hclsyntax.ParseConfig([]byte("labels {\n a = \"b\"\n}\nrule {\n match = \"m\"\n}\n"), "agent.hcl", hcl.InitialPos)
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	doc, err := EncodeBody(spec, file.Body, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"labels": map[string]any{"a": "b"}, "rule": []any{map[string]any{"match": "m", "n": int64(1)}}}
	if diff := cmp.Diff(want, decode(t, doc)); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
	file, diags = hclsyntax.ParseConfig([]byte("\nruel {}\n"), "agent.hcl", hcl.InitialPos)
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	if _, err := EncodeBody(spec, file.Body, nil); err == nil || !strings.Contains(err.Error(), "agent.hcl:2") {
		t.Errorf("got %v, want an error with file and line", err)
	}
}

func FuzzEncodeConfig(f *testing.F) {
	f.Add("string", "x", "v")
	f.Add("list(map(any))", "x", "v")
	f.Fuzz(func(t *testing.T, typ, key, value string) {
		spec := nomadplugin.Object(nomadplugin.Fields{"x": nomadplugin.Attr("x", typ, false), "b": nomadplugin.BlockList("b", rule())})
		doc, err := EncodeConfig(spec, map[string]any{key: value})
		if err != nil {
			return
		}
		got := map[string]any{}
		if err := nomadplugin.DecodeConfig(doc, &got); err != nil {
			t.Errorf("a written document is not read: %v", err)
		}
	})
}
