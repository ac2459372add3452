package hygon_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/brand/brandtest"
	"github.com/heteroflow/heteroflow/device-plugins/device/detectortest"
	"github.com/heteroflow/heteroflow/device-plugins/hygon"
	"github.com/heteroflow/heteroflow/internal/accel"
)

func parse(t *testing.T, file string) brand.Reading {
	t.Helper()
	return hygon.Parse(brandtest.Recorded(t, file))
}

func partsOf(c brand.Card) []string {
	var lines []string
	for _, p := range c.Parts {
		lines = append(lines, p.ID+" "+p.Kind)
	}
	return lines
}

// live is a line of the table: index, temperature, power, limit.
func live(heat, power []int, limit int) []string {
	var lines []string
	for i := range heat {
		lines = append(lines, fmt.Sprintf("%d ? ? ?/?MiB 0%% %dC %d/%dW", i, heat[i], power[i], limit))
	}
	return lines
}

func TestParse_RecordedTables(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		want     []string
		facts    map[string]string
		parts    []string // of the first card
		doubtful bool
	}{
		"table-dcu-fan-z100.txt":                    {want: live([]int{30, 30, 29, 29}, []int{38, 41, 38, 39}, 280), facts: map[string]string{"Fan": "0.0%", "Mode": "", "VRAM%": "0%"}},
		"table-k100-mode-column.txt":                {want: live([]int{53, 53, 54, 55, 54, 54, 55, 54}, []int{96, 96, 95, 96, 97, 95, 93, 96}, 300), facts: map[string]string{"Fan": "", "Mode": "Normal"}},
		"table-hcu-k100ai-4cards.txt":               {want: live([]int{63, 63, 61, 60}, []int{109, 112, 100, 112}, 400), facts: map[string]string{"Mode": "Normal"}},
		"table-hcu-dec-enc-800w.txt":                {want: live([]int{40, 41, 39, 37, 40, 38, 36, 36}, []int{157, 162, 159, 161, 158, 161, 160, 161}, 800), facts: map[string]string{"Perf": "high", "Dec%": "0.0%", "Enc%": "0.0%"}},
		"showmeminfo-vram-hcu.txt":                  {want: []string{"0 ? ? 2/65520MiB ?% ?C ?/?W", "1 ? ? ?/65520MiB ?% ?C ?/?W", "7 ? ? ?/65520MiB ?% ?C ?/?W"}},
		"json-rocm-smi-24.04.3.json":                {want: []string{"0 DCU xxxx ? id=7100fa8866904061 2/65520MiB 0% 41C 80/?W"}, facts: map[string]string{"device_id": "0x6210"}},
		"showproductname-bw.json":                   {want: []string{"0 BW ? ?/?MiB ?% ?C ?/?W", "1 BW ? ?/?MiB ?% ?C ?/?W"}, facts: map[string]string{"vendor": "C-3000 IC Design Co., Ltd."}},
		"showmeminfo-vram-bw.json":                  {want: []string{"0 ? ? 9703/65520MiB ?% ?C ?/?W", "1 ? ? 9651/65520MiB ?% ?C ?/?W"}},
		"showbus-bw.json":                           {want: []string{"0 ? 0000:09:00.0 ?/?MiB ?% ?C ?/?W", "1 ? 0000:36:00.0 ?/?MiB ?% ?C ?/?W"}},
		"showuniqueid-bw.json":                      {want: []string{"0 ? ? id=TCA00000000001 ?/?MiB ?% ?C ?/?W", "1 ? ? id=TAP00000000002 ?/?MiB ?% ?C ?/?W"}},
		"virtual-show-device-info.txt":              {want: []string{"0 ? ? ?/32752MiB ?% ?C ?/?W", "1 ? ? ?/32752MiB ?% ?C ?/?W"}, facts: map[string]string{"compute_units": "60"}},
		"virtual-show-device-info-in-container.txt": {want: []string{"0 ? ? ?/2000MiB ?% ?C ?/?W"}, facts: map[string]string{"compute_units": "60"}},
		"virtual-show-vdevice-info.txt": {want: []string{"7 ? ? ?/?MiB ?% ?C ?/?W"}, parts: []string{
			"vdev0 vDCU-5CU-4096MiB", "vdev1 vDCU-15CU-8192MiB", "vdev2 vDCU-20CU-8192MiB", "vdev3 vDCU-20CU-8192MiB",
		}},
		"showmeminfo-vram-gpu-bytes.txt": {want: []string{"0 ? ? ?/32752MiB ?% ?C ?/?W", "1 ? ? ?/32752MiB ?% ?C ?/?W"}, doubtful: true},
		"table-dcu-under-amd-rocm-smi-4.0.1.txt": {
			want: live([]int{50, 48, 48, 49}, []int{23, 25, 24, 27}, 300), doubtful: true,
			facts: map[string]string{"SCLK": "1319Mhz", "MCLK": "800Mhz", "VRAM%": "0%"},
		},
	}
	for file, tc := range cases {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			r := parse(t, file)
			brandtest.Want(t, r, tc.want...)
			for _, c := range r.Cards {
				brandtest.WantFacts(t, c.Facts, tc.facts)
			}
			if diff := cmp.Diff(tc.parts, partsOf(r.Cards[0])); diff != "" {
				t.Errorf("parts (-want +got):\n%s", diff)
			}
			if r.Doubtful != tc.doubtful || r.Foreign {
				t.Errorf("doubtful %v, foreign %v", r.Doubtful, r.Foreign)
			}
		})
	}
	if r := parse(t, "showdriverversion-bw.txt"); r.Driver != "6.3.31-V1.5.0a" || len(r.Cards) != 0 {
		t.Errorf("driver %+v", r)
	}
}

func TestParse_UnknownForThatFieldAlone(t *testing.T) {
	t.Parallel()
	brandtest.Want(t, hygon.Parse(`WARNING: one or more commands failed
=====System Management Interface =====
HCU     Temp     AvgPwr     Perf     PwrCap     VRAM%      HCU%      Mode
0       N/A      109.0W     auto     400.0W     0%         0.0%      Normal
1       63.0C    N/A        auto     400.0W     0%         N/A       Normal
`), "0 ? ? ?/?MiB 0% ?C 109/400W", "1 ? ? ?/?MiB ?% 63C ?/400W")
	if r := hygon.Parse(`{"card0": {"Card Series": "x", "Card Vendor": "Advanced Micro Devices, Inc. [AMD/ATI]"}}`); !r.Foreign {
		t.Error("cards of another maker are not told apart")
	}
	for _, out := range []string{"", "No JSON data to report", `{"card0": 1}`} {
		brandtest.Want(t, hygon.Parse(out))
	}
}

const all = "--showproductname --showmeminfo vram --showbus --showuniqueid --json"

func answers(t *testing.T, files map[string]string) map[string]brandtest.Answer {
	t.Helper()
	all := map[string]brandtest.Answer{}
	for args, file := range files {
		all[args] = brandtest.Answer{Text: brandtest.Recorded(t, file)}
	}
	return all
}

// bw is a node of which each fact was asked for alone, with the first two lines of a table of another node.
func bw(t *testing.T) string {
	t.Helper()
	return brandtest.Tool(t, "hy-smi", answers(t, map[string]string{
		"--showproductname --json": "showproductname-bw.json", "--showmeminfo vram --json": "showmeminfo-vram-bw.json",
		"--showbus --json": "showbus-bw.json", "--showuniqueid --json": "showuniqueid-bw.json", "--showdriverversion": "showdriverversion-bw.txt",
		"virtual -show-device-info": "virtual-show-device-info.txt",
	}))
}

func detector(root, tool string) *brand.Detector {
	return brand.New(hygon.Spec(), brand.Config{Root: root, Tool: tool}, hclog.NewNullLogger())
}

func TestDetect(t *testing.T) {
	t.Parallel()
	cards := brandtest.WantCards(t, detector(t.TempDir(), bw(t)),
		"0 hygon/gpu/BW DCU-TCA00000000001 65520 ok", "1 hygon/gpu/BW DCU-TAP00000000002 65520 ok")
	if c := cards[0]; c.DriverVersion != "6.3.31-V1.5.0a" || c.PCIAddress != "0000:09:00.0" || !slices.Equal(c.Modes, []string{"vdcu"}) {
		t.Errorf("card %+v", c)
	}
	one := brandtest.Tool(t, "rocm-smi", answers(t, map[string]string{all: "json-rocm-smi-24.04.3.json"}))
	brandtest.WantCards(t, detector(t.TempDir(), one), "0 hygon/gpu/DCU-xxxx DCU-7100fa8866904061 65520 ok")
	table := brandtest.Tool(t, "hy-smi", answers(t, map[string]string{"": "table-hcu-k100ai-4cards.txt"}))
	brandtest.WantCards(t, detector(t.TempDir(), table),
		"0 hygon/gpu/unknown INDEX-0 ? ok", "1 hygon/gpu/unknown INDEX-1 ? ok", "2 hygon/gpu/unknown INDEX-2 ? ok", "3 hygon/gpu/unknown INDEX-3 ? ok")
}

// A card with virtual cards is withdrawn for them; the others can be shared in as many compute units as the tool tells.
func TestDetect_VirtualCards(t *testing.T) {
	t.Parallel()
	body := strings.ReplaceAll(brandtest.Recorded(t, "virtual-show-vdevice-info.txt"), "Actual Device: 7", "Actual Device: 1")
	d := detector(t.TempDir(), brandtest.Tool(t, "hy-smi", map[string]brandtest.Answer{
		"":                           {Text: brandtest.Recorded(t, "table-hcu-k100ai-4cards.txt")},
		"--showuniqueid --json":      {Text: brandtest.Recorded(t, "showuniqueid-bw.json")},
		"virtual -show-device-info":  {Text: brandtest.Recorded(t, "virtual-show-device-info.txt")},
		"virtual -show-vdevice-info": {Text: body},
	}))
	detectortest.Run(t, d)
	cards, err := d.Detect(context.Background())
	if err != nil || len(cards) != 8 {
		t.Fatalf("%d cards, %v", len(cards), err)
	}
	var got []string
	for _, c := range cards {
		got = append(got, fmt.Sprintf("%d %s %s %s %s", c.Index, c.UUID, c.Form, c.Parent, accel.FormatRounding(c.Rounding)))
	}
	const rule = "vdcu:memory=1,parts=60,max=4"
	want := []string{
		"0 DCU-TCA00000000001 whole  " + rule, "1 DCU-TAP00000000002 divided  " + rule, "2 INDEX-2 whole  ", "3 INDEX-3 whole  ",
		"-1 DCU-TAP00000000002-vdev0 partition DCU-TAP00000000002 ", "-1 DCU-TAP00000000002-vdev1 partition DCU-TAP00000000002 ",
		"-1 DCU-TAP00000000002-vdev2 partition DCU-TAP00000000002 ", "-1 DCU-TAP00000000002-vdev3 partition DCU-TAP00000000002 ",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("cards (-want +got):\n%s", diff)
	}
	if c := cards[7]; *c.MemoryMiB != 8192 || c.Sources["memory"] != "cli" || !c.Health.OK {
		t.Errorf("virtual card %+v", c)
	}
}

// The text of AMD's own tool is believed only on a machine with Hygon's cards and none of AMD's.
func TestDetect_TheBusDecidesWhoseTextItIs(t *testing.T) {
	t.Parallel()
	tool := brandtest.Tool(t, "rocm-smi", answers(t, map[string]string{"": "table-dcu-under-amd-rocm-smi-4.0.1.txt"}))
	hygonOnly, amdOnly, both := t.TempDir(), t.TempDir(), t.TempDir()
	for _, root := range []string{hygonOnly, both} {
		brandtest.Bus(t, root, "0000:09:00.0", "1d94", "54b7", "hycu", "02")
		brandtest.Files(t, root, map[string]string{"sys/module/hycu/version": "6.2.29"})
	}
	for _, root := range []string{amdOnly, both} {
		brandtest.Bus(t, root, "0000:83:00.0", "1002", "738c", "amdgpu", "01")
	}
	cards, err := detector(hygonOnly, tool).Detect(context.Background())
	if err != nil || len(cards) != 4 || cards[0].DriverVersion != "6.2.29" || cards[0].Sources["driver_version"] != "sysfs" {
		t.Errorf("hygon alone: %v, %+v", err, cards)
	}
	brandtest.WantCards(t, detector(amdOnly, tool))
	brandtest.WantCards(t, detector(both, tool), "-1 hygon/gpu/unknown PCI-0000:09:00.0 ? ok")
	if cards, err := detector(t.TempDir(), tool).Detect(context.Background()); err == nil {
		t.Errorf("cards %v where nothing tells whose they are", cards)
	}
}

func TestDetect_HangingTool(t *testing.T) {
	t.Parallel()
	path := brandtest.Tool(t, "hy-smi", map[string]brandtest.Answer{all: {Hang: true}})
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if cards, err := detector(t.TempDir(), path).Detect(ctx); err == nil {
		t.Errorf("cards %v from a tool that hangs", cards)
	}
}

func TestSample(t *testing.T) {
	t.Parallel()
	d := detector(t.TempDir(), brandtest.Tool(t, "rocm-smi", answers(t, map[string]string{all: "json-rocm-smi-24.04.3.json", "": "table-dcu-fan-z100.txt"})))
	cards, err := d.Detect(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	samples, err := d.Sample(context.Background(), cards)
	if s := samples["DCU-7100fa8866904061"]; err != nil || *s.PowerW != 80 || *s.PowerLimitW != 280 || *s.MemoryUsedMiB != 2 {
		t.Errorf("sample %+v, %v", s, err)
	}
	if processes, err := d.Processes(context.Background(), cards); err != nil || len(processes) != 0 {
		t.Errorf("processes %v, %v: the tool does not list them", processes, err)
	}
}

func TestDetector_Suite(t *testing.T) {
	t.Parallel()
	detectortest.Run(t, detector(t.TempDir(), bw(t)))
}

func FuzzParse(f *testing.F) { brandtest.Fuzz(f, hygon.Spec(), hygon.Parse) }

// Not parallel: it counts what the process allocates.
func TestParse_Frugal(t *testing.T) { brandtest.Frugal(t, hygon.Parse) }

func BenchmarkParse_OneMiB(b *testing.B) { brandtest.Benchmark(b, hygon.Parse) }

func TestParse_TheOtherNumbers(t *testing.T) {
	t.Parallel()
	brandtest.WantMore(t, hygon.Parse, map[string][]string{
		"table-dcu-fan-z100.txt":                 {"FanPct=0"},
		"table-k100-mode-column.txt":             {""},
		"json-rocm-smi-24.04.3.json":             {"MemoryTemperatureC=44"},
		"table-dcu-under-amd-rocm-smi-4.0.1.txt": {"ClockMHz=1319 MemoryClockMHz=800 FanPct=0"},
	})
}

// The text is written after what public reports tell of the tool.
func TestLinks_ByTheTool(t *testing.T) {
	t.Parallel()
	brandtest.WantLink(t, hygon.Spec(), "--showtopo", "=== Link Type between two HCUs ===\n HCU0 HCU1\nHCU0 0 XGMI\nHCU1 XGMI 0\n", "HCU0", "HCU1", "xgmi")
}

func TestParse_WhatSaysNothingIsUnknownAlone(t *testing.T) {
	t.Parallel()
	brandtest.Unknowns(t, hygon.Parse, func(brand.Card) []string { return nil })
}

func TestParse_BlanksAndLinesBefore(t *testing.T) {
	t.Parallel()
	brandtest.LinesBefore(t, hygon.Parse)
	brandtest.Blanks(t, hygon.Parse, func(brand.Card) []string { return nil }, map[string]string{
		"table-*.txt": brandtest.NoBars,
	})
}
