package jobspec

import (
	"maps"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"
)

// Variables names the variables that a job file declares.
func Variables(filename string, src []byte) (map[string]bool, error) {
	_, declared, err := declaredIn(filename, src)
	names := map[string]bool{}
	for name := range declared {
		names[name] = true
	}
	return names, err
}

// VarFile writes values of variables as the text of one variable file, for a server that takes no other form: those
// of the text of a variable file, and those given after -var, which win. The types that the job file declares say
// how the text of a value is meant.
func VarFile(filename string, src []byte, varFile string, vars map[string]string) (string, error) {
	if varFile == "" && len(vars) == 0 {
		return "", nil
	}
	p, declared, err := declaredIn(filename, src)
	if err != nil {
		return "", err
	}
	given := map[string]*variable{}
	for name, v := range declared {
		v.set = false // defaults are the server's to fill in
		given[name] = v
	}
	p.varFile(given, varFile)
	p.varFlags(given, vars)
	if p.diags.HasErrors() {
		return "", asError(p.diags)
	}
	out := hclwrite.NewEmptyFile()
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if v := given[name]; v.set {
			out.Body().SetAttributeValue(name, v.value)
		}
	}
	return string(out.Bytes()), nil
}

func declaredIn(filename string, src []byte) (*parser, map[string]*variable, error) {
	file, diags := hclsyntax.ParseConfig(src, filename, hcl.InitialPos)
	if diags.HasErrors() {
		return nil, nil, asError(diags)
	}
	p := &parser{src: src, root: &hcl.EvalContext{Functions: functions(false), Variables: map[string]cty.Value{}}}
	declared := map[string]*variable{}
	p.declareAll(declared, file.Body.(*hclsyntax.Body)) // ParseConfig returns no other
	return p, declared, asError(p.diags)
}
