package jobspec

import (
	"maps"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"
)

// VarFile writes values as given after -var as the text of a variable file, for a server that takes no other form.
// The types that the job file declares say how the text of a value is meant.
func VarFile(filename string, src []byte, vars map[string]string) (string, error) {
	if len(vars) == 0 {
		return "", nil
	}
	file, diags := hclsyntax.ParseConfig(src, filename, hcl.InitialPos)
	if diags.HasErrors() {
		return "", asError(diags)
	}
	p := &parser{src: src, root: &hcl.EvalContext{Functions: functions(false)}}
	declared := map[string]*variable{}
	p.declareAll(declared, file.Body.(*hclsyntax.Body)) // ParseConfig returns no other
	p.varFlags(declared, vars)
	if p.diags.HasErrors() {
		return "", asError(p.diags)
	}
	out := hclwrite.NewEmptyFile()
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		value := declared[name].value
		if value == cty.NilVal {
			value = cty.NullVal(cty.DynamicPseudoType)
		}
		out.Body().SetAttributeValue(name, value)
	}
	return string(out.Bytes()), nil
}
