package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/device-plugins/health"
)

func TestDoctor_CardHistory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if got := checkHistory(dir); len(got) != 0 {
		t.Errorf("nothing happened, and it says %v", got)
	}
	at, index := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC), 3
	for i, kind := range []health.Kind{health.Unhealthy, health.Healthy, health.JobFault, health.Unhealthy} {
		r := health.Record{At: at.Add(time.Duration(i) * time.Minute), Kind: kind, Vendor: "nvidia", Model: "A40", Card: "GPU-a", Index: &index}
		if kind != health.Healthy {
			r.Reason = "Xid " + []string{"79", "", "31", "48"}[i]
		}
		if err := health.Append(dir, r); err != nil {
			t.Fatal(err)
		}
	}
	if err := health.Append(dir, health.Record{At: at.Add(time.Hour), Kind: health.Healthy, Vendor: "ascend", Model: "910B3", Card: "NPU-b"}); err != nil {
		t.Fatal(err)
	}
	want := `ok    card history  ascend 910B3 NPU-b: 2026-01-01T13:00:00Z healthy
warn  card history  nvidia/3 GPU-a: 2026-01-01T12:01:00Z healthy; 2026-01-01T12:02:00Z job fault: Xid 31; 2026-01-01T12:03:00Z unhealthy: Xid 48
                    → it comes back by itself when it is repaired; until then no job gets it
`
	if diff := cmp.Diff(want, findingText(checkHistory(dir))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDoctor_CardHistoryThatCannotBeRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, health.File), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := checkHistory(dir); len(got) != 1 || got[0].Status != statusWarn || !strings.Contains(got[0].Advice, "-state-dir") {
		t.Errorf("%+v", got)
	}
}
