package jobspec

import (
	"fmt"
	"maps"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// A variable is one variable block of the file.
type variable struct {
	name        string
	at          hcl.Range
	kind        cty.Type // DynamicPseudoType when the file does not say
	value       cty.Value
	set         bool
	validations []*hclsyntax.Block
}

// variables reads the declarations and the values given from outside, and puts var into the outermost scope.
func (p *parser) variables(body *hclsyntax.Body, opts Options) {
	declared := map[string]*variable{}
	p.declareAll(declared, body)
	p.varFile(declared, opts.VarFile)
	p.varFlags(declared, opts.Vars)
	values := map[string]cty.Value{}
	for _, name := range slices.Sorted(maps.Keys(declared)) {
		v := declared[name]
		if !v.set {
			p.errorf(v.at, "variable has no value", "set %s with -var %s=…, or give it a default", name, name)
			continue
		}
		values[name] = v.value
	}
	p.root.Variables = map[string]cty.Value{"var": cty.ObjectVal(values)}
	for _, name := range slices.Sorted(maps.Keys(declared)) {
		p.validate(declared[name])
	}
}

func (p *parser) declareAll(declared map[string]*variable, body *hclsyntax.Body) {
	for _, b := range body.Blocks {
		switch b.Type {
		case "variable":
			p.declare(declared, b)
		case "variables": // a shorter form: names with their defaults
			for _, attr := range sortedAttrs(b.Body) {
				value, ok := p.evaluate(block{b, p.root}, attr)
				if ok && p.fresh(declared, attr.Name, attr.NameRange) {
					declared[attr.Name] = &variable{name: attr.Name, at: attr.NameRange, kind: value.Type(), value: value, set: true}
				}
			}
		}
	}
}

func (p *parser) fresh(declared map[string]*variable, name string, at hcl.Range) bool {
	if before, again := declared[name]; again {
		p.errorf(at, "duplicate variable", "%s is declared at %s already", name, before.at)
		return false
	}
	return true
}

func (p *parser) declare(declared map[string]*variable, b *hclsyntax.Block) {
	if !p.labels(b, 1) || !p.fresh(declared, b.Labels[0], b.LabelRanges[0]) {
		return
	}
	v := &variable{name: b.Labels[0], at: b.DefRange(), kind: cty.DynamicPseudoType}
	declared[v.name] = v
	arguments := []string{"type", "default", "description", "sensitive", "nullable"}
	for _, attr := range sortedAttrs(b.Body) {
		if !slices.Contains(arguments, attr.Name) {
			p.unknown("argument", attr.Name, attr.NameRange, arguments)
		}
	}
	for _, inner := range b.Body.Blocks {
		if inner.Type != "validation" {
			p.unknown("block", inner.Type, inner.TypeRange, []string{"validation"})
			continue
		}
		v.validations = append(v.validations, inner)
	}
	if attr := b.Body.Attributes["type"]; attr != nil {
		kind, diags := typeexpr.Type(attr.Expr)
		p.diags = append(p.diags, diags...)
		if !diags.HasErrors() {
			v.kind = kind
		}
	}
	if attr := b.Body.Attributes["default"]; attr != nil {
		value, ok := p.evaluate(block{b, p.root}, attr)
		if !ok {
			return
		}
		converted, err := convert.Convert(value, v.kind)
		if err != nil {
			p.errorf(attr.Expr.Range(), "unsuitable default", "the default of %s does not fit its type: %s", v.name, err)
			return
		}
		v.value, v.set = converted, true
		if v.kind == cty.DynamicPseudoType && !value.IsNull() {
			v.kind = converted.Type()
		}
	}
}

func (p *parser) varFile(declared map[string]*variable, text string) {
	if text == "" {
		return
	}
	file, diags := hclsyntax.ParseConfig([]byte(text), "<variables>", hcl.InitialPos)
	p.diags = append(p.diags, diags...)
	if diags.HasErrors() {
		return
	}
	b := block{&hclsyntax.Block{Body: file.Body.(*hclsyntax.Body)}, p.root}
	for _, inner := range b.Body.Blocks {
		p.errorf(inner.TypeRange, "unsupported block", "a variable file has only lines name = value")
	}
	for _, attr := range sortedAttrs(b.Body) {
		v := declared[attr.Name]
		if v == nil {
			continue // one file of values may serve several jobs
		}
		if value, ok := p.evaluate(b, attr); ok {
			p.assign(v, value, attr.Expr.Range())
		}
	}
}

func (p *parser) varFlags(declared map[string]*variable, vars map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		v := declared[name]
		if v == nil {
			p.diags = append(p.diags, &hcl.Diagnostic{
				Severity: hcl.DiagError, Summary: "undeclared variable",
				Detail: fmt.Sprintf("-var %s=… is given, but the file has no block variable %q { … }", name, name),
			})
			continue
		}
		at := hcl.Range{Filename: "-var " + name, Start: hcl.InitialPos, End: hcl.InitialPos}
		if v.kind == cty.String || v.kind == cty.DynamicPseudoType {
			p.assign(v, cty.StringVal(vars[name]), at)
			continue
		}
		expr, diags := hclsyntax.ParseExpression([]byte(vars[name]), "-var "+name, hcl.InitialPos)
		if !diags.HasErrors() {
			var value cty.Value
			if value, diags = expr.Value(nil); !diags.HasErrors() {
				p.assign(v, value, at)
				continue
			}
		}
		// Text that is no expression may still convert, as true and 5 do from a shell without quotes.
		p.assign(v, cty.StringVal(vars[name]), at)
	}
}

func (p *parser) assign(v *variable, value cty.Value, at hcl.Range) {
	converted, err := convert.Convert(value, v.kind)
	if err != nil {
		p.errorf(at, "unsuitable value for variable "+v.name, "it is declared at %s as %s: %s", v.at, typeexpr.TypeString(v.kind), err)
		return
	}
	v.value, v.set = converted, true
}

// validate checks a variable's own rules.
func (p *parser) validate(v *variable) {
	if !v.set {
		return
	}
	for _, rule := range v.validations {
		condition, message := rule.Body.Attributes["condition"], rule.Body.Attributes["error_message"]
		if condition == nil || message == nil {
			p.errorf(rule.TypeRange, "incomplete validation", "a validation needs condition and error_message")
			continue
		}
		holds, ok := p.evaluate(block{rule, p.root}, condition)
		if !ok {
			continue
		}
		result, err := convert.Convert(holds, cty.Bool)
		if err != nil || result.IsNull() || !result.IsKnown() {
			p.errorf(condition.Expr.Range(), "unsuitable condition", "a condition is true or false")
			continue
		}
		if result.True() {
			continue
		}
		text, _ := p.evaluate(block{rule, p.root}, message)
		if text.Type() != cty.String || text.IsNull() {
			text = cty.StringVal("the value is not allowed")
		}
		p.errorf(v.at, "value of variable "+v.name+" is refused", "%s (rule at %s)", text.AsString(), rule.TypeRange)
	}
}

// locals evaluates the local values in the order in which they need each other.
func (p *parser) locals(body *hclsyntax.Body) {
	pending := map[string]*hclsyntax.Attribute{}
	for _, b := range body.Blocks {
		if b.Type != "locals" {
			continue
		}
		p.labels(b, 0)
		for _, inner := range b.Body.Blocks {
			p.errorf(inner.TypeRange, "unsupported block", "a locals block has only lines name = value")
		}
		for _, attr := range sortedAttrs(b.Body) {
			if before := pending[attr.Name]; before != nil {
				p.errorf(attr.NameRange, "duplicate local value", "%s is set at %s already", attr.Name, before.NameRange)
				continue
			}
			pending[attr.Name] = attr
		}
		p.keepRuntime(b.Body)
	}
	values := map[string]cty.Value{}
	p.root.Variables["local"] = cty.ObjectVal(values)
	for len(pending) > 0 {
		ready := readyLocals(pending)
		if len(ready) == 0 { // each waits for another: evaluating any tells the user which
			ready = slices.Sorted(maps.Keys(pending))[:1]
			p.errorf(pending[ready[0]].NameRange, "local values need each other", "%s depends on itself: write one of the values out", ready[0])
			return
		}
		for _, name := range ready {
			if value, ok := p.evaluate(block{ctx: p.root}, pending[name]); ok {
				values[name] = value
			}
			delete(pending, name)
		}
		p.root.Variables["local"] = cty.ObjectVal(values)
	}
}

// readyLocals lists the local values that need no other pending one.
func readyLocals(pending map[string]*hclsyntax.Attribute) []string {
	var ready []string
	for name, attr := range pending {
		waits := slices.ContainsFunc(attr.Expr.Variables(), func(t hcl.Traversal) bool {
			if t.RootName() != "local" || len(t) < 2 {
				return false
			}
			step, ok := t[1].(hcl.TraverseAttr)
			return ok && pending[step.Name] != nil
		})
		if !waits {
			ready = append(ready, name)
		}
	}
	slices.Sort(ready)
	return ready
}
