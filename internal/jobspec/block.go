package jobspec

import (
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// A block is one block of the file with the scope in which its body is evaluated.
type block struct {
	*hclsyntax.Block
	ctx *hcl.EvalContext
}

// labels checks the number of labels of a block.
func (p *parser) labels(b *hclsyntax.Block, want int) bool {
	switch {
	case len(b.Labels) < want:
		p.errorf(b.TypeRange, "missing name for "+b.Type, "write %s \"name\" { … }", b.Type)
	case len(b.Labels) > want && want == 0:
		p.errorf(b.LabelRanges[0], "extraneous label for "+b.Type, "write %s { … }", b.Type)
	case len(b.Labels) > want:
		p.errorf(b.LabelRanges[want], "extraneous label for "+b.Type, "write %s \"name\" { … }", b.Type)
	default:
		return true
	}
	return false
}

// blocks lists the blocks of a body in order, dynamic ones expanded.
func (p *parser) blocks(body *hclsyntax.Body, ctx *hcl.EvalContext) []block {
	out := make([]block, 0, len(body.Blocks))
	for _, b := range body.Blocks {
		if b.Type != "dynamic" {
			out = append(out, block{b, ctx})
			continue
		}
		out = append(out, p.dynamic(b, ctx)...)
	}
	return out
}

// iteratorName is the name of the variable that a dynamic block declares; empty for other blocks.
func iteratorName(b *hclsyntax.Block) string {
	if b.Type != "dynamic" || len(b.Labels) != 1 {
		return ""
	}
	if attr := b.Body.Attributes["iterator"]; attr != nil {
		return hcl.ExprAsKeyword(attr.Expr)
	}
	return b.Labels[0]
}

// dynamic repeats the content of a dynamic block for each element of its for_each.
func (p *parser) dynamic(b *hclsyntax.Block, ctx *hcl.EvalContext) []block {
	if !p.labels(b, 1) {
		return nil
	}
	content := p.dynamicContent(b)
	each := b.Body.Attributes["for_each"]
	if content == nil {
		return nil
	}
	if each == nil {
		p.errorf(b.TypeRange, "missing for_each", "a dynamic block needs for_each = a list, a set or a map")
		return nil
	}
	elements, diags := each.Expr.Value(ctx)
	p.diags = append(p.diags, diags...)
	if diags.HasErrors() {
		return nil
	}
	if elements.IsNull() || !elements.CanIterateElements() {
		p.errorf(each.Expr.Range(), "unsuitable for_each", "for_each needs a list, a set or a map")
		return nil
	}
	var out []block
	for it := elements.ElementIterator(); it.Next(); {
		key, value := it.Element()
		if elements.Type().IsSetType() {
			key = value
		}
		child := ctx.NewChild()
		child.Variables = map[string]cty.Value{
			iteratorName(b): cty.ObjectVal(map[string]cty.Value{"key": key, "value": value}),
		}
		names, ranges, ok := p.dynamicLabels(b, child)
		if !ok {
			return nil
		}
		out = append(out, block{&hclsyntax.Block{
			Type: b.Labels[0], Labels: names, Body: content.Body, TypeRange: b.TypeRange, LabelRanges: ranges,
			OpenBraceRange: content.OpenBraceRange, CloseBraceRange: content.CloseBraceRange,
		}, child})
	}
	return out
}

// dynamicContent finds the one content block and refuses what else the dynamic block has.
func (p *parser) dynamicContent(b *hclsyntax.Block) (content *hclsyntax.Block) {
	arguments := []string{"for_each", "iterator", "labels"}
	for _, attr := range sortedAttrs(b.Body) {
		if !slices.Contains(arguments, attr.Name) {
			p.unknown("argument", attr.Name, attr.NameRange, arguments)
		}
	}
	if attr := b.Body.Attributes["iterator"]; attr != nil && hcl.ExprAsKeyword(attr.Expr) == "" {
		p.errorf(attr.Expr.Range(), "unsuitable iterator", "iterator is the bare name of a variable: iterator = item")
		return nil
	}
	for _, inner := range b.Body.Blocks {
		switch {
		case inner.Type != "content":
			p.unknown("block", inner.Type, inner.TypeRange, []string{"content"})
		case content != nil:
			p.errorf(inner.TypeRange, "duplicate content block", "the first is at %s", content.TypeRange)
		default:
			content = inner
		}
	}
	if content == nil {
		p.errorf(b.TypeRange, "missing content block", "a dynamic block needs content { … }, the body to repeat")
	}
	return content
}

func (p *parser) dynamicLabels(b *hclsyntax.Block, ctx *hcl.EvalContext) (names []string, ranges []hcl.Range, ok bool) {
	attr := b.Body.Attributes["labels"]
	if attr == nil {
		return nil, nil, true
	}
	value, diags := attr.Expr.Value(ctx)
	if diags.HasErrors() {
		p.diags = append(p.diags, diags...)
		return nil, nil, false
	}
	list, err := convert.Convert(value, cty.List(cty.String))
	if err != nil || list.IsNull() {
		p.errorf(attr.Expr.Range(), "unsuitable labels", `labels is a list of text: labels = [%s.value]`, iteratorName(b))
		return nil, nil, false
	}
	for it := list.ElementIterator(); it.Next(); {
		_, name := it.Element()
		if name.IsNull() {
			p.errorf(attr.Expr.Range(), "unsuitable labels", "a label is null")
			return nil, nil, false
		}
		names = append(names, name.AsString())
		ranges = append(ranges, attr.Expr.Range())
	}
	return names, ranges, true
}
