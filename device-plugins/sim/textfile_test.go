package sim

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/devicepb"
)

var update = flag.Bool("update", false, "write testdata/mixed/cards.prom anew")

// A box of four brands, with a shared card, a sick one, a mute one, one whose memory is not told and a process without a
// grant: the file is what the plugin writes at its first look.
func TestTextfile_MixedBox(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := device.New(func(device.Config) ([]device.Detector, error) {
		brands, err := Load("testdata/mixed/sim.hcl")
		var all []device.Detector
		for _, d := range brands {
			all = append(all, d)
		}
		return all, err
	}, hclog.NewNullLogger())
	cfg := device.DefaultConfig()
	cfg.StateDir, cfg.TextfileDir = t.TempDir(), dir
	cfg.Forms = map[string]string{"nvidia/0": "shared"}
	if err := p.Use(cfg); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- p.Fingerprint(short, func([]*devicepb.DeviceGroup) error { return nil }) }()
	t.Cleanup(func() { cancel(); <-ended })

	path := filepath.Join(dir, "heteroflow_cards.prom")
	var got []byte
	for deadline := time.Now().Add(20 * time.Second); got == nil; time.Sleep(2 * time.Millisecond) {
		var err error
		if got, err = os.ReadFile(path); err != nil && time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	const golden = "testdata/mixed/cards.prom"
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("run with -update if this is meant (-want +got):\n%s", diff)
	}
	names, err := os.ReadDir(dir)
	if err != nil || len(names) != 1 {
		t.Errorf("the folder has %v, %v", names, err)
	}
}
