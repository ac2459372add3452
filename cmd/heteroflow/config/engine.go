package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	ctyjson "github.com/zclconf/go-cty/cty/json"
)

// Engine is the configuration of the embedded engine when it runs by itself. Its words are those of a Nomad agent's
// file where they mean the same; the engine has fewer.
type Engine struct {
	Addr      string         `hcl:"addr,optional"` // host:port of its HTTP API
	DataDir   string         `hcl:"data_dir"`
	PluginDir string         `hcl:"plugin_dir"`
	Name      string         `hcl:"name,optional"` // of the node; the host's when empty
	CPUMHz    int            `hcl:"cpu_total_compute,optional"`
	MemoryMiB int            `hcl:"memory_total_mb,optional"`
	LogLevel  string         `hcl:"log_level,optional"`
	Consul    *Agent         `hcl:"consul,block"`
	Plugins   []EnginePlugin `hcl:"plugin,block"`
}

// EnginePlugin is one plugin block, as in a Nomad agent's file.
type EnginePlugin struct {
	Name   string   `hcl:"name,label"` // the file in plugin_dir
	Args   []string `hcl:"args,optional"`
	Config *struct {
		Body hcl.Body `hcl:",remain"`
	} `hcl:"config,block"`
}

// ReadEngine reads the file. Unknown arguments and blocks outside plugin configs are errors that name their place;
// what stands in a plugin's config is checked by the plugin's own schema.
func ReadEngine(path string) (*Engine, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	file, diags := hclsyntax.ParseConfig(src, path, hcl.InitialPos)
	if diags.HasErrors() {
		return nil, fmt.Errorf("configuration: %w", diags)
	}
	e := &Engine{Addr: "127.0.0.1:4646", LogLevel: "info", Consul: &Agent{}}
	if diags := gohcl.DecodeBody(file.Body, nil, e); diags.HasErrors() {
		return nil, fmt.Errorf("configuration: %w", errors.Join(diags.Errs()...))
	}
	if err := e.validate(); err != nil {
		return nil, fmt.Errorf("configuration: %s: %w", path, err)
	}
	return e, nil
}

func (e *Engine) validate() error {
	var problems []error
	if e.DataDir == "" {
		problems = append(problems, errors.New("data_dir is empty: write the folder in which allocations and state are kept"))
	}
	if e.PluginDir == "" {
		problems = append(problems, errors.New("plugin_dir is empty: write the folder that the plugins are in"))
	}
	return errors.Join(append(problems, checkLevel(e.LogLevel))...)
}

// Values is the plugin's config block as plain values: a nested block is a list with a map for each time it stands.
func (p EnginePlugin) Values() (map[string]any, error) {
	if p.Config == nil {
		return map[string]any{}, nil
	}
	body, ok := p.Config.Body.(*hclsyntax.Body)
	if !ok {
		return nil, fmt.Errorf("plugin %q: config must be written in HCL", p.Name)
	}
	return plain(body)
}

func plain(body *hclsyntax.Body) (map[string]any, error) {
	values := map[string]any{}
	for name, attr := range body.Attributes {
		value, diags := attr.Expr.Value(nil)
		if diags.HasErrors() {
			return nil, fmt.Errorf("configuration: %w", diags)
		}
		raw, err := json.Marshal(ctyjson.SimpleJSONValue{Value: value})
		if err != nil {
			return nil, fmt.Errorf("%s: read value: %w", attr.NameRange, err)
		}
		var v any
		if err := json.Unmarshal(raw, &v); err != nil {
			return nil, fmt.Errorf("%s: read value: %w", attr.NameRange, err)
		}
		values[name] = v
	}
	for _, block := range body.Blocks {
		inner, err := plain(block.Body)
		if err != nil {
			return nil, err
		}
		for i := len(block.Labels) - 1; i >= 0; i-- {
			inner = map[string]any{block.Labels[i]: []any{inner}}
		}
		list, _ := values[block.Type].([]any)
		values[block.Type] = append(list, inner)
	}
	return values, nil
}
