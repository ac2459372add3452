package jobspec

import (
	"reflect"
	"strings"
	"sync"

	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// A layout says which arguments, blocks and labels a struct of the API has, from its hcl tags.
type layout struct {
	attrs    map[string]int // field index by name
	blocks   map[string]int
	labels   []int
	required []string
}

var layouts sync.Map // reflect.Type → *layout

func layoutOf(t reflect.Type) *layout {
	if known, ok := layouts.Load(t); ok {
		return known.(*layout)
	}
	l := &layout{attrs: map[string]int{}, blocks: map[string]int{}}
	for i := range t.NumField() {
		tag, tagged := t.Field(i).Tag.Lookup("hcl")
		if !tagged || tag == "-" {
			continue
		}
		name, kind, _ := strings.Cut(tag, ",")
		switch kind {
		case "label":
			l.labels = append(l.labels, i)
		case "block":
			l.blocks[name] = i
		case "optional":
			l.attrs[name] = i
		default:
			l.attrs[name] = i
			l.required = append(l.required, name)
		}
	}
	layouts.Store(t, l)
	return l
}

// arguments and blockNames list what a body may have, for hints.
func (l *layout) arguments(t reflect.Type) []string {
	names := make([]string, 0, len(l.attrs))
	for name := range l.attrs {
		names = append(names, name)
	}
	for name := range operatorArguments[t] {
		names = append(names, name)
	}
	return names
}

func (l *layout) blockNames(t reflect.Type) []string {
	names := make([]string, 0, len(l.blocks))
	for name := range l.blocks {
		names = append(names, name)
	}
	for name := range extraBlocks(t) {
		names = append(names, name)
	}
	return names
}

// structBody decodes the body of a block into the struct that target points to.
func (p *parser) structBody(b block, target any) {
	v := reflect.ValueOf(target).Elem()
	l := layoutOf(v.Type())
	p.arguments(b, l, v)
	p.innerBlocks(b, l, v)
	for _, name := range l.required {
		if b.Body.Attributes[name] == nil {
			p.errorf(b.Body.MissingItemRange(), "missing argument", "a %s block needs %s = …", b.Type, name)
		}
	}
}

func (p *parser) arguments(b block, l *layout, v reflect.Value) {
	for _, attr := range sortedAttrs(b.Body) {
		if index, ok := l.attrs[attr.Name]; ok {
			p.argument(b, attr, v.Field(index))
			continue
		}
		if set, ok := operatorArguments[v.Type()][attr.Name]; ok {
			if value, ok := p.evaluate(b, attr); ok {
				if err := set(v.Addr().Interface(), attr.Name, value); err != nil {
					p.errorf(attr.Expr.Range(), "unsuitable value", "%s: %s", attr.Name, err)
				}
			}
			continue
		}
		if index, ok := l.blocks[attr.Name]; ok {
			if v.Field(index).Type() == stringMapType {
				p.argument(b, attr, v.Field(index)) // meta = { … } means the same as meta { … }
			} else {
				p.errorf(attr.NameRange, "unsupported argument", "%s is a block: write %s { … }, without =", attr.Name, attr.Name)
			}
			continue
		}
		p.unknown("argument", attr.Name, attr.NameRange, l.arguments(v.Type()))
	}
}

func (p *parser) argument(b block, attr *hclsyntax.Attribute, field reflect.Value) {
	value, ok := p.evaluate(b, attr)
	if !ok {
		return
	}
	if field.Kind() == reflect.Map {
		if name, null := nullMember(value); null {
			p.errorf(attr.Expr.Range(), "unsuitable value", "%s: the value of %q is null: give it a value or leave it out", attr.Name, name)
			return
		}
	}
	if err := setValue(field, value); err != nil {
		p.errorf(attr.Expr.Range(), "unsuitable value", "%s: %s", attr.Name, err)
	}
}

func (p *parser) innerBlocks(b block, l *layout, v reflect.Value) {
	first := map[string]block{}
	extras := extraBlocks(v.Type())
	for _, inner := range p.blocks(b.Body, b.ctx) {
		if extra, ok := extras[inner.Type]; ok {
			extra(p, inner, v.Addr().Interface())
			continue
		}
		index, ok := l.blocks[inner.Type]
		if !ok {
			if _, isArgument := l.attrs[inner.Type]; isArgument {
				p.errorf(inner.TypeRange, "unsupported block", "%s is an argument: write %s = …", inner.Type, inner.Type)
				continue
			}
			p.unknown("block", inner.Type, inner.TypeRange, l.blockNames(v.Type()))
			continue
		}
		field := v.Field(index)
		if !repeats(field.Type()) {
			before, again := first[inner.Type]
			if attr := b.Body.Attributes[inner.Type]; attr != nil {
				p.errorf(inner.TypeRange, "duplicate "+inner.Type, "it is also set at %s: write it once", attr.NameRange)
				continue
			}
			if again {
				p.errorf(inner.TypeRange, "duplicate "+inner.Type+" block", "only one is allowed; the first is at %s", before.TypeRange)
				continue
			}
			first[inner.Type] = inner
		}
		p.blockInto(inner, field)
	}
}

// repeats reports whether a field holds any number of blocks.
func repeats(t reflect.Type) bool {
	if t.Kind() == reflect.Slice {
		return true
	}
	return t.Kind() == reflect.Map && t.Elem().Kind() == reflect.Pointer
}

// blockInto decodes a block into the field for its kind: a struct, a list or map of structs, or free text.
func (p *parser) blockInto(b block, field reflect.Value) {
	t := field.Type()
	switch {
	case t == anyMapType:
		if p.labels(b.Block, 0) {
			field.Set(reflect.ValueOf(p.freeBody(b)))
		}
	case t.Kind() == reflect.Map && t.Elem().Kind() != reflect.Pointer:
		p.mapBody(b, field)
	case t.Kind() == reflect.Map:
		element := reflect.New(t.Elem().Elem())
		if !p.labelled(b, element.Elem()) {
			return
		}
		if field.IsNil() {
			field.Set(reflect.MakeMap(t))
		}
		field.SetMapIndex(reflect.ValueOf(b.Labels[0]), element)
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Pointer:
		element := reflect.New(t.Elem().Elem())
		if p.labelled(b, element.Elem()) {
			field.Set(reflect.Append(field, element))
		}
	case t.Kind() == reflect.Slice:
		element := reflect.New(t.Elem())
		if p.labelled(b, element.Elem()) {
			field.Set(reflect.Append(field, element.Elem()))
		}
	case t.Kind() == reflect.Pointer:
		element := reflect.New(t.Elem())
		if p.labelled(b, element.Elem()) {
			field.Set(element)
		}
	default:
		p.errorf(b.TypeRange, "unsupported block", "%s cannot be read from a job file", b.Type)
	}
}

// labelled decodes a block with its labels into a struct and applies what Nomad adds to such a block.
func (p *parser) labelled(b block, v reflect.Value) bool {
	l := layoutOf(v.Type())
	if !p.labels(b.Block, len(l.labels)) {
		return false
	}
	for i, index := range l.labels {
		field := v.Field(index)
		if field.Kind() == reflect.Pointer {
			field.Set(reflect.ValueOf(&b.Labels[i]))
		} else {
			field.SetString(b.Labels[i])
		}
	}
	p.structBody(b, v.Addr().Interface())
	settle(v.Addr().Interface())
	return true
}
