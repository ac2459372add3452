package topology_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/heteroflow/heteroflow/device-plugins/brand/brandtest"
	"github.com/heteroflow/heteroflow/device-plugins/topology"
)

// Not parallel: it counts what the process allocates.
func TestParsers_Frugal(t *testing.T) {
	files, err := filepath.Glob("testdata/recorded/*")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	recorded := map[string]string{}
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		recorded[filepath.Base(file)] = string(body)
	}
	for name, parse := range map[string]func(string) any{
		"matrix":  func(text string) any { g, _ := topology.ParseMatrix(text); return g },
		"rocm":    func(text string) any { g, _ := topology.ParseROCm(text); return g },
		"nvlinks": func(text string) any { return topology.ParseNVLinks(text) },
	} {
		t.Run(name, func(t *testing.T) { brandtest.FrugalOn(t, recorded, 4, parse) })
	}
}
