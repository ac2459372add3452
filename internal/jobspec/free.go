package jobspec

import (
	"math/big"
	"reflect"

	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

var (
	stringMapType = reflect.TypeFor[map[string]string]()
	anyMapType    = reflect.TypeFor[map[string]any]()
)

func (p *parser) evaluate(b block, attr *hclsyntax.Attribute) (cty.Value, bool) {
	value, diags := attr.Expr.Value(b.ctx)
	p.diags = append(p.diags, diags...)
	return value, !diags.HasErrors()
}

// mapBody decodes a block whose arguments are the members of a map, such as env and meta.
func (p *parser) mapBody(b block, field reflect.Value) {
	if !p.labels(b.Block, 0) {
		return
	}
	for _, inner := range b.Body.Blocks {
		p.errorf(inner.TypeRange, "unsupported block", "a %s block has only arguments: write %s = …", b.Type, inner.Type)
	}
	field.Set(reflect.MakeMap(field.Type()))
	for _, attr := range sortedAttrs(b.Body) {
		value, ok := p.evaluate(b, attr)
		if !ok {
			continue
		}
		element := reflect.New(field.Type().Elem()).Elem()
		err := setValue(element, value)
		switch {
		case value.IsNull():
			p.errorf(attr.Expr.Range(), "unsuitable value", "%s is null: give it a value or leave it out", attr.Name)
		case err != nil:
			p.errorf(attr.Expr.Range(), "unsuitable value", "%s: %s", attr.Name, err)
		default:
			field.SetMapIndex(reflect.ValueOf(attr.Name), element)
		}
	}
}

// freeBody decodes a block of any content, such as a driver's config: arguments become values, nested blocks lists
// of maps with one entry for each block and one level of nesting for each label.
func (p *parser) freeBody(b block) map[string]any {
	out := map[string]any{}
	for _, attr := range sortedAttrs(b.Body) {
		value, ok := p.evaluate(b, attr)
		if !ok || value.IsNull() {
			continue
		}
		if !value.IsWhollyKnown() {
			p.errorf(attr.Expr.Range(), "unsuitable value", "%s: the value is not known", attr.Name)
			continue
		}
		free := freeValue(value)
		if object, ok := free.(map[string]any); ok && isLiteral(attr.Expr) {
			free = []map[string]any{object}
		}
		out[attr.Name] = free
	}
	nested := map[string][]map[string]any{}
	for _, inner := range b.Body.Blocks {
		if inner.Type == "dynamic" {
			p.errorf(inner.TypeRange, "unsupported block",
				"Nomad does not expand dynamic blocks inside %s: write the blocks out, or a list with a for expression", b.Type)
			continue
		}
		content := p.freeBody(block{inner, b.ctx})
		for i := len(inner.Labels) - 1; i >= 0; i-- {
			content = map[string]any{inner.Labels[i]: []map[string]any{content}}
		}
		nested[inner.Type] = append(nested[inner.Type], content)
		out[inner.Type] = nested[inner.Type]
	}
	return out
}

// isLiteral reports whether an expression is written as { … }. Nomad takes that for a block of the argument's name,
// and the same object from a variable or a function for a value.
func isLiteral(expr hclsyntax.Expression) bool {
	_, ok := expr.(*hclsyntax.ObjectConsExpr)
	return ok
}

// freeValue turns a known value into plain Go: text, whole numbers as int, others as float64, booleans, lists as
// []any, maps as map[string]any.
func freeValue(value cty.Value) any {
	if value.IsNull() {
		return nil
	}
	switch t := value.Type(); {
	case t == cty.String:
		return value.AsString()
	case t == cty.Bool:
		return value.True()
	case t == cty.Number:
		return freeNumber(value.AsBigFloat())
	case t.IsObjectType() || t.IsMapType():
		out := map[string]any{}
		for it := value.ElementIterator(); it.Next(); {
			key, member := it.Element()
			out[key.AsString()] = freeValue(member)
		}
		return out
	case value.CanIterateElements():
		out := make([]any, 0, value.LengthInt())
		for it := value.ElementIterator(); it.Next(); {
			_, member := it.Element()
			out = append(out, freeValue(member))
		}
		return out
	}
	return nil // capsules, which no expression of a job file gives
}

func freeNumber(number *big.Float) any {
	if whole, accuracy := number.Int64(); accuracy == big.Exact && int64(int(whole)) == whole {
		return int(whole)
	}
	f, _ := number.Float64() // the nearest float is what a number outside int becomes
	return f
}

// nullMember finds a member of a map or object that is null.
func nullMember(value cty.Value) (name string, found bool) {
	if value.IsNull() || !(value.Type().IsObjectType() || value.Type().IsMapType()) {
		return "", false
	}
	for it := value.ElementIterator(); it.Next(); {
		if key, member := it.Element(); member.IsNull() {
			return key.AsString(), true
		}
	}
	return "", false
}
