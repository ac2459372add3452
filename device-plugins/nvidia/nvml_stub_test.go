//go:build !cgo

package nvidia

import (
	"context"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
)

// A build without cgo reads by nvidia-smi, and says so in its log, in -once and to the doctor.
func TestWithoutCgo_SaysSo(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	d := New(Config{Root: t.TempDir(), SMI: standIn(t, "a40-one-dead")}, hclog.New(&hclog.LoggerOptions{Output: &log}))
	d.nvml = nvmlReport // as under the root "/"
	cards, err := d.Detect(context.Background())
	if err != nil || len(cards) != 8 {
		t.Fatalf("%d cards, %v", len(cards), err)
	}
	const want = "NVML not built in: nvidia-smi is used"
	if !strings.Contains(log.String(), want) || d.Note() != want {
		t.Errorf("note %q, log %s", d.Note(), log.String())
	}
	told, err := d.Diagnose(context.Background())
	if err != nil || !strings.Contains(told.Paths[0].Detail, want) {
		t.Errorf("diagnosis %+v, %v", told.Paths, err)
	}
}
