package mthreads_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/brand/brandtest"
	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/device-plugins/device/detectortest"
	"github.com/heteroflow/heteroflow/device-plugins/mthreads"
)

func ptr[T any](v T) *T { return &v }

func parse(t *testing.T, file string) brand.Reading {
	t.Helper()
	return mthreads.Parse(brandtest.Recorded(t, file))
}

func TestParse_Recorded(t *testing.T) {
	t.Parallel()
	t.Run("a busy S80", func(t *testing.T) {
		t.Parallel()
		r := parse(t, "table-s80-1.14.0-busy.txt")
		brandtest.Want(t, r, "0 MTT S80 0000:01:00.0 1339/16384MiB 98% 56C ?/?W")
		brandtest.WantFacts(t, r.Cards[0].Facts, map[string]string{"lanes": "16x(16x)", "ecc": "N/A", "perf": ""})
		want := []brand.Process{
			{PID: 120, Name: "...ird_party/bin/llama-box/llama-box", MemoryMiB: ptr[uint64](2)},
			{PID: 2022, Name: "...ird_party/bin/llama-box/llama-box", MemoryMiB: ptr[uint64](1333)},
		}
		if diff := cmp.Diff(want, r.Cards[0].Processes); diff != "" || r.Driver != "2.7.0" {
			t.Errorf("driver %s, processes %s", r.Driver, diff)
		}
	})
	t.Run("an idle S80 with 4 of 16 lanes", func(t *testing.T) {
		t.Parallel()
		r := parse(t, "table-s80-1.14.0-idle-4x-lanes.txt")
		brandtest.Want(t, r, "0 MTT S80 0000:04:00.0 2/16384MiB 0% 49C ?/?W")
		brandtest.WantFacts(t, r.Cards[0].Facts, map[string]string{"lanes": "4x(16x)"})
		if !r.ProcessesKnown || len(r.Cards[0].Processes) != 0 || r.Driver != "2.7.0" {
			t.Errorf("driver %s, processes %v", r.Driver, r.Cards[0].Processes)
		}
	})
	t.Run("a newer table with one more column", func(t *testing.T) {
		t.Parallel()
		r := parse(t, "table-s5000-2.3.2-first-two.txt")
		brandtest.Want(t, r,
			"0 MTT S5000 0000:2a:00.0 66641/81920MiB 0% 52C ?/?W",
			"1 MTT S5000 0000:3a:00.0 64889/81920MiB 0% 51C ?/?W")
		for _, c := range r.Cards {
			brandtest.WantFacts(t, c.Facts, map[string]string{"ecc": "On-die, EDC", "perf": "P0"})
		}
		if r.Driver != "3.3.5-server" || r.ProcessesKnown {
			t.Errorf("driver %s, processes known %v", r.Driver, r.ProcessesKnown)
		}
	})
	t.Run("JSON with a blank behind a key", func(t *testing.T) {
		t.Parallel()
		r := parse(t, "query-s5000-first-two.json")
		brandtest.Want(t, r,
			"0 MTT S5000 0000:2a:00.0 id=399282a8-ba01-1475-893c-2eeca9e302f5 0/81920MiB 0% 27C 96.66/950W",
			"1 MTT S5000 ? id=5ebdeb63-ba7a-5904-4f16-495b3e1de6c8 0/81920MiB 0% 26C 97.09/?W")
		brandtest.WantFacts(t, r.Facts, map[string]string{"attached": "8"})
		if r.Driver != "3.3.5-server" {
			t.Errorf("driver %s", r.Driver)
		}
		brandtest.WantFacts(t, r.Cards[0].Facts, map[string]string{"memory_utilization": "0%", "serial": "MY10YL000AA00001"})
		brandtest.WantFacts(t, r.Cards[1].Facts, map[string]string{"memory_utilization": "", "serial": "MY10YL000AA00002"})
	})
	t.Run("text that lost its indentation", func(t *testing.T) {
		t.Parallel()
		r := parse(t, "query-s90-2.7.0-indent-lost.txt")
		brandtest.Want(t, r, "0 MTT S90 0000:01:00.0 id=ba97d6e5-631c-3430-1866-3237832871e4 0/24576MiB 0% 61C 153.59/?W")
		brandtest.WantFacts(t, r.Cards[0].Facts, map[string]string{"ecc": "", "memory_utilization": "0%", "memory_clock": "2003MHz", "link_width": "16x"})
		if r.Driver != "2.7.0" {
			t.Errorf("driver %q", r.Driver)
		}
	})
}

func TestParse_UnknownForThatFieldAlone(t *testing.T) {
	t.Parallel()
	brandtest.Want(t, mthreads.Parse(`mthreads-gmi failed to read a sensor
ID   Name           |PCIe                |%GPU  Mem
     Device Type    |Pcie Lane Width     |Temp  MPC Capable
                                         |      ECC Mode
+-------------------------------------------------------------+
0    MTT S80        |ERR!                |N/A   1339MiB(16384MiB)
     Physical       |16x(16x)            |56C   YES
                                         |      N/A
`), "0 MTT S80 ? 1339/16384MiB ?% 56C ?/?W")
	for _, out := range []string{"", "mthreads-gmi: no device found", "{}"} {
		brandtest.Want(t, mthreads.Parse(out))
	}
}

// tool plays what was recorded: of the S5000 as JSON and as a table, of the S90 as text only.
func tool(t *testing.T, answers map[string]string) string {
	t.Helper()
	all := map[string]brandtest.Answer{}
	for args, file := range answers {
		all[args] = brandtest.Answer{Text: brandtest.Recorded(t, file)}
	}
	return brandtest.Tool(t, "mthreads-gmi", all)
}

func detector(root, tool string) *brand.Detector {
	return brand.New(mthreads.Spec(), brand.Config{Root: root, Tool: tool}, hclog.NewNullLogger())
}

func TestDetect(t *testing.T) {
	t.Parallel()
	s5000 := tool(t, map[string]string{"--query --json": "query-s5000-first-two.json", "": "table-s5000-2.3.2-first-two.txt"})
	cards := brandtest.WantCards(t, detector(t.TempDir(), s5000),
		"0 mthreads/gpu/S5000 GPU-399282a8-ba01-1475-893c-2eeca9e302f5 81920 ok",
		"1 mthreads/gpu/S5000 GPU-5ebdeb63-ba7a-5904-4f16-495b3e1de6c8 81920 ok")
	if cards[1].PCIAddress != "0000:3a:00.0" || cards[1].Sources["memory"] != "cli" {
		t.Errorf("the table did not complete the query: %+v", cards[1])
	}
	s90 := tool(t, map[string]string{"-q": "query-s90-2.7.0-indent-lost.txt"})
	brandtest.WantCards(t, detector(t.TempDir(), s90), "0 mthreads/gpu/S90 GPU-ba97d6e5-631c-3430-1866-3237832871e4 24576 ok")
	s80 := tool(t, map[string]string{"": "table-s80-1.14.0-busy.txt"})
	d := detector(t.TempDir(), s80)
	cards = brandtest.WantCards(t, d, "0 mthreads/gpu/S80 PCI-0000:01:00.0 16384 ok")
	if diff := cmp.Diff([]string{"/dev/mtgpu.0"}, d.Nodes(cards[0])); diff != "" {
		t.Error(diff)
	}
	processes, err := d.Processes(context.Background(), cards)
	if diff := cmp.Diff(map[string][]int{"PCI-0000:01:00.0": {120, 2022}}, processes); diff != "" || err != nil {
		t.Errorf("processes %v: %s", err, diff)
	}
	samples, err := d.Sample(context.Background(), cards)
	want := map[string]device.Sample{"PCI-0000:01:00.0": {MemoryUsedMiB: ptr[uint64](1339), UtilizationPct: ptr(98.0), TemperatureC: ptr(56.0), Processes: []int{120, 2022}}}
	if diff := cmp.Diff(want, samples); diff != "" || err != nil {
		t.Errorf("samples %v: %s", err, diff)
	}
}

func TestDetect_HangingTool(t *testing.T) {
	t.Parallel()
	hang := brandtest.Answer{Hang: true}
	path := brandtest.Tool(t, "mthreads-gmi", map[string]brandtest.Answer{"--query --json": hang, "-q": hang, "": hang})
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if cards, err := detector(t.TempDir(), path).Detect(ctx); err == nil {
		t.Errorf("cards %v from a tool that hangs", cards)
	}
}

func TestDetector_Suite(t *testing.T) {
	t.Parallel()
	detectortest.Run(t, detector(t.TempDir(), tool(t, map[string]string{"--query --json": "query-s5000-first-two.json", "": "table-s5000-2.3.2-first-two.txt"})))
}

func FuzzParse(f *testing.F) { brandtest.Fuzz(f, mthreads.Spec(), mthreads.Parse) }

// Not parallel: it counts what the process allocates.
func TestParse_Frugal(t *testing.T) { brandtest.Frugal(t, mthreads.Parse) }

func BenchmarkParse_OneMiB(b *testing.B) { brandtest.Benchmark(b, mthreads.Parse) }

func TestParse_TheOtherNumbers(t *testing.T) {
	t.Parallel()
	brandtest.WantMore(t, mthreads.Parse, map[string][]string{
		"query-s90-2.7.0-indent-lost.txt": {"MemoryUtilizationPct=0 ClockMHz=1600 MemoryClockMHz=2003 FanPct=75"},
		"query-s5000-first-two.json":      {"MemoryUtilizationPct=0", ""},
	})
}

// The text is written after what public reports tell of the tool.
func TestLinks_ByTheTool(t *testing.T) {
	t.Parallel()
	brandtest.WantLink(t, mthreads.Spec(), "topo -m", "GPU0 GPU1\nGPU0 X MT2\nGPU1 MT2 X\n", "GPU0", "GPU1", "mtlink2")
}

func TestParse_WhatSaysNothingIsUnknownAlone(t *testing.T) {
	t.Parallel()
	brandtest.Unknowns(t, mthreads.Parse, func(brand.Card) []string { return nil })
}

func TestParse_BlanksAndLinesBefore(t *testing.T) {
	t.Parallel()
	brandtest.LinesBefore(t, mthreads.Parse)
	brandtest.Blanks(t, mthreads.Parse, func(brand.Card) []string { return nil }, map[string]string{
		"table-*.txt": brandtest.SharedCell,
	})
}
