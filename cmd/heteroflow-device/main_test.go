package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/brand/brandtest"
	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/nomadplugintest"
)

const standIn = "../../device-plugins/nvidia/testdata/standin"

// binary builds the plugin without cgo, as it must also build.
func binary(t *testing.T) string {
	t.Helper()
	t.Setenv("CGO_ENABLED", "0")
	path := filepath.Join(t.TempDir(), device.Name)
	build(t, path)
	return path
}

func build(t testing.TB, path string, flags ...string) {
	t.Helper()
	if out, err := exec.Command("go", append(append([]string{"build", "-o", path}, flags...), ".")...).CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	abs, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return abs
}

func TestConformance(t *testing.T) {
	plugin := binary(t)
	t.Run("simulated cards of every brand", func(t *testing.T) {
		nomadplugintest.TestDevice(t, plugin, map[string]any{
			"sim_config": absolute(t, "../../device-plugins/sim/testdata/every.hcl"), "root": t.TempDir(), "nvidia_smi": "no-such-nvidia-smi",
			"state_dir": t.TempDir(), "forms": map[string]any{"A100*": "shared"},
		})
	})
	t.Run("a recorded box with a dead card", func(t *testing.T) {
		t.Setenv("NVIDIA_SMI_BOX", absolute(t, filepath.Join(standIn, "boxes", "a40-one-dead")))
		nomadplugintest.TestDevice(t, plugin, map[string]any{
			"root": t.TempDir(), "nvidia_smi": absolute(t, filepath.Join(standIn, "nvidia-smi")), "state_dir": t.TempDir(),
			"vendors": []any{"nvidia"},
		})
	})
}

func TestOnce(t *testing.T) {
	t.Setenv("NVIDIA_SMI_BOX", absolute(t, filepath.Join(standIn, "boxes", "h100-mig")))
	var out, errs bytes.Buffer
	err := run(context.Background(), []string{
		"-once", "-sim", "../../device-plugins/sim/testdata/every.hcl", "-root", t.TempDir(), "-state-dir", t.TempDir(),
		"-nvidia-smi", absolute(t, filepath.Join(standIn, "nvidia-smi")),
	}, &out, &errs)
	if err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	var found device.Found
	if err := json.Unmarshal(out.Bytes(), &found); err != nil {
		t.Fatal(err)
	}
	if len(found.Sources) != 2*len(accel.Vendors()) || len(found.Cards) != 19 || found.Cards[1].DeviceID != "nvidia/gpu/H100-80GB-HBM3 MIG 3g.40gb" {
		t.Errorf("found %d sources, %d cards, second %+v", len(found.Sources), len(found.Cards), found.Cards[1])
	}
}

func TestDetectors_EveryBrandOnce(t *testing.T) {
	t.Parallel()
	all, err := detectors(hclog.NewNullLogger())(device.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	var got []accel.Vendor
	for _, d := range all {
		got = append(got, d.Vendor())
		if d.Name() != string(d.Vendor()) {
			t.Errorf("the source of %s is called %s", d.Vendor(), d.Name())
		}
	}
	if diff := cmp.Diff(accel.Vendors(), got); diff != "" {
		t.Errorf("brands (-want +got):\n%s", diff)
	}
}

// A node with three brands whose tools are on PATH, and a fourth whose tool never ends: it delays nobody.
func TestOnce_BrandsByTheirToolsAndOneThatHangs(t *testing.T) {
	recorded := func(brand, file string) brandtest.Answer {
		body, err := os.ReadFile(filepath.Join("../../device-plugins", brand, "testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		return brandtest.Answer{Text: string(body)}
	}
	path := os.Getenv("PATH")
	for name, answers := range map[string]map[string]brandtest.Answer{
		"mthreads-gmi": {"--query --json": recorded("mthreads", "query-s5000-first-two.json"), "": recorded("mthreads", "table-s5000-2.3.2-first-two.txt")},
		"npu-smi":      {"info": recorded("ascend", "info-910c-dual-die-25.2.1.txt")},
		"xpu-smi":      {"": recorded("kunlunxin", "table-p800-oam-5.19.0.0-index-gap.txt"), "-m": recorded("kunlunxin", "machine-readable-p800.txt")},
		"cnmon":        {"": {Hang: true}},
	} {
		path = filepath.Dir(brandtest.Tool(t, name, answers)) + string(os.PathListSeparator) + path
	}
	t.Setenv("PATH", path)
	var out, errs bytes.Buffer
	err := run(context.Background(), []string{"-once", "-root", t.TempDir(), "-state-dir", t.TempDir(), "-nvidia-smi", "no-such-nvidia-smi"}, &out, &errs)
	if err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	var found device.Found
	if err := json.Unmarshal(out.Bytes(), &found); err != nil {
		t.Fatal(err)
	}
	got := map[accel.Vendor]device.FoundSource{}
	for _, s := range found.Sources {
		s.Name = ""
		if s.Cards > 0 || s.Error != "" {
			got[s.Vendor] = s
		}
	}
	want := map[accel.Vendor]device.FoundSource{
		accel.MThreads:  {Vendor: accel.MThreads, Cards: 2},
		accel.Ascend:    {Vendor: accel.Ascend, Cards: 16},
		accel.Kunlunxin: {Vendor: accel.Kunlunxin, Cards: 3},
		accel.Cambricon: {Vendor: accel.Cambricon, Error: "cnmon does not answer"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("sources (-want +got):\n%s", diff)
	}
	groups := map[string]int{}
	for _, c := range found.Cards {
		groups[c.DeviceID]++
	}
	if diff := cmp.Diff(map[string]int{"mthreads/gpu/S5000": 2, "ascend/gpu/Ascend910": 16, "kunlunxin/gpu/P800-OAM": 3}, groups); diff != "" {
		t.Errorf("device groups (-want +got):\n%s", diff)
	}
}

func TestRun_SaysWhatToWrite(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	if err := run(context.Background(), []string{"version"}, &out, &errs); err != nil || !strings.HasPrefix(out.String(), "heteroflow-device ") {
		t.Errorf("version: %q, %v", out.String(), err)
	}
	if err := run(context.Background(), []string{"-help"}, &out, &errs); err != nil || !strings.Contains(errs.String(), "-once") {
		t.Errorf("help: %q, %v", errs.String(), err)
	}
	if err := run(context.Background(), []string{"-sim", "x"}, &out, &errs); err == nil || !strings.Contains(err.Error(), "-once") {
		t.Errorf("error %v", err)
	}
	if err := run(context.Background(), []string{"-once", "-sim", "no-such-file"}, &out, &errs); err == nil {
		t.Error("an absent file is accepted")
	}
}
