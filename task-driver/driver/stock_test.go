package driver

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/hclspec"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/host"
)

// optionsOf are the paths of a schema's options, blocks and what is in them.
func optionsOf(spec *hclspec.Spec, path string, out map[string]bool) {
	if path != "" {
		out[path] = true
	}
	switch {
	case spec.GetObject() != nil:
		for name, field := range spec.GetObject().GetAttributes() {
			optionsOf(field, strings.TrimPrefix(path+"."+name, "."), out)
		}
	case spec.GetBlockValue() != nil:
		optionsOf(spec.GetBlockValue().GetNested(), path, out)
	case spec.GetBlockList() != nil:
		optionsOf(spec.GetBlockList().GetNested(), path, out)
	}
}

func schemaOptions(spec *hclspec.Spec) map[string]bool {
	out := map[string]bool{}
	optionsOf(spec, "", out)
	return out
}

// testsHere are the names of the tests of the task driver.
func testsHere(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
				found[f.Name.Name] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

var docRow = regexp.MustCompile("(?m)^\\| `([a-z0-9_.]+)` \\| (`[a-z0-9_.]+`|—) \\| (works|refused|可用|拒绝) \\| (.*) \\|$")

// Every documented option of the stock driver is one that works here, by a test that exists, or one that is refused with
// a sentence; and the pages in both languages say the same as the code.
func TestStock_TableAndCodeAreInStep(t *testing.T) {
	t.Parallel()
	tests := testsHere(t)
	for part, c := range map[string]struct {
		options []stockOption
		schema  map[string]bool
		heading []string // in English, in Chinese
	}{
		"task":   {stockTaskOptions, schemaOptions(taskConfigSchema()), []string{"## Options of a task", "## 任务的选项"}},
		"plugin": {stockPluginOptions, schemaOptions(dockerSchema()), []string{"## Options of the plugin", "## 插件的选项"}},
	} {
		seen, works := map[string]bool{}, 0
		for _, o := range c.options {
			if seen[o.name] {
				t.Errorf("%s: %s stands twice", part, o.name)
			}
			seen[o.name] = true
			if !c.schema[o.option()] {
				t.Errorf("%s: %s is not in the schema", part, o.option())
			}
			if !tests[o.test] {
				t.Errorf("%s: %s names the test %s, which there is not", part, o.name, o.test)
			}
			if o.refused == "" {
				works++
			}
		}
		t.Logf("%s: %d options, %d work, %d are refused", part, len(c.options), works, len(c.options)-works)
		for i, path := range []string{"../../docs/docker-options.md", "../../docs/zh-CN/docker-options.md"} {
			body, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			_, section, ok := strings.Cut(string(body), c.heading[i]+"\n")
			if !ok {
				t.Fatalf("%s has no part %q", path, c.heading[i])
			}
			section, _, _ = strings.Cut(section, "\n## ")
			rows := map[string][]string{}
			for _, m := range docRow.FindAllStringSubmatch(section, -1) {
				rows[m[1]] = m[2:]
			}
			for _, o := range c.options {
				row := rows[o.name]
				delete(rows, o.name)
				if row == nil {
					t.Errorf("%s has no row of %s", path, o.name)
					continue
				}
				here, state := "`"+o.option()+"`", [][]string{{"works", "refused"}, {"可用", "拒绝"}}[i][0]
				if o.refused != "" {
					here, state = "—", [][]string{{"works", "refused"}, {"可用", "拒绝"}}[i][1]
				}
				if row[0] != here || row[1] != state {
					t.Errorf("%s: row of %s says %s %s, the code %s %s", path, o.name, row[0], row[1], here, state)
				}
				if i == 0 && o.refused != "" && !strings.Contains(row[2], o.refused) {
					t.Errorf("%s: row of %s does not have the sentence %q", path, o.name, o.refused)
				}
			}
			for name := range rows {
				t.Errorf("%s has a row of %s, which the code does not know", path, name)
			}
		}
	}
}

func TestStock_RefusalsAreSaid(t *testing.T) {
	t.Parallel()
	r, _ := dockerRig(t, nil)
	refusedStart(t, r, with(map[string]any{"isolation": "hyperv"}), "config.isolation: "+windowsOnly)
	for name, value := range map[string]any{
		"extra_labels": []string{"job_name"}, "windows_allow_insecure_container_admin": true,
		"nvidia_runtime": "nvidia",
	} {
		body, err := host.EncodeConfig(r.ConfigSchema(), map[string]any{"docker": map[string]any{name: value}})
		if err != nil {
			t.Fatal(err)
		}
		want := ""
		for _, o := range stockPluginOptions {
			if o.option() == name {
				want = fmt.Sprintf("docker.%s: %s", name, o.refused)
			}
		}
		if err := r.Configure(body); err == nil || want == "" || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}
