// Package heteroflow_test holds the rules of the house as tests: which room may import which, that every room
// says what belongs in it, and that the documents keep pace. It tests no behaviour of the product.
package heteroflow_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/heteroflow/heteroflow/"

// An arrow that must not exist, and why.
var forbidden = []struct{ from, to, reason string }{
	{"internal/accel", "internal/", "the vocabulary stands below everything, so that every part can use it"},
	{"internal/nomadplugin", "internal/accel", "the plugin protocol knows nothing of cards; it could serve any plugin"},
	{"internal/nomadplugin", "internal/store", "plugins ship alone to nodes: no database"},
	{"internal/grant", "internal/store", "the driver reads grants on nodes, where there is no database"},
	{"internal/store", "placement-service", "what is persisted must not depend on who decides"},
	{"internal/auth", "placement-service", "who you are is used by the gateway too"},
	{"device-plugins", "internal/store", "plugins ship alone to nodes: no database"},
	{"device-plugins", "placement-service", "plugins ship alone to nodes: no server"},
	{"device-plugins", "task-driver", "two plugins, two binaries: what both need lies in internal/"},
	{"task-driver", "internal/store", "plugins ship alone to nodes: no database"},
	{"task-driver", "placement-service", "plugins ship alone to nodes: no server"},
	{"task-driver", "device-plugins", "two plugins, two binaries: what both need lies in internal/"},
	{"gateway", "placement-service", "the gateway shares the store with the placement service, not its code"},
	{"placement-service", "gateway", "the gateway shares the store with the placement service, not its code"},
	{"placement-service", "internal/nomadplugin", "the service decides; it never touches a plugin"},
	{"placement-service/engine", "internal/store", "the engine is pure: it decides on a snapshot"},
	{"placement-service/engine", "net", "the engine is pure: no I/O"},
	{"placement-service/engine", "os", "the engine is pure: no I/O"},
	{"placement-service/engine", "time", "the engine is pure: no clock"},
	{"", "github.com/hashicorp/nomad", "the server module's licence rules it out; its api module is fine"},
}

// allowedBelow are imports that a forbidden prefix would catch by accident.
var allowedBelow = []string{"github.com/hashicorp/nomad/api"}

func packages(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{} // folder → Go files
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			name := d.Name()
			if name == "testdata" || name == "node_modules" || path != "." && strings.HasPrefix(name, ".") {
				return filepath.SkipDir
			}
			return nil
		}
		if strings.HasSuffix(path, ".go") {
			dir := filepath.ToSlash(filepath.Dir(path))
			found[dir] = append(found[dir], path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestImports_ArrowsThatMustNotExist(t *testing.T) {
	t.Parallel()
	for dir, files := range packages(t) {
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue // a test may reach for a neighbour's fake
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, spec := range parsed.Imports {
				path, err := strconv.Unquote(spec.Path.Value)
				if err != nil {
					t.Fatal(err)
				}
				for _, rule := range forbidden {
					if under(dir, rule.from) && breaks(path, rule.to) {
						t.Errorf("%s imports %s: %s", file, path, rule.reason)
					}
				}
			}
		}
	}
}

func under(dir, room string) bool {
	return room == "" || dir == room || strings.HasPrefix(dir, room+"/")
}

func breaks(path, to string) bool {
	local, ours := strings.CutPrefix(path, module)
	if ours {
		return local == strings.TrimSuffix(to, "/") || strings.HasPrefix(local, strings.TrimSuffix(to, "/")+"/")
	}
	for _, ok := range allowedBelow {
		if path == ok || strings.HasPrefix(path, ok+"/") {
			return false
		}
	}
	return path == to || strings.Contains(to, ".") && strings.HasPrefix(path, to+"/")
}

func TestPackages_SayWhatBelongsInThem(t *testing.T) {
	t.Parallel()
	for dir, files := range packages(t) {
		said := false
		onlyTests := true
		for _, file := range files {
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasSuffix(file, "_test.go") {
				onlyTests = false
			}
			if parsed.Doc != nil && (strings.HasPrefix(parsed.Doc.Text(), "Package ") || strings.HasPrefix(parsed.Doc.Text(), "Command ")) {
				said = true
			}
			if src, err := os.ReadFile(file); err == nil && regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`).Match(src) {
				said = true
			}
		}
		if !said && !onlyTests {
			t.Errorf("%s: no file has a package comment that says what belongs there", dir)
		}
		for _, word := range []string{"util", "utils", "common", "helpers", "models", "types", "pkg"} {
			if filepath.Base(dir) == word {
				t.Errorf("%s: %q says nothing about what is inside", dir, word)
			}
		}
	}
}

func TestMakefile_HelpListsEveryTarget(t *testing.T) {
	t.Parallel()
	src, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	help, err := exec.Command("make", "-s", "help").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range regexp.MustCompile(`(?m)^([a-z0-9-]+):`).FindAllStringSubmatch(string(src), -1) {
		if !regexp.MustCompile(`(?m)^  ` + match[1] + ` +\S`).Match(help) {
			t.Errorf("make help does not list %q", match[1])
		}
	}
}
