package kunlunxin_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/brand/brandtest"
	"github.com/heteroflow/heteroflow/device-plugins/device/detectortest"
	"github.com/heteroflow/heteroflow/device-plugins/kunlunxin"
)

func parse(t *testing.T, file string) brand.Reading {
	t.Helper()
	return kunlunxin.Parse(brandtest.Recorded(t, file))
}

// p800 is the lines of a table of P800 cards: index, bus, temperature, power.
func p800(index []int, bus []string, heat, power []int) []string {
	var lines []string
	for i, n := range index {
		lines = append(lines, fmt.Sprintf("%d P800 OAM 0000:%s:00.0 0/98304MiB 0%% %dC %d/400W", n, bus[i], heat[i], power[i]))
	}
	return lines
}

func TestParse_Recorded(t *testing.T) {
	t.Parallel()
	t.Run("the old layout, whose second table repeats the cards", func(t *testing.T) {
		t.Parallel()
		r := parse(t, "table-r300-4.31.txt")
		brandtest.Want(t, r, "0 R300 0000:53:00.0 id=02Kxxx 0/32768MiB 0% ?C ?/?W", "1 R300 0000:56:00.0 id=02Kxxx 0/32768MiB 0% ?C ?/?W")
		brandtest.WantFacts(t, r.Cards[0].Facts, map[string]string{"node": "/dev/xpu0", "L3-Usage": "0 / 63 MB"})
		brandtest.WantFacts(t, r.Cards[1].Facts, map[string]string{"node": "/dev/xpu1", "L3-Usage": "0 / 63 MB"})
		if r.Driver != "4.0" || !r.ProcessesKnown || len(r.Cards[0].Processes) != 0 {
			t.Errorf("driver %q, processes known %v", r.Driver, r.ProcessesKnown)
		}
	})
	t.Run("three lines for each card", func(t *testing.T) {
		t.Parallel()
		r := parse(t, "table-p800-oam-5.0.21.26.txt")
		brandtest.Want(t, r, p800([]int{0, 1, 2, 3, 4, 5, 6, 7}, strings.Fields("52 55 63 66 9a 9b aa ab"), []int{38, 40, 45, 44, 49, 41, 43, 42}, []int{85, 84, 86, 86, 89, 85, 85, 88})...)
		for _, c := range r.Cards {
			brandtest.WantFacts(t, c.Facts, map[string]string{"L3-Usage": "0MiB /    96MiB", "SR-IOV M.": "Disabled", "Volatile Uncorr. ECC": "0"})
		}
		if r.Driver != "5.0.21.26" || !r.ProcessesKnown {
			t.Errorf("driver %q", r.Driver)
		}
	})
	t.Run("a gap in the indices", func(t *testing.T) {
		t.Parallel()
		r := parse(t, "table-p800-oam-5.19.0.0-index-gap.txt")
		brandtest.Want(t, r, p800([]int{0, 1, 7}, []string{"03", "05", "a5"}, []int{35, 37, 35}, []int{87, 84, 85})...)
		if r.Driver != "5.19.0.0" || r.ProcessesKnown {
			t.Errorf("driver %q, processes known %v", r.Driver, r.ProcessesKnown)
		}
	})
	t.Run("lines for machines", func(t *testing.T) {
		t.Parallel()
		r := parse(t, "machine-readable-p800.txt")
		brandtest.Want(t, r,
			"0 P800 OAM 0000:03:00.0 id=02K0000000000001 90440/98304MiB 0% 36C 86/?W",
			"1 P800 OAM 0000:05:00.0 id=02K0000000000002 90440/98304MiB 0% 39C 86/?W")
		brandtest.WantFacts(t, r.Cards[0].Facts, map[string]string{"board": "0", "L3-Usage": "2 / 96", "firmware": "1.0:2.6:1.39.1.7"})
		brandtest.WantFacts(t, r.Cards[1].Facts, map[string]string{"board": "1", "L3-Usage": "2 / 96", "firmware": "1.0:2.6:1.39.1.7"})
	})
}

func TestParse_IntelsToolOfTheSameName(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"foreign-intel-table-b580-v2.0.txt", "foreign-intel-discovery-table-v1.txt"} {
		if r := parse(t, file); !r.Foreign || len(r.Cards) != 0 {
			t.Errorf("%s: %+v", file, r)
		}
	}
}

func TestParse_UnitsAndUnknowns(t *testing.T) {
	t.Parallel()
	line := strings.Split(brandtest.Recorded(t, "machine-readable-p800.txt"), "\n")[0]
	milliwatts := strings.NewReplacer("P800 OAM", "K200", " 0 0 0 86 ", " 0 0 0 38500 ").Replace(line)
	brandtest.Want(t, kunlunxin.Parse(milliwatts), "0 K200 0000:03:00.0 id=02K0000000000001 90440/98304MiB 0% 36C 38.5/?W")
	odd := strings.NewReplacer(" 36 ", " N/A ", "90440", "-").Replace(line)
	brandtest.Want(t, kunlunxin.Parse("warning: slow\n"+odd), "0 P800 OAM 0000:03:00.0 id=02K0000000000001 ?/98304MiB 0% ?C 86/?W")
	for _, out := range []string{"", "xpu_smi: command failed", "a b c \"d e\" f\n"} {
		brandtest.Want(t, kunlunxin.Parse(out))
	}
	table := strings.Replace(brandtest.Recorded(t, "table-p800-oam-5.0.21.26.txt"), "|  No running processes found                                                 |",
		"|    7   N/A  N/A     12345      C   python3 serve.py                  1024MiB |", 1)
	if p := kunlunxin.Parse(table).Cards[7].Processes; len(p) != 1 || p[0].PID != 12345 || *p[0].MemoryMiB != 1024 {
		t.Errorf("processes %+v", p)
	}
}

func tool(t *testing.T, name string, answers map[string]string) string {
	t.Helper()
	all := map[string]brandtest.Answer{}
	for args, file := range answers {
		all[args] = brandtest.Answer{Text: brandtest.Recorded(t, file)}
	}
	return brandtest.Tool(t, name, all)
}

func detector(root, tool string) *brand.Detector {
	return brand.New(kunlunxin.Spec(), brand.Config{Root: root, Tool: tool}, hclog.NewNullLogger())
}

func TestDetect(t *testing.T) {
	t.Parallel()
	gap := detector(t.TempDir(), tool(t, "xpu-smi", map[string]string{"": "table-p800-oam-5.19.0.0-index-gap.txt", "-m": "machine-readable-p800.txt"}))
	cards := brandtest.WantCards(t, gap,
		"0 kunlunxin/gpu/P800-OAM XPU-02K0000000000001 98304 ok", "1 kunlunxin/gpu/P800-OAM XPU-02K0000000000002 98304 ok",
		"7 kunlunxin/gpu/P800-OAM PCI-0000:a5:00.0 98304 ok")
	if diff := cmp.Diff([]string{"/dev/xpu7"}, gap.Nodes(cards[2])); diff != "" {
		t.Error(diff)
	}
	// Both cards print one masked number: it names neither.
	r300 := detector(t.TempDir(), tool(t, "xpu_smi", map[string]string{"": "table-r300-4.31.txt"}))
	cards = brandtest.WantCards(t, r300, "0 kunlunxin/gpu/R300 PCI-0000:53:00.0 32768 ok", "1 kunlunxin/gpu/R300 PCI-0000:56:00.0 32768 ok")
	processes, err := r300.Processes(context.Background(), cards)
	if diff := cmp.Diff(map[string][]int{"PCI-0000:53:00.0": {}, "PCI-0000:56:00.0": {}}, processes); diff != "" || err != nil {
		t.Errorf("processes %v %s", err, diff)
	}
	samples, err := gap.Sample(context.Background(), nil)
	if len(samples) != 0 || err != nil {
		t.Errorf("samples of no cards: %v, %v", samples, err)
	}
}

// On a Kunlunxin host Intel's tool may be found under the name: its cards are not taken, the kernel is.
func TestDetect_ForeignTool(t *testing.T) {
	t.Parallel()
	intel := tool(t, "xpu-smi", map[string]string{"": "foreign-intel-table-b580-v2.0.txt"})
	root := t.TempDir()
	brandtest.Bus(t, root, "0000:52:00.0", "1d22", "3688", "kunlun", "01")
	brandtest.WantCards(t, detector(root, intel), "-1 kunlunxin/gpu/P800 PCI-0000:52:00.0 ? ok")
	other := t.TempDir()
	brandtest.Bus(t, other, "0000:03:00.0", "8086", "e20b", "xe", "01")
	brandtest.WantCards(t, detector(other, intel))
}

func TestDetect_HangingTool(t *testing.T) {
	t.Parallel()
	path := brandtest.Tool(t, "xpu-smi", map[string]brandtest.Answer{"": {Hang: true}})
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if cards, err := detector(t.TempDir(), path).Detect(ctx); err == nil {
		t.Errorf("cards %v from a tool that hangs", cards)
	}
}

func TestDetector_Suite(t *testing.T) {
	t.Parallel()
	detectortest.Run(t, detector(t.TempDir(), tool(t, "xpu-smi", map[string]string{"": "table-p800-oam-5.0.21.26.txt"})))
}

func FuzzParse(f *testing.F) { brandtest.Fuzz(f, kunlunxin.Spec(), kunlunxin.Parse) }

// Not parallel: it counts what the process allocates.
func TestParse_Frugal(t *testing.T) { brandtest.Frugal(t, kunlunxin.Parse) }

func BenchmarkParse_OneMiB(b *testing.B) { brandtest.Benchmark(b, kunlunxin.Parse) }

func TestParse_TheOtherNumbers(t *testing.T) {
	t.Parallel()
	brandtest.WantMore(t, kunlunxin.Parse, map[string][]string{
		"table-p800-oam-5.0.21.26.txt": {"ECCUncorrected=0", "ECCUncorrected=0"},
		"table-r300-4.31.txt":          {"", ""},
		"machine-readable-p800.txt":    {""},
	})
}

// The text is written after what public reports tell of the tool.
func TestLinks_ByTheTool(t *testing.T) {
	t.Parallel()
	brandtest.WantLink(t, kunlunxin.Spec(), "topo -m", "XPU0 NIC0\nXPU0 X PIX\nNIC0 PIX X\nNIC Legend:\n  NIC0: mlx5_7\n", "XPU0", "NIC0", "pix")
}

// Cards can be shared where the tool shows it switched on, whatever the model.
func TestParse_SharingIsSwitchedOn(t *testing.T) {
	t.Parallel()
	off := brandtest.Recorded(t, "table-p800-oam-5.0.21.26.txt")
	on := kunlunxin.Parse(strings.Replace(off, "Disabled", "Enabled ", 1))
	if on.Cards[0].Facts["modes/vxpu"] != "cli" || len(on.Cards[1].Modes) != 0 || len(kunlunxin.Parse(off).Cards[0].Modes) != 0 {
		t.Errorf("modes %v", on.Cards[0].Modes)
	}
}

func TestParse_WhatSaysNothingIsUnknownAlone(t *testing.T) {
	t.Parallel()
	brandtest.Unknowns(t, kunlunxin.Parse, func(brand.Card) []string { return nil })
}

func TestParse_BlanksAndLinesBefore(t *testing.T) {
	t.Parallel()
	brandtest.LinesBefore(t, kunlunxin.Parse)
	brandtest.Blanks(t, kunlunxin.Parse, func(brand.Card) []string { return nil }, map[string]string{
		"table-p800-*.txt":       brandtest.SharedCell,
		"machine-readable-*.txt": brandtest.NoBars,
	})
}
