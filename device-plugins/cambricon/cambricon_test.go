package cambricon_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/brand/brandtest"
	"github.com/heteroflow/heteroflow/device-plugins/cambricon"
	"github.com/heteroflow/heteroflow/device-plugins/device/detectortest"
	"github.com/heteroflow/heteroflow/internal/accel"
)

func TestParse_Recorded(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		want       []string
		facts      map[string]string
		driver     string
		noProcList bool
	}{
		"table-mlu370x8-5.10.13.txt": {
			want:   []string{"0 MLU370-X8 0000:39:00.0 0/23374MiB 0% 32C 106/250W", "1 MLU370-X8 0000:3d:00.0 0/23374MiB 0% 39C 106/250W"},
			facts:  map[string]string{"Firmware": "v1.1.6", "Ecc-Error": "N/A", "Compute-Mode": "Default", "SR-IOV": "N/A", "Mode": ""},
			driver: "5.10.13",
		},
		"table-mlu370x8-5.10.22.txt": {
			want:   []string{"0 MLU370-X8 0000:13:00.0 0/20638MiB 0% 28C 107/250W", "1 MLU370-X8 0000:16:00.0 0/20638MiB 0% 32C 107/250W"},
			facts:  map[string]string{"Ecc-Error": "0", "Mode": "FULL", "SR-IOV": ""},
			driver: "5.10.22", noProcList: true,
		},
		"table-mlu370x4-4.20.11.txt": {
			want: []string{
				"0 MLU370-X4 ? 0/23308MiB 0% 32C 30/150W", "1 MLU370-X4 ? 0/23308MiB 0% 33C 25/150W", "2 MLU370-X4 ? 0/23308MiB 0% 30C 26/150W",
			},
			facts:  map[string]string{"Firmware": "v1.1.6", "Ecc-Error": "N/A", "vMemory-Usage": "10240 MiB/1048576 MiB"},
			driver: "4.20.11",
		},
	}
	for file, tc := range cases {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			r := cambricon.Parse(brandtest.Recorded(t, file))
			brandtest.Want(t, r, tc.want...)
			for _, c := range r.Cards {
				brandtest.WantFacts(t, c.Facts, tc.facts)
			}
			if r.Driver != tc.driver || r.ProcessesKnown == tc.noProcList || slices.ContainsFunc(r.Cards, func(c brand.Card) bool { return len(c.Processes) > 0 }) {
				t.Errorf("driver %q, processes known %v: %v", r.Driver, r.ProcessesKnown, r.Cards[0].Processes)
			}
		})
	}
}

func TestParse_InfoReadsKeysByTheirSection(t *testing.T) {
	t.Parallel()
	brandtest.Want(t, cambricon.Parse(brandtest.Recorded(t, "written-info.txt")),
		"0 MLU370-X8 ? id=1e000000-0000-0000-0000-0000000000a0 0/23374MiB ?% ?C ?/?W",
		"1 MLU370-X8 ? id=1e000000-0000-0000-0000-0000000000a1 0/?MiB ?% ?C ?/?W")
}

func TestParse_UnknownForThatFieldAlone(t *testing.T) {
	t.Parallel()
	r := cambricon.Parse(`cndev: sensor not ready
+------------------------------------------------------------------------------+
| CNMON v5.10.22                                               Driver v5.10.22 |
+-------------------------------+----------------------+-----------------------+
| Card  VF  Name       Firmware |               Bus-Id | Util        Ecc-Error |
| Fan   Temp      Pwr:Usage/Cap |         Memory-Usage | Mode     Compute-Mode |
|===============================+======================+=======================|
| 0     /   MLU370-X8    v1.1.6 |         0000:13:00.0 | ERR!              N/A |
|  N/A  N/A          N/A/ 250 W |     N/A  / 20638 MiB | FULL          Default |
+-------------------------------+----------------------+-----------------------+
+------------------------------------------------------------------------------+
| Processes:                                                                   |
|  Card  MI  PID     Command Line                             MLU Memory Usage |
|==============================================================================|
|  0     /   4711    python train.py                                   512 MiB |
+------------------------------------------------------------------------------+
`)
	brandtest.Want(t, r, "0 MLU370-X8 0000:13:00.0 ?/20638MiB ?% ?C ?/250W")
	if p := r.Cards[0].Processes; len(p) != 1 || p[0].PID != 4711 || *p[0].MemoryMiB != 512 {
		t.Errorf("processes %v", p)
	}
	for _, out := range []string{"", "cnmon: no device", "Card\n"} {
		brandtest.Want(t, cambricon.Parse(out))
	}
}

func tool(t *testing.T, answers map[string]string) string {
	t.Helper()
	all := map[string]brandtest.Answer{}
	for args, file := range answers {
		all[args] = brandtest.Answer{Text: brandtest.Recorded(t, file)}
	}
	return brandtest.Tool(t, "cnmon", all)
}

func detector(root, tool string) *brand.Detector {
	return brand.New(cambricon.Spec(), brand.Config{Root: root, Tool: tool}, hclog.NewNullLogger())
}

func TestDetect(t *testing.T) {
	t.Parallel()
	x8 := tool(t, map[string]string{"": "table-mlu370x8-5.10.13.txt", "info": "written-info.txt"})
	cards := brandtest.WantCards(t, detector(t.TempDir(), x8),
		"0 cambricon/gpu/MLU370-X8 MLU-1e000000-0000-0000-0000-0000000000a0 23374 ok",
		"1 cambricon/gpu/MLU370-X8 MLU-1e000000-0000-0000-0000-0000000000a1 23374 ok")
	if c := cards[1]; c.PCIAddress != "0000:3d:00.0" || c.DriverVersion != "5.10.13" {
		t.Errorf("card %+v", c)
	}
	// The tool writes JSON into a file of the folder it runs in, whoever that belongs to: it must not be asked.
	played := brandtest.Install(t, t.TempDir(), "cnmon")
	played.Play(t, map[string]brandtest.Answer{"*": {Text: brandtest.Recorded(t, "table-mlu370x8-5.10.13.txt")}})
	if _, err := detector(t.TempDir(), played.Path).Detect(context.Background()); err != nil {
		t.Fatal(err)
	}
	if calls := strings.Join(played.Calls(t), " "); strings.Contains(calls, "-j") {
		t.Errorf("calls %q", calls)
	}
	x4 := detector(t.TempDir(), tool(t, map[string]string{"": "table-mlu370x4-4.20.11.txt"}))
	cards = brandtest.WantCards(t, x4,
		"0 cambricon/gpu/MLU370-X4 INDEX-0 23308 ok", "1 cambricon/gpu/MLU370-X4 INDEX-1 23308 ok", "2 cambricon/gpu/MLU370-X4 INDEX-2 23308 ok")
	if diff := cmp.Diff([]string{"/dev/cambricon_dev2"}, x4.Nodes(cards[2])); diff != "" {
		t.Error(diff)
	}
	processes, err := x4.Processes(context.Background(), cards[:1])
	if diff := cmp.Diff(map[string][]int{"INDEX-0": {}}, processes); diff != "" || err != nil {
		t.Errorf("processes %v %s", err, diff)
	}
	samples, err := x4.Sample(context.Background(), cards)
	if s := samples["INDEX-1"]; err != nil || *s.PowerW != 25 || *s.PowerLimitW != 150 || *s.TemperatureC != 33 {
		t.Errorf("samples %v %v", samples, err)
	}
}

// A host without the tool, and the older maker's folder that does not tell anything, is read from the kernel.
func TestDetect_KernelAlone(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	brandtest.Bus(t, root, "0000:13:00.0", "cabc", "0370", "cambricon", "01")
	brandtest.WantCards(t, detector(root, "no-such-cnmon"), "-1 cambricon/gpu/unknown PCI-0000:13:00.0 ? ok")
}

func TestDetect_HangingTool(t *testing.T) {
	t.Parallel()
	path := brandtest.Tool(t, "cnmon", map[string]brandtest.Answer{"": {Hang: true}})
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if cards, err := detector(t.TempDir(), path).Detect(ctx); err == nil {
		t.Errorf("cards %v from a tool that hangs", cards)
	}
}

func TestDetector_Suite(t *testing.T) {
	t.Parallel()
	detectortest.Run(t, detector(t.TempDir(), tool(t, map[string]string{"": "table-mlu370x8-5.10.22.txt", "info": "written-info.txt"})))
}

func FuzzParse(f *testing.F) { brandtest.Fuzz(f, cambricon.Spec(), cambricon.Parse) }

// Not parallel: it counts what the process allocates.
func TestParse_Frugal(t *testing.T) { brandtest.Frugal(t, cambricon.Parse) }

func BenchmarkParse_OneMiB(b *testing.B) { brandtest.Benchmark(b, cambricon.Parse) }

func TestParse_TheOtherNumbers(t *testing.T) {
	t.Parallel()
	brandtest.WantMore(t, cambricon.Parse, map[string][]string{
		"table-mlu370x8-5.10.22.txt": {"FanPct=0", "FanPct=0"},
		"table-mlu370x8-5.10.13.txt": {"FanPct=0"},
		"table-mlu370x4-4.20.11.txt": {"FanPct=0"},
	})
}

// The text is written after what public reports tell of the tool.
func TestLinks_ByTheTool(t *testing.T) {
	t.Parallel()
	brandtest.WantLink(t, cambricon.Spec(), "topo -m", "MLU0 MLU1\nMLU0 X MLK\nMLU1 MLK X\n", "MLU0", "MLU1", "mlulink")
}

// A card with instances is withdrawn for them; their size is not known. The mode is what the tool shows, not what a card can do.
func TestDetect_Instances(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	brandtest.Files(t, root, map[string]string{
		"dev/cambricon-caps/cap_dev0_mi1": "", "dev/cambricon-caps/cap_dev0_mi0": "", "dev/cambricon-caps/cap_dev10_mi0": "", "dev/cambricon-caps/other": "",
	})
	body := strings.Replace(brandtest.Recorded(t, "table-mlu370x8-5.10.22.txt"), "FULL", "SMLU", 1)
	d := detector(root, brandtest.Tool(t, "cnmon", map[string]brandtest.Answer{"": {Text: body}}))
	detectortest.Run(t, d)
	short := accel.ShortID(accel.Cambricon, "PCI-0000:13:00.0")
	cards := brandtest.WantCards(t, d,
		"0 cambricon/card/MLU370-X8-"+short+" PCI-0000:13:00.0 20638 ok", "1 cambricon/gpu/MLU370-X8 PCI-0000:16:00.0 20638 ok",
		"-1 cambricon/gpu/MLU370-X8 MI PCI-0000:13:00.0-mi0 ? ok", "-1 cambricon/gpu/MLU370-X8 MI PCI-0000:13:00.0-mi1 ? ok")
	if cards[0].Sources["modes/smlu"] != "cli" || len(cards[1].Modes) != 0 || cards[3].Parent != cards[0].UUID {
		t.Errorf("cards %+v", cards)
	}
	if nodes := d.Nodes(cards[3]); len(nodes) != 1 || nodes[0] != "/dev/cambricon-caps/cap_dev0_mi1" {
		t.Errorf("nodes %v", nodes)
	}
}

func TestParse_WhatSaysNothingIsUnknownAlone(t *testing.T) {
	t.Parallel()
	brandtest.Unknowns(t, cambricon.Parse, func(brand.Card) []string { return nil })
}

func TestParse_BlanksAndLinesBefore(t *testing.T) {
	t.Parallel()
	brandtest.LinesBefore(t, cambricon.Parse)
	brandtest.Blanks(t, cambricon.Parse, func(brand.Card) []string { return nil }, map[string]string{
		"table-*.txt": brandtest.SharedCell,
	})
}
