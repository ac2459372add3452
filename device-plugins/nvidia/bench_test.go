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

// forms are the outputs that were recorded, by name.
func forms(t testing.TB) map[string]string {
	t.Helper()
	files, err := filepath.Glob("testdata/recorded/*")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, file := range files {
		all[filepath.Base(file)] = recorded(t, filepath.Base(file))
	}
	return all
}

func read(text string) any {
	r, _ := parse(text)
	return r
}

// The library that reads XML allocates some 250 bytes for a tag, all of which can be collected at once. Not parallel: it
// counts what the process allocates.
func TestParse_Frugal(t *testing.T) { brandtest.FrugalOn(t, forms(t), 9, read) }

func BenchmarkParse_OneMiB(b *testing.B) { brandtest.BenchmarkOn(b, forms(b), read) }
