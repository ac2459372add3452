package heteroflow_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// addedBrands came last, and were added as any other would be: docs/add-a-brand.md describes it.
var addedBrands = map[accel.Vendor]string{accel.MetaX: "MetaX", accel.Iluvatar: "Iluvatar", accel.Enflame: "Enflame", accel.Intel: "Intel"}

// brandLines is how long a brand's code may be, tests and data apart.
const brandLines = 400

// registry is the one file that names the packages of the brands.
const registry = "cmd/heteroflow-device/main.go"

// vocabulary is where a brand's own word may stand besides its package, and why.
var vocabulary = map[string]string{
	"internal/accel":           "the brand's word, and the variables by which its containers see cards",
	"device-plugins/catalogue": "the brand's products, and how they round shares",
	"task-driver":              "what a container needs besides the card",

	"placement-service/engine/collective": "what the brand's communication library is told",
}

// To read a brand's cards takes one package with its data, and one line in the registry.
func TestBrands_AreOnePackageAndOneLine(t *testing.T) {
	t.Parallel()
	for v, word := range addedBrands {
		home := "device-plugins/" + string(v)
		lines := 0
		for dir, files := range packages(t) {
			for _, file := range files {
				if strings.HasSuffix(file, "_test.go") {
					continue
				}
				source := readFile(t, file)
				if dir == home {
					lines += strings.Count(source, "\n")
					continue
				}
				parsed, err := parser.ParseFile(token.NewFileSet(), file, source, parser.SkipObjectResolution)
				if err != nil {
					t.Fatal(err)
				}
				if filepath.ToSlash(file) != registry && imports(parsed, module+home) {
					t.Errorf("%s imports %s: only %s names the packages of brands", file, home, registry)
				}
				if names(parsed, word) && !slices.ContainsFunc(keys(vocabulary), func(room string) bool { return under(dir, room) }) {
					t.Errorf("%s treats the brand accel.%s apart: what is its own belongs to %s", file, word, home)
				}
			}
		}
		if lines == 0 || lines >= brandLines {
			t.Errorf("%s has %d lines, want fewer than %d: what other brands need too belongs to brand or toolout", home, lines, brandLines)
		}
		if n := strings.Count(readFile(t, registry), string(v)+".Spec()"); n != 1 {
			t.Errorf("%s names %s.Spec() %d times, want once", registry, v, n)
		}
		recordings(t, v)
	}
}

var registered = regexp.MustCompile(`byTool\((\w+)\.Spec\(\)\)`)

// What a hostile tool prints must not take the node's memory: every brand's parser is measured.
func TestBrands_ParsersAreFrugal(t *testing.T) {
	t.Parallel()
	brands := registered.FindAllStringSubmatch(readFile(t, registry), -1)
	if len(brands) < len(addedBrands) {
		t.Fatalf("%s names %d brands", registry, len(brands))
	}
	for _, b := range brands {
		file := filepath.Join("device-plugins", b[1], b[1]+"_test.go")
		for _, want := range []string{"brandtest.Frugal(t, " + b[1] + ".Parse)", "brandtest.Fuzz(f, " + b[1] + ".Spec(), " + b[1] + ".Parse)"} {
			if !strings.Contains(readFile(t, file), want) {
				t.Errorf("%s has no %s", file, want)
			}
		}
	}
}

func imports(file *ast.File, path string) bool {
	return slices.ContainsFunc(file.Imports, func(s *ast.ImportSpec) bool { return s.Path.Value == `"`+path+`"` })
}

// names tells whether a file names a constant of accel.
func names(file *ast.File, word string) (found bool) {
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == word {
			x, ok := s.X.(*ast.Ident)
			found = found || ok && x.Name == "accel"
		}
		return true
	})
	return found
}

func keys(m map[string]string) (out []string) {
	for k := range m {
		out = append(out, k)
	}
	return out
}
