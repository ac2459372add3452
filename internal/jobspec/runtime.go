package jobspec

import (
	"bytes"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// keepRuntime makes every reference that this file cannot resolve stand for its own text: ${NOMAD_PORT_http},
// ${attr.cpu.arch}, ${node.unique.id}, ${meta.rack}, ${env["HOME"]} and ${device.model} are resolved by Nomad when
// it places or starts the task. Known names are var, local, the iterators of for expressions and dynamic blocks.
//
// Each such reference is renamed to a variable whose name and value are the text with its ${}; no name that a user
// can write has a $, so nothing else is touched.
func (p *parser) keepRuntime(body *hclsyntax.Body) {
	if p.root.Variables == nil {
		p.root.Variables = map[string]cty.Value{}
	}
	diags := hclsyntax.Walk(body, &runtimeWalker{parser: p, known: map[string]int{"var": 1, "local": 1}})
	p.diags = append(p.diags, diags...)
}

// runtimeWalker counts how often each name is in scope at the node being visited.
type runtimeWalker struct {
	parser *parser
	known  map[string]int
	types  []hcl.Range // expressions that name a type, in which words are no references
}

func (w *runtimeWalker) Enter(node hclsyntax.Node) hcl.Diagnostics {
	switch n := node.(type) {
	case *hclsyntax.FunctionCallExpr:
		if n.Name == "convert" && len(n.Args) == 2 {
			w.types = append(w.types, n.Args[1].Range())
		}
	case hclsyntax.ChildScope:
		w.scope(n, 1)
	case *hclsyntax.Block:
		if name := iteratorName(n); name != "" {
			w.known[name]++
		}
	case *hclsyntax.ScopeTraversalExpr:
		if w.known[n.Traversal.RootName()] == 0 && !w.isType(n.SrcRange) {
			w.keep(n)
		}
	}
	return nil
}

func (w *runtimeWalker) Exit(node hclsyntax.Node) hcl.Diagnostics {
	switch n := node.(type) {
	case hclsyntax.ChildScope:
		w.scope(n, -1)
	case *hclsyntax.Block:
		if name := iteratorName(n); name != "" {
			w.known[name]--
		}
	}
	return nil
}

func (w *runtimeWalker) isType(r hcl.Range) bool {
	return slices.ContainsFunc(w.types, func(t hcl.Range) bool { return t.ContainsPos(r.Start) })
}

func (w *runtimeWalker) scope(n hclsyntax.ChildScope, step int) {
	for name := range n.LocalNames {
		w.known[name] += step
	}
}

func (w *runtimeWalker) keep(n *hclsyntax.ScopeTraversalExpr) {
	text := w.parser.interpolation(n.SrcRange)
	w.parser.root.Variables[text] = cty.StringVal(text)
	n.Traversal = hcl.Traversal{hcl.TraverseRoot{Name: text, SrcRange: n.SrcRange}}
}

// interpolation is the text of a reference with the ${ } around it, as it stands in the file when the reference
// is all that is between them.
func (p *parser) interpolation(r hcl.Range) string {
	const blank = " \t\r\n"
	before := bytes.TrimRight(p.src[:r.Start.Byte], blank)
	after := bytes.TrimLeft(p.src[r.End.Byte:], blank)
	if bytes.HasSuffix(before, []byte("${")) && bytes.HasPrefix(after, []byte("}")) {
		return string(p.src[len(before)-2 : len(p.src)-len(after)+1])
	}
	return "${" + string(r.SliceBytes(p.src)) + "}"
}
