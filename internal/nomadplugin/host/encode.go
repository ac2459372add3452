package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hcldec"
	hcljson "github.com/hashicorp/hcl/v2/json"
	"github.com/zclconf/go-cty/cty/msgpack"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/hclspec"
)

// EncodeConfig decodes a config block, given as the JSON tree of a job or an agent file, by a plugin's schema and
// writes it as the plugin reads it. Text is taken as it stands: interpolation comes before. An error names the
// options that do not fit.
func EncodeConfig(spec *hclspec.Spec, config map[string]any) ([]byte, error) {
	if config == nil {
		config = map[string]any{}
	}
	doc, err := json.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("encode config: %w", err)
	}
	file, diags := hcljson.Parse(doc, "config")
	if diags.HasErrors() {
		return nil, fmt.Errorf("encode config: %w", plain(diags))
	}
	return encode(spec, file.Body, nil, plain)
}

// EncodeBody does the same for a config block of an HCL file. Its errors carry file, line and column.
func EncodeBody(spec *hclspec.Spec, body hcl.Body, ctx *hcl.EvalContext) ([]byte, error) {
	return encode(spec, body, ctx, func(diags hcl.Diagnostics) error { return diags })
}

func encode(spec *hclspec.Spec, body hcl.Body, ctx *hcl.EvalContext, render func(hcl.Diagnostics) error) (out []byte, err error) {
	// Some values that fit no list of one type make the decoder panic instead of complain.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("encode config: %v", r)
		}
	}()
	dec, err := decoderSpec(spec, "")
	if err != nil {
		return nil, fmt.Errorf("encode config: %w", err)
	}
	v, diags := hcldec.Decode(body, dec, ctx)
	if diags.HasErrors() {
		return nil, fmt.Errorf("encode config: %w", render(diags))
	}
	out, err = msgpack.Marshal(v, v.Type())
	if err != nil {
		return nil, fmt.Errorf("encode config: %w", err)
	}
	return out, nil
}

// plain drops the positions of a document that no user ever saw.
func plain(diags hcl.Diagnostics) error {
	var texts []string
	for _, d := range diags {
		if d.Severity == hcl.DiagError {
			texts = append(texts, strings.TrimSuffix(d.Summary, ".")+": "+d.Detail)
		}
	}
	return errors.New(strings.Join(texts, "; "))
}
