package host

import (
	"cmp"
	"fmt"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/hcldec"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/hclspec"
)

// literalFuncs are the functions that a literal of a schema may call.
var literalFuncs = map[string]function.Function{
	"abs": stdlib.AbsoluteFunc, "coalesce": stdlib.CoalesceFunc, "concat": stdlib.ConcatFunc, "hasindex": stdlib.HasIndexFunc,
	"int": stdlib.IntFunc, "jsondecode": stdlib.JSONDecodeFunc, "jsonencode": stdlib.JSONEncodeFunc, "length": stdlib.LengthFunc,
	"lower": stdlib.LowerFunc, "max": stdlib.MaxFunc, "min": stdlib.MinFunc, "reverse": stdlib.ReverseFunc,
	"strlen": stdlib.StrlenFunc, "substr": stdlib.SubstrFunc, "upper": stdlib.UpperFunc,
}

// decoderSpec turns a schema into HCL's own decoder. name is the key of the enclosing object, which stands in for a
// name that is not given.
func decoderSpec(s *hclspec.Spec, name string) (hcldec.Spec, error) {
	switch b := s.GetBlock().(type) {
	case *hclspec.Spec_Object:
		return objectSpec(b.Object)
	case *hclspec.Spec_Array:
		return tupleSpec(b.Array)
	case *hclspec.Spec_Attr:
		typ, err := typeOf(b.Attr.GetType())
		if err != nil {
			return nil, fmt.Errorf("option %q: %w", cmp.Or(b.Attr.GetName(), name), err)
		}
		return named(&hcldec.AttrSpec{Name: cmp.Or(b.Attr.GetName(), name), Type: typ, Required: b.Attr.GetRequired()}, cmp.Or(b.Attr.GetName(), name))
	case *hclspec.Spec_BlockAttrs:
		typ, err := typeOf(b.BlockAttrs.GetType())
		if err != nil {
			return nil, fmt.Errorf("block %q: %w", cmp.Or(b.BlockAttrs.GetName(), name), err)
		}
		typeName := cmp.Or(b.BlockAttrs.GetName(), name)
		return named(&hcldec.BlockAttrsSpec{TypeName: typeName, ElementType: typ, Required: b.BlockAttrs.GetRequired()}, typeName)
	case *hclspec.Spec_Default:
		primary, err := decoderSpec(b.Default.GetPrimary(), "")
		if err != nil {
			return nil, err
		}
		fallback, err := decoderSpec(b.Default.GetDefault(), "")
		if err != nil {
			return nil, err
		}
		return &hcldec.DefaultSpec{Primary: primary, Default: fallback}, nil
	case *hclspec.Spec_Literal:
		return literalSpec(b.Literal.GetValue())
	case nil:
		return nil, fmt.Errorf("schema of %q is empty", name)
	default:
		return blockSpec(s, name)
	}
}

// blockSpec reads the kinds of schema that hold a nested one.
func blockSpec(s *hclspec.Spec, name string) (hcldec.Spec, error) {
	var nestedSpec *hclspec.Spec
	switch b := s.GetBlock().(type) {
	case *hclspec.Spec_BlockValue:
		name, nestedSpec = cmp.Or(b.BlockValue.GetName(), name), b.BlockValue.GetNested()
	case *hclspec.Spec_BlockList:
		name, nestedSpec = cmp.Or(b.BlockList.GetName(), name), b.BlockList.GetNested()
	case *hclspec.Spec_BlockSet:
		name, nestedSpec = cmp.Or(b.BlockSet.GetName(), name), b.BlockSet.GetNested()
	case *hclspec.Spec_BlockMap:
		name, nestedSpec = cmp.Or(b.BlockMap.GetName(), name), b.BlockMap.GetNested()
	}
	nested, err := decoderSpec(nestedSpec, name)
	if err != nil {
		return nil, err
	}
	switch b := s.GetBlock().(type) {
	case *hclspec.Spec_BlockValue:
		return named(&hcldec.BlockSpec{TypeName: name, Nested: nested, Required: b.BlockValue.GetRequired()}, name)
	case *hclspec.Spec_BlockList:
		return named(&hcldec.BlockListSpec{
			TypeName: name, Nested: nested, MinItems: int(b.BlockList.GetMinItems()), MaxItems: int(b.BlockList.GetMaxItems()),
		}, name)
	case *hclspec.Spec_BlockSet:
		return named(&hcldec.BlockSetSpec{
			TypeName: name, Nested: nested, MinItems: int(b.BlockSet.GetMinItems()), MaxItems: int(b.BlockSet.GetMaxItems()),
		}, name)
	case *hclspec.Spec_BlockMap:
		if len(b.BlockMap.GetLabels()) == 0 {
			return nil, fmt.Errorf("block map %q has no labels", name)
		}
		return named(&hcldec.BlockMapSpec{TypeName: name, LabelNames: b.BlockMap.GetLabels(), Nested: nested}, name)
	}
	return nil, fmt.Errorf("schema of %q has an unknown kind %T", name, s.GetBlock())
}

func objectSpec(o *hclspec.Object) (hcldec.Spec, error) {
	out := hcldec.ObjectSpec{}
	for key, s := range o.GetAttributes() {
		child, err := decoderSpec(s, key)
		if err != nil {
			return nil, err
		}
		out[key] = child
	}
	return out, nil
}

func tupleSpec(a *hclspec.Array) (hcldec.Spec, error) {
	out := hcldec.TupleSpec{}
	for i, s := range a.GetValues() {
		child, err := decoderSpec(s, "")
		if err != nil {
			return nil, fmt.Errorf("element %d: %w", i, err)
		}
		out = append(out, child)
	}
	return out, nil
}

func literalSpec(text string) (hcldec.Spec, error) {
	expr, diags := hclsyntax.ParseExpression([]byte(text), "literal", hcl.InitialPos)
	if diags.HasErrors() {
		return nil, fmt.Errorf("literal %q: %w", text, diags)
	}
	v, diags := expr.Value(&hcl.EvalContext{Functions: literalFuncs})
	if diags.HasErrors() {
		return nil, fmt.Errorf("literal %q: %w", text, diags)
	}
	return &hcldec.LiteralSpec{Value: v}, nil
}

func typeOf(text string) (cty.Type, error) {
	expr, diags := hclsyntax.ParseExpression([]byte(text), "type", hcl.InitialPos)
	if diags.HasErrors() {
		return cty.NilType, fmt.Errorf("type %q: %w", text, diags)
	}
	typ, diags := typeexpr.TypeConstraint(expr)
	if diags.HasErrors() {
		return cty.NilType, fmt.Errorf("type %q: %w", text, diags)
	}
	return typ, nil
}

func named(s hcldec.Spec, name string) (hcldec.Spec, error) {
	if name == "" {
		return nil, fmt.Errorf("an option below a default or a list has no name: give it one")
	}
	return s, nil
}
