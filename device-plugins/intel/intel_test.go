package intel_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/brand/brandtest"
	"github.com/heteroflow/heteroflow/device-plugins/device/detectortest"
	"github.com/heteroflow/heteroflow/device-plugins/intel"
)

func TestParse_Recorded(t *testing.T) {
	t.Parallel()
	const uuid = "00000000-0000-0000-0000-020a00008086"
	cases := map[string]struct {
		want   string
		facts  map[string]string
		driver string
	}{
		"discovery-table-v1.txt":       {"0 Intel(R) Graphics [0x020a] 0000:4d:00.0 ?/?MiB ?% ?C ?/?W", map[string]string{"uuid": uuid}, ""},
		"discovery-v1.json":            {"0 Intel(R) Graphics [0x020a] 0000:4d:00.0 ?/?MiB ?% ?C ?/?W", map[string]string{"uuid": uuid}, ""},
		"discovery-d0-v1.txt":          {"0 Intel(R) Graphics [0x020a] 0000:4d:00.0 ?/32768MiB ?% ?C ?/?W", map[string]string{"number_of_tiles": "2", "ecc_state": "enabled"}, "16929133"},
		"stats-d0-v1-blank-fields.txt": {"0 ? ? 24/?MiB 0% 41C 15/?W", nil, ""}, // of its empty cells nothing is known, see TestParse_TheOtherNumbers
		"table-b580-v2.0.txt":          {"0 Intel(R) Arc(TM) B580 0000:03:00.0 239/12216MiB 0% 25C 66/380W", map[string]string{"ecc": "Disabled"}, "9FF4708BCC22C0EE6FD801A"},
		"discovery-d0-b580-v2.0.txt":   {"0 Intel(R) Arc(TM) B580 Graphics 0000:03:00.0 ?/12216MiB ?% ?C ?/?W", map[string]string{"pci_device_id": "0xe20b", "state": "normal"}, "9FF4708BCC22C0EE6FD801A"},
	}
	for file, tc := range cases {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			r := intel.Parse(brandtest.Recorded(t, file))
			brandtest.Want(t, r, tc.want)
			brandtest.WantFacts(t, r.Cards[0].Facts, tc.facts)
			if r.Driver != tc.driver || r.Foreign {
				t.Errorf("driver %q", r.Driver)
			}
		})
	}
	table := intel.Parse(brandtest.Recorded(t, "table-b580-v2.0.txt"))
	if p := table.Cards[0].Processes; !table.ProcessesKnown || len(p) != 1 || p[0].PID != 2874292 || p[0].Name != "xpu-smi" || *p[0].MemoryMiB != 206 {
		t.Errorf("processes %+v", p)
	}
}

func TestParse_UnknownForThatFieldAlone(t *testing.T) {
	t.Parallel()
	odd := strings.NewReplacer("Device State: normal", "Device State: wedged", "12216.00 MiB", "unknown     ").Replace(brandtest.Recorded(t, "discovery-d0-b580-v2.0.txt"))
	brandtest.Want(t, intel.Parse(odd), "0 Intel(R) Arc(TM) B580 Graphics 0000:03:00.0 ?/?MiB ?% ?C ?/?W dead: xpu-smi reports the state wedged")
	if r := intel.Parse("| XPU-SMI               Driver Version: 5.0.21.26    XPU-RT Version: 5.0.21   |"); !r.Foreign {
		t.Error("another maker's tool of the same name is not told apart")
	}
	for _, out := range []string{"", "[]", "Error: No device discovered"} {
		brandtest.Want(t, intel.Parse(out))
	}
}

func detector(t *testing.T, root string, answers map[string]string) *brand.Detector {
	t.Helper()
	all := map[string]brandtest.Answer{}
	for args, file := range answers {
		all[args] = brandtest.Answer{Text: brandtest.Recorded(t, file)}
	}
	return brand.New(intel.Spec(), brand.Config{Root: root, Tool: brandtest.Tool(t, "xpu-smi", all)}, hclog.NewNullLogger())
}

var (
	v1 = map[string]string{"discovery -j": "discovery-v1.json", "discovery -d 0": "discovery-d0-v1.txt", "stats -d 0": "stats-d0-v1-blank-fields.txt"}
	v2 = map[string]string{"": "table-b580-v2.0.txt", "discovery -d 0": "discovery-d0-b580-v2.0.txt"}
)

func TestDetect(t *testing.T) {
	t.Parallel()
	old := detector(t, t.TempDir(), v1)
	cards := brandtest.WantCards(t, old, "0 intel/gpu/Graphics-[0x020a] PCI-0000:4d:00.0 32768 ok")
	samples, err := old.Sample(context.Background(), cards)
	if s := samples["PCI-0000:4d:00.0"]; err != nil || *s.PowerW != 15 || *s.MemoryUsedMiB != 24 {
		t.Errorf("sample %+v, %v", s, err)
	}
	now := detector(t, t.TempDir(), v2)
	cards = brandtest.WantCards(t, now, "0 intel/gpu/Arc-B580 PCI-0000:03:00.0 12216 ok")
	processes, err := now.Processes(context.Background(), cards)
	if diff := cmp.Diff(map[string][]int{"PCI-0000:03:00.0": {2874292}}, processes); diff != "" || err != nil {
		t.Errorf("processes %v %s", err, diff)
	}
	// Graphics of the processor alone: there is nothing to offer.
	root := t.TempDir()
	brandtest.Bus(t, root, "0000:00:02.0", "8086", "4680", "i915", "0c")
	brandtest.WantCards(t, detector(t, root, v2))
}

func TestDetect_HangingTool(t *testing.T) {
	t.Parallel()
	path := brandtest.Tool(t, "xpu-smi", map[string]brandtest.Answer{"discovery -j": {Hang: true}})
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	d := brand.New(intel.Spec(), brand.Config{Root: t.TempDir(), Tool: path}, hclog.NewNullLogger())
	if cards, err := d.Detect(ctx); err == nil {
		t.Errorf("cards %v from a tool that hangs", cards)
	}
}

func TestDetector_Suite(t *testing.T) {
	t.Parallel()
	detectortest.Run(t, detector(t, t.TempDir(), v1))
	detectortest.Run(t, detector(t, t.TempDir(), v2))
}

func FuzzParse(f *testing.F) { brandtest.Fuzz(f, intel.Spec(), intel.Parse) }

// Not parallel: it counts what the process allocates.
func TestParse_Frugal(t *testing.T) { brandtest.Frugal(t, intel.Parse) }

func BenchmarkParse_OneMiB(b *testing.B) { brandtest.Benchmark(b, intel.Parse) }

func TestParse_TheOtherNumbers(t *testing.T) {
	t.Parallel()
	brandtest.WantMore(t, intel.Parse, map[string][]string{
		"stats-d0-v1-blank-fields.txt": {"ClockMHz=2050 ECCCorrected=0 ECCUncorrected=0"},
		"table-b580-v2.0.txt":          {""},
	})
}

func TestParse_WhatSaysNothingIsUnknownAlone(t *testing.T) {
	t.Parallel()
	brandtest.Unknowns(t, intel.Parse, func(brand.Card) []string { return nil })
}

func TestParse_BlanksAndLinesBefore(t *testing.T) {
	t.Parallel()
	brandtest.LinesBefore(t, intel.Parse)
	brandtest.Blanks(t, intel.Parse, func(brand.Card) []string { return nil }, map[string]string{
		"table-*.txt": brandtest.SharedCell,
	})
}
