package api

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"strings"
	"testing"
)

// TestGenerated_IsCurrent compares the sums that generate.sh left with the files, since building the generator
// takes longer than all other tests.
func TestGenerated_IsCurrent(t *testing.T) {
	t.Parallel()
	sums, err := os.ReadFile("generate.sum")
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(bytes.NewReader(sums))
	files := 0
	for lines.Scan() {
		want, name, ok := strings.Cut(lines.Text(), "  ")
		if !ok {
			t.Fatalf("line %q is not a sum", lines.Text())
		}
		body, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := sha256.Sum256(body); hex.EncodeToString(got[:]) != want {
			t.Errorf("%s changed after api/generate.sh ran: run it again", name)
		}
		files++
	}
	if files != 5 {
		t.Errorf("%d files have a sum, want 5", files)
	}
}
