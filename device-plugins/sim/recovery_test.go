package sim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/device-plugins/health"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/devicepb"
)

// What Nomad is told when a card falls off the bus and is repaired: one card goes and comes back, by itself, and a program's
// error on the other is not told at all.
func TestFingerprint_FaultAndRepair(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("sim.hcl", "control = \"control.hcl\"\ncard \"nvidia\" {\n  model  = \"A100-SXM4-80GB\"\n  count  = 2\n  memory = \"80GiB\"\n}\n")
	write("new.hcl", "event \"nvidia/1\" {\n  text  = \"Xid 79\"\n  blame = \"card\"\n}\nevent \"nvidia/0\" {\n  text  = \"Xid 31\"\n  blame = \"job\"\n}\n")
	p := device.New(func(device.Config) ([]device.Detector, error) {
		brands, err := Load(filepath.Join(dir, "sim.hcl"))
		if err != nil || len(brands) != 1 {
			return nil, fmt.Errorf("%d brands: %w", len(brands), err)
		}
		return []device.Detector{brands[0]}, nil
	}, hclog.NewNullLogger())
	cfg := device.DefaultConfig()
	cfg.StateDir, cfg.FingerprintPeriod, cfg.RecoveryHold = t.TempDir(), "100ms", "50ms"
	if err := p.Use(cfg); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var told [][]string
	err := p.Fingerprint(short, func(groups []*devicepb.DeviceGroup) error {
		var line []string
		for _, g := range groups {
			for _, d := range g.Devices {
				line = append(line, fmt.Sprintf("%s %v %s", d.ID, d.Healthy, d.HealthDescription))
			}
		}
		told = append(told, line)
		switch len(told) {
		case 1: // renamed, so that it is never read half
			return os.Rename(filepath.Join(dir, "new.hcl"), filepath.Join(dir, "control.hcl"))
		case 3:
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if len(told[0]) != 2 {
		t.Fatalf("told %v", told)
	}
	well := slices.Clone(told[0])
	id := well[1][:len(well[1])-len(" true ")]
	if diff := cmp.Diff([][]string{well, {well[0], id + " false Xid 79"}, well}, told); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	records, err := health.Read(cfg.StateDir)
	if err != nil || len(records) != 3 {
		t.Errorf("history %v, %v", records, err)
	}
}
