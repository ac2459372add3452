package store

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestGenerated_IsCurrent finds SQL that was changed without generating, and generated code that was changed by hand,
// without the minutes that building sqlc takes.
func TestGenerated_IsCurrent(t *testing.T) {
	t.Parallel()
	sums, err := os.ReadFile("sqlgen/inputs.sum")
	if err != nil {
		t.Fatal(err)
	}
	noted := map[string]string{}
	for lines := bufio.NewScanner(bytes.NewReader(sums)); lines.Scan(); {
		sum, path, ok := strings.Cut(lines.Text(), "  ")
		if !ok {
			t.Fatalf("not a line of sha256sum: %q", lines.Text())
		}
		noted[path] = sum
	}
	for _, pattern := range []string{"sqlc.yaml", "migrations/*.sql", "queries/*.sql", "sqlgen/*_gen.go"} {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(paths), err)
		}
		for _, path := range paths {
			body, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			sum := sha256.Sum256(body)
			if noted[path] != hex.EncodeToString(sum[:]) {
				t.Errorf("%s is not what sqlgen was generated from: run internal/store/generate.sh", path)
			}
			delete(noted, path)
		}
	}
	for path := range noted {
		t.Errorf("%s is gone: run internal/store/generate.sh", path)
	}
}
