//go:build linux

package nvidia

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/heteroflow/heteroflow/device-plugins/brand/brandtest"
	"github.com/heteroflow/heteroflow/device-plugins/device/detectortest"
)

// A tool as a shell script costs less than nvidia-smi itself, which takes some tens of milliseconds of its own to load
// the library: what is measured here is what the plugin adds to it.
func BenchmarkCycle8Cards_SMI(b *testing.B) {
	b.Run("healthy", func(b *testing.B) {
		smi := standIn(b, "a40-one-dead")
		query := filepath.Join(filepath.Dir(smi), "box", "query-gpu.csv")
		mend(b, query)
		if err := os.Remove(filepath.Join(filepath.Dir(smi), "box", "status")); err != nil {
			b.Fatal(err)
		}
		detectortest.Cycle(b, detector(b, smi), 8)
	})
	b.Run("one dead", func(b *testing.B) { detectortest.Cycle(b, detector(b, standIn(b, "a40-one-dead")), 8) })
}

// mend puts a healthy card in the place of the dead one of a recorded query.
func mend(b *testing.B, file string) {
	b.Helper()
	body, err := os.ReadFile(file)
	if err != nil {
		b.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(body)) {
		switch {
		case strings.HasPrefix(line, "Unable to"):
			continue
		case strings.HasPrefix(line, "["):
			line = "4, GPU-00000000-0000-0000-0000-000000000004, NVIDIA A40, 00000000:83:00.0, 46068 MiB, 0 MiB, 525.60.13, 0 %, 24, 14.00 W, 300.00 W, [N/A]\n"
		}
		lines = append(lines, line)
	}
	if err := os.WriteFile(file, []byte(strings.Join(lines, "")), 0o644); err != nil {
		b.Fatal(err)
	}
}

// Each form of output as one hostile text of 1 MiB: everything recorded in that form, over and over.
func BenchmarkParse_OneMiB(b *testing.B) {
	files, err := filepath.Glob("testdata/recorded/*")
	if err != nil {
		b.Fatal(err)
	}
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			b.Fatal(err)
		}
		brandtest.OverAndOver(b, filepath.Base(file), string(body), func(text string) { parse(text) })
	}
}
