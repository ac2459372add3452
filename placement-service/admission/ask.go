package admission

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// fields are the keys of the accelerator block with an example of each.
var fields = []struct{ name, example string }{
	{"count", "count = 1"},
	{"memory", `memory = "20GiB"`},
	{"compute", "compute = 30"},
	{"qos", `qos = "silver"`},
	{"vendor", `vendor = ["nvidia"]`},
	{"model", `model = ["A100*"]`},
}

// readAsk reads the accelerator block. It is nil when something is wrong.
func (r *reader) readAsk(path string, block any) *accel.Ask {
	before := len(r.problems)
	if l, ok := block.([]any); ok && len(l) != 1 {
		r.bad(path, "a task has one accelerator block, not %d: ask for several cards with count", len(l))
		return nil
	}
	m, ok := block.(map[string]any)
	if !ok {
		r.bad(path, `%s is not a block: write accelerator { memory = "20GiB" }, or accelerator { } for one whole card`, show(block))
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if !slices.ContainsFunc(fields, func(f struct{ name, example string }) bool { return f.name == key }) {
			r.bad(path+"."+key, "is not a field of the accelerator block: it has %s", fieldNames())
		}
	}
	b := accel.Block{
		Count: r.whole(path, m, "count"), Memory: r.size(path, m), Compute: r.whole(path, m, "compute"),
		QoS: r.word(path, m, "qos"), Vendor: r.words(path, m, "vendor"), Model: r.words(path, m, "model"),
	}
	if c, ok := integer(m["count"]); ok && c == 0 {
		r.bad(path+".count", "0 cards is no ask: write 1 or more, or leave the accelerator block out")
	}
	if len(r.problems) > before {
		return nil
	}
	ask, err := b.Ask()
	if err != nil {
		r.badFields(path, err)
		return nil
	}
	return &ask
}

// badFields turns the joined errors of a block into problems.
func (r *reader) badFields(path string, err error) {
	var many interface{ Unwrap() []error }
	if errors.As(err, &many) {
		for _, one := range many.Unwrap() {
			r.badFields(path, one)
		}
		return
	}
	var field *accel.FieldError
	if errors.As(err, &field) {
		r.bad(path+"."+field.Field, "%s", field.Problem)
		return
	}
	r.bad(path, "%s", err)
}

func (r *reader) whole(path string, m map[string]any, name string) int64 {
	v := m[name]
	if v == nil {
		return 0
	}
	n, ok := integer(v)
	if !ok {
		r.bad(path+"."+name, "%s is not a whole number: write it without quotes, for example %s", show(v), example(name))
	}
	return n
}

// size reads memory. A bare number is passed on as text, so that it is refused with the units to choose from.
func (r *reader) size(path string, m map[string]any) string {
	switch v := m["memory"].(type) {
	case nil:
		return ""
	case string:
		if v == "" {
			r.bad(path+".memory", `is empty: write %s, or leave it out for whole cards`, example("memory"))
		}
		return v
	case json.Number:
		return v.String()
	case float64:
		return fmt.Sprint(v)
	default:
		r.bad(path+".memory", "%s is not a size: write %s", show(v), example("memory"))
		return ""
	}
}

func (r *reader) word(path string, m map[string]any, name string) string {
	v := m[name]
	s, ok := v.(string)
	if v != nil && !ok {
		r.bad(path+"."+name, "%s is not text: write %s", show(v), example(name))
	}
	return s
}

func (r *reader) words(path string, m map[string]any, name string) []string {
	v := m[name]
	if v == nil {
		return nil
	}
	l, ok := v.([]any)
	if !ok {
		r.bad(path+"."+name, "%s is not a list: write %s", show(v), example(name))
		return nil
	}
	var out []string
	for i, x := range l {
		s, ok := x.(string)
		if !ok {
			r.bad(fmt.Sprintf("%s.%s[%d]", path, name, i), "%s is not text: write %s", show(x), example(name))
			continue
		}
		out = append(out, s)
	}
	return out
}

func example(name string) string {
	for _, f := range fields {
		if f.name == name {
			return f.example
		}
	}
	return name
}

func fieldNames() string {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	return strings.Join(names, ", ")
}

// show is a short text of a value that is not what it should be.
func show(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprintf("%T", v)
	}
	const most = 60
	if runes := []rune(string(text)); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return string(text)
}

// Check holds the asks against what the cluster has: memory over the largest card, more cards than a node has, brands
// and models that do not exist.
func Check(r Reading, cluster engine.Catalog) Problems {
	var out Problems
	for _, g := range r.Request.Groups {
		for _, t := range g.Tasks {
			if t.Ask == nil {
				continue
			}
			if never := cluster.Impossible(*t.Ask); never != nil {
				out = append(out, Problem{Path: r.paths[place{g.Name, t.Name}] + "." + never.Field, Group: g.Name, Task: t.Name, Text: never.Sentence})
			}
		}
	}
	return out
}
