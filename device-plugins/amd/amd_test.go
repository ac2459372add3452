package amd_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/amd"
	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/brand/brandtest"
	"github.com/heteroflow/heteroflow/device-plugins/device/detectortest"
)

func parse(t *testing.T, file string) brand.Reading {
	t.Helper()
	return amd.Parse(brandtest.Recorded(t, file))
}

func TestParse_Recorded(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		want   []string
		facts  []map[string]string // of the cards, in their order
		driver string
	}{
		"rocm-smi-mi100_rocm602.json": {
			want: []string{
				"0 Arcturus GL-XL [Instinct MI100] 0000:83:00.0 id=79ccd55167a2124a 6/32752MiB 0% 53C 36/290W",
				"1 Arcturus GL-XL [Instinct MI100] 0000:a3:00.0 id=04edfb117a17a07d 6/32752MiB 0% 55C 44/290W",
				"2 Arcturus GL-XL [Instinct MI100] 0000:c3:00.0 id=d4a9ec48d03d261d 6/32752MiB 0% 54C 43/290W",
				"3 Arcturus GL-XL [Instinct MI100] 0000:e3:00.0 id=1b9dd972253c3736 6/32752MiB 0% 51C 39/290W",
			},
			facts: []map[string]string{{"device_id": "0x738c"}, {"device_id": "0x738c"}, {"device_id": "0x738c"}, {"device_id": "0x738c"}}, driver: "6.3.6",
		},
		"rocm-smi-rx6700xt_rocm430.json": {
			want:  []string{"0 ? 0000:07:00.0 1547/12272MiB 0% 45C 6/211W"},
			facts: []map[string]string{{"device_id": "0x73df"}}, driver: "6.3.6",
		},
		"rocm-smi-rx6700xt_rocm612.json": {
			want:  []string{"0 Navi 22 [Radeon RX 6700/6700 XT / 6800M] 0000:07:00.0 1499/12272MiB 0% 45C 6/211W"},
			facts: []map[string]string{{"device_id": "0x73df"}}, driver: "6.3.6",
		},
		"rocm-smi-vega-20-WKS-GL-XE.json": {
			want: []string{"0 Radeon Instinct MI50 32GB 0000:63:00.0 id=02f048617326b1ea 10/32752MiB 0% 36C 26/225W"}, driver: "5.9.17",
		},
		"rocm-smi-rx7800xt-6.2.4.json": {want: []string{"0 Navi 32 [Radeon RX 7700 XT / 7800 XT] ? id=5c88007d760374f3 11077/16368MiB 100% 45C 53/?W"}},
		"rocm-smi-concise-mixed-6.1.txt": {
			want:  []string{"0 ? ? ?/?MiB 0% 43C 6/150W", "1 ? ? ?/?MiB 0% 34C 8/213W"},
			facts: []map[string]string{{"device_id": "0x73bf", "guid": "34495", "vram": "3%"}, {"device_id": "0x73a3", "guid": "22215", "vram": "0%"}},
		},
		"rocm-smi-concise-mi250-5.7.txt": {
			want: []string{
				"0 ? ? ?/?MiB 0% 39C 92/560W", "1 ? ? ?/?MiB 0% 28C ?/?W", "2 ? ? ?/?MiB 0% 34C 91/560W", "3 ? ? ?/?MiB 0% 36C ?/?W",
				"4 ? ? ?/?MiB 0% 33C 97/560W", "5 ? ? ?/?MiB 0% 35C ?/?W", "6 ? ? ?/?MiB 0% 41C 100/560W", "7 ? ? ?/?MiB 0% 37C ?/?W",
			},
			facts: []map[string]string{ // the power of a board is told with its first die
				{"power_cap": "560.0W"},
				{"power_cap": "0.0W"},
				{"power_cap": "560.0W"},
				{"power_cap": "0.0W"},
				{"power_cap": "560.0W"},
				{"power_cap": "0.0W"},
				{"power_cap": "560.0W"},
				{"power_cap": "0.0W"},
			},
		},
		"rocm-smi-concise-mi300a-degree-sign.txt": {
			want: []string{"0 ? ? ?/?MiB 0% 48C 110/550W", "1 ? ? ?/?MiB 0% 53C 113/550W", "2 ? ? ?/?MiB 0% 52C 125/550W", "3 ? ? ?/?MiB 0% 47C 115/550W"},
			facts: []map[string]string{
				{"device_id": "0x74a0", "guid": "50375", "memory_partition": "NPS1", "compute_partition": "SPX", "partition_id": "0"},
				{"device_id": "0x74a0", "guid": "20890", "memory_partition": "NPS1", "compute_partition": "SPX", "partition_id": "0"},
				{"device_id": "0x74a0", "guid": "44670", "memory_partition": "NPS1", "compute_partition": "SPX", "partition_id": "0"},
				{"device_id": "0x74a0", "guid": "15139", "memory_partition": "NPS1", "compute_partition": "SPX", "partition_id": "0"},
			},
		},
		"rocm-smi-showid-mi300a.txt": {
			want: []string{
				"0 Aqua Vanjaram [Instinct MI300A] ? ?/?MiB ?% ?C ?/?W", "1 Aqua Vanjaram [Instinct MI300A] ? ?/?MiB ?% ?C ?/?W",
				"2 Aqua Vanjaram [Instinct MI300A] ? ?/?MiB ?% ?C ?/?W", "3 Aqua Vanjaram [Instinct MI300A] ? ?/?MiB ?% ?C ?/?W",
			},
			facts: []map[string]string{
				{"device_id": "0x74a0", "guid": "60294"}, {"device_id": "0x74a0", "guid": "35406"}, {"device_id": "0x74a0", "guid": "10263"}, {"device_id": "0x74a0", "guid": "52959"},
			},
		},
		"rocm-smi-showproductname-mi300x-sriov.txt": {
			want:  []string{"0 AMD Instinct MI300X OAM ? ?/?MiB ?% ?C ?/?W"},
			facts: []map[string]string{{"card_model": "0x74a1", "card_sku": "MI3SRIOV"}},
		},
		"rocm-smi-showproductname-mi250x.json": {
			want:  []string{"0 AMD INSTINCT MI200 (MCM) OAM LC MBA HPE C2 ? ?/?MiB ?% ?C ?/?W"},
			facts: []map[string]string{{"card_model": "0x7408", "gfx_version": "gfx9010", "guid": "58294"}},
		},
		"rocm-smi-showmeminfo-vram-with-igpu.json": {want: []string{"0 ? ? 25/8176MiB ?% ?C ?/?W", "1 ? ? 353/512MiB ?% ?C ?/?W"}},
		"amd-smi-list-mi300-partition.txt": {
			want: []string{"0 ? 0000:23:00.0 ?/?MiB ?% ?C ?/?W", "1 ? 0000:26:00.0 ?/?MiB ?% ?C ?/?W"},
			facts: []map[string]string{
				{"kfd_id": "45412", "node_id": "1", "partition_id": "0", "uuid": ""}, {"kfd_id": "59881", "node_id": "2", "partition_id": "0", "uuid": ""},
			},
		},
		"amd-smi-static-asic-mi308x.txt": {
			want:  []string{"0 MI308X ? ?/?MiB ?% ?C ?/?W"},
			facts: []map[string]string{{"device_id": "0x74a2", "compute_units": "20", "gfx_version": "gfx942", "oam": "5"}},
		},
		"amd-smi-static-partition-cpx.txt": {
			want:  []string{"0 ? ? ?/?MiB ?% ?C ?/?W"},
			facts: []map[string]string{{"compute_partition": "CPX", "memory_partition": "NPS4", "partition_id": "0"}},
		},
		"amd-smi-monitor-q.txt": {want: []string{"0 ? ? 1235/16335MiB 99% 103C 199/?W"}},
		"amd-smi-list-strix-halo.json": {
			want:  []string{"0 ? 0000:c4:00.0 ?/?MiB ?% ?C ?/?W"},
			facts: []map[string]string{{"uuid": "00ff1586-0000-1000-8000-000000000000", "kfd_id": "42905"}},
		},
		"amd-smi-static-strix-halo.json": {
			want:   []string{"0 Strix Halo [Radeon Graphics / Radeon 8050S Graphics / Radeon 8060S Graphics] 0000:c4:00.0 ?/32768MiB ?% ?C ?/?W"},
			facts:  []map[string]string{{"oam": "", "compute_partition": "", "compute_units": "40"}},
			driver: "6.17.1-300.fc43.x86_64",
		},
		"amd-smi-static-mi300a-with-cpus.txt": {
			want: []string{
				"0 MI300A 0000:01:00.0 id=7e8f7e20764e2714 ?/64289MiB ?% ?C ?/550W", "1 MI300A 0001:01:00.0 id=b6ae7c8cefe1f084 ?/64289MiB ?% ?C ?/550W",
				"2 MI300A 0002:01:00.0 id=367125d815189854 ?/64289MiB ?% ?C ?/550W", "3 MI300A 0003:01:00.0 id=f4c44c2be5e66537 ?/64289MiB ?% ?C ?/550W",
			},
			facts: []map[string]string{
				{"device_id": "0x74a0", "compute_partition": "SPX", "memory_partition": "NPS1"},
				{"device_id": "0x74a0", "compute_partition": "SPX", "memory_partition": "NPS1"},
				{"device_id": "0x74a0", "compute_partition": "SPX", "memory_partition": "NPS1"},
				{"device_id": "0x74a0", "compute_partition": "SPX", "memory_partition": "NPS1"},
			},
			driver: "6.9.0-rc5+",
		},
	}
	for file, tc := range cases {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			r := parse(t, file)
			brandtest.Want(t, r, tc.want...)
			for i, facts := range tc.facts {
				brandtest.WantFacts(t, r.Cards[i].Facts, facts)
			}
			if r.Driver != tc.driver || r.Foreign {
				t.Errorf("driver %q, foreign %v", r.Driver, r.Foreign)
			}
		})
	}
}

func TestParse_RecordedPartitions(t *testing.T) {
	t.Parallel()
	r := parse(t, "rocm-smi-showhw-mi300a-tpx.txt")
	if len(r.Cards) != 12 {
		t.Fatalf("%d cards", len(r.Cards))
	}
	for i, c := range r.Cards {
		want := map[string]string{"partition_id": fmt.Sprint(i % 3), "node_id": fmt.Sprint(4 + i), "device_id": "0x74a0"}
		brandtest.WantFacts(t, c.Facts, want)
		if pci := fmt.Sprintf("%04d:01:00.0", i/3); c.PCI != pci || *c.Index != i {
			t.Errorf("card %d is %d at %s, want %s", i, *c.Index, c.PCI, pci)
		}
	}
	r = parse(t, "amd-smi-monitor-ptv-cpx.txt")
	if len(r.Cards) != 32 || r.ProcessesKnown {
		t.Fatalf("%d cards", len(r.Cards))
	}
	for i, c := range r.Cards {
		if *c.Index != i || *c.MemoryUsedMiB != 283 || *c.MemoryMiB != 196300 {
			t.Errorf("card %s", brandtest.Line(c))
		}
	}
	if *r.Cards[0].PowerW != 248 || *r.Cards[31].PowerW != 227 || *r.Cards[19].TemperatureC != 51 {
		t.Error("live numbers")
	}
	q := parse(t, "amd-smi-monitor-q.txt")
	if p := q.Cards[0].Processes; !q.ProcessesKnown || len(p) != 1 || p[0].Name != "rvs" || p[0].PID != 1564865 || *p[0].MemoryMiB != 1126 {
		t.Errorf("processes %+v", p)
	}
}

func TestParse_HygonsToolOfTheSameName(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"foreign-hygon-table-hcu-k100ai-4cards.txt", "foreign-hygon-showproductname-bw.json"} {
		if r := parse(t, file); !r.Foreign {
			t.Errorf("%s: %+v", file, r)
		}
	}
}

func TestParse_UnknownForThatFieldAlone(t *testing.T) {
	t.Parallel()
	// An idle card in its low power state: it stays good, its numbers are unknown.
	brandtest.Want(t, amd.Parse(`Expected integer value from monitor, but got ""
Expected integer value from monitor, but got ""
====== ROCm System Management Interface ======
GPU  Temp (DieEdge)  AvgPwr  SCLK    MCLK     Fan  Perf  PwrCap  VRAM%  GPU%
0    N/A             N/A     None    None     0%   auto  N/A     N/A    N/A
1    28.0c           90.0W   800Mhz  1600Mhz  0%   auto  560.0W  0%     7%
`), "0 ? ? ?/?MiB ?% ?C ?/?W", "1 ? ? ?/?MiB 7% 28C 90/560W")
	// A banner before the JSON, the newer wrapping, and errors in place of values.
	brandtest.Want(t, amd.Parse(`Permission needed to access required GPU device node(s): /dev/dri/renderD128
{"gpu_data": [{"gpu": 0, "asic": {"market_name": "MI355X", "asic_serial": "N/A"}, "bus": {"bdf": "0000:05:00.0"},
 "driver": {"version": "AMDSMI_STATUS_FILE_ERROR - Problem accessing a file"}, "vram": {"size": "N/A"}, "limit": {"socket_power": {"value": 0, "unit": "W"}, "max_power": {"value": 1400, "unit": "W"}}}]}
`), "0 MI355X 0000:05:00.0 ?/?MiB ?% ?C ?/1400W")
	if r := amd.Parse("No JSON data to report\n"); r.Trouble == "" {
		t.Error("a tool without a driver is not understood")
	}
	for _, out := range []string{"", "[]", "{}", "[1]", "WARNING: No AMD GPUs specified"} {
		brandtest.Want(t, amd.Parse(out))
	}
}

const full = "-i --showproductname --showuniqueid --showbus --showmeminfo vram --showuse --showtemp --showpower --showmaxpower --showdriverversion --json"

func tool(t *testing.T, name string, answers map[string]string) string {
	t.Helper()
	all := map[string]brandtest.Answer{}
	for args, file := range answers {
		all[args] = brandtest.Answer{Text: brandtest.Recorded(t, file)}
	}
	return brandtest.Tool(t, name, all)
}

func detector(root, tool string) *brand.Detector {
	return brand.New(amd.Spec(), brand.Config{Root: root, Tool: tool}, hclog.NewNullLogger())
}

func TestDetect_ROCmSMI(t *testing.T) {
	t.Parallel()
	mi100 := detector(t.TempDir(), tool(t, "rocm-smi", map[string]string{full: "rocm-smi-mi100_rocm602.json"}))
	cards := brandtest.WantCards(t, mi100,
		"0 amd/gpu/MI100 GPU-79ccd55167a2124a 32752 ok", "1 amd/gpu/MI100 GPU-04edfb117a17a07d 32752 ok",
		"2 amd/gpu/MI100 GPU-d4a9ec48d03d261d 32752 ok", "3 amd/gpu/MI100 GPU-1b9dd972253c3736 32752 ok")
	samples, err := mi100.Sample(context.Background(), cards)
	if s := samples["GPU-04edfb117a17a07d"]; err != nil || *s.PowerW != 44 || *s.PowerLimitW != 290 || *s.MemoryUsedMiB != 6 {
		t.Errorf("sample %+v, %v", s, err)
	}
	if processes, err := mi100.Processes(context.Background(), cards); err != nil || len(processes) != 0 {
		t.Errorf("processes %v, %v: rocm-smi was not asked for them", processes, err)
	}
	// An old tool that knows the table only.
	old := detector(t.TempDir(), tool(t, "rocm-smi", map[string]string{"": "rocm-smi-concise-mixed-6.1.txt"}))
	brandtest.WantCards(t, old, "0 amd/gpu/unknown INDEX-0 ? ok", "1 amd/gpu/unknown INDEX-1 ? ok")
	// The numbers of amd-smi alone do not tell boards from parts: nothing is known of the cards.
	numbers := detector(t.TempDir(), tool(t, "amd-smi", map[string]string{"monitor -q": "amd-smi-monitor-ptv-cpx.txt"}))
	if cards, err := numbers.Detect(context.Background()); err == nil {
		t.Errorf("cards %v", cards)
	}
	// The graphics of the processor is no accelerator.
	brandtest.WantCards(t, detector(t.TempDir(), tool(t, "rocm-smi", map[string]string{full: "rocm-smi-showmeminfo-vram-with-igpu.json"})), "0 amd/gpu/unknown INDEX-0 8176 ok")
	// Three parts of each of four boards share the address of the board.
	tpx := brandtest.WantCards(t, detector(t.TempDir(), tool(t, "rocm-smi", map[string]string{"--showhw": "rocm-smi-showhw-mi300a-tpx.txt"})), parts(12)...)
	if c := tpx[4]; c.Form != "partition" || c.PCIAddress != "0001:01:00.0" {
		t.Errorf("card %+v", c)
	}
}

// parts are the cards of four boards in three parts each.
func parts(n int) []string {
	var lines []string
	for i := range n {
		lines = append(lines, fmt.Sprintf("%d amd/gpu/unknown partition GPU-%04d:01:00.0-%d ? ok", i, i/3, i%3))
	}
	return lines
}

func TestDetect_AMDSMI(t *testing.T) {
	t.Parallel()
	mi300a := tool(t, "amd-smi", map[string]string{"static": "amd-smi-static-mi300a-with-cpus.txt"})
	brandtest.WantCards(t, detector(t.TempDir(), mi300a),
		"0 amd/gpu/MI300A GPU-7e8f7e20764e2714 64289 ok", "1 amd/gpu/MI300A GPU-b6ae7c8cefe1f084 64289 ok",
		"2 amd/gpu/MI300A GPU-367125d815189854 64289 ok", "3 amd/gpu/MI300A GPU-f4c44c2be5e66537 64289 ok")
	// Every such machine has the same UUID: the card is named by its place.
	halo := tool(t, "amd-smi", map[string]string{"static --json": "amd-smi-static-strix-halo.json", "list --json": "amd-smi-list-strix-halo.json"})
	brandtest.WantCards(t, detector(t.TempDir(), halo),
		"0 amd/gpu/Radeon-Graphics-Radeon-8050S-Graphics-Radeon-8060S-Graphics PCI-0000:c4:00.0 32768 ok")
	busy := detector(t.TempDir(), tool(t, "amd-smi", map[string]string{"list": "amd-smi-list-mi300-partition.txt", "monitor -q": "amd-smi-monitor-q.txt"}))
	cards, err := busy.Detect(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	processes, err := busy.Processes(context.Background(), cards)
	if diff := cmp.Diff(map[string][]int{"PCI-0000:23:00.0": {1564865}, "PCI-0000:26:00.0": {}}, processes); diff != "" || err != nil {
		t.Errorf("processes %v %s", err, diff)
	}
}

// kfdMachine is a root with the recorded topology of two boards in four parts each.
func kfdMachine(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	if err := os.CopyFS(filepath.Join(root, "sys/class/kfd/kfd/topology"), os.DirFS("../kfd/testdata/kfd-topology-mi308x")); err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"0000:0a:00.0", "0001:0b:00.0"} {
		brandtest.Bus(t, root, address, "1002", "74a2", "amdgpu", "01")
		brandtest.Files(t, root, map[string]string{"sys/bus/pci/devices/" + address + "/current_compute_partition": "CPX"})
	}
	return root
}

func TestDetect_KernelAloneListsPartitions(t *testing.T) {
	t.Parallel()
	d := detector(kfdMachine(t), "no-such-rocm-smi")
	var want []string
	for i := range 8 {
		board := "084cafeae17e7696"
		if i > 3 {
			board = "f263c618bb387ecb"
		}
		memory := 49152
		if i%4 == 3 {
			memory = 49136 // the last part of a board has 16 MiB less
		}
		want = append(want, fmt.Sprintf("%d amd/gpu/MI308X CPX GPU-%s-%d %d ok", i, board, i%4, memory))
	}
	cards := brandtest.WantCards(t, d, want...)
	if c := cards[5]; c.Sources["memory"] != "sysfs" || c.Sources["uuid"] != "sysfs" || c.NUMANode == nil {
		t.Errorf("card %+v", c)
	}
	if diff := cmp.Diff([]string{"/dev/kfd", "/dev/dri/renderD161"}, d.Nodes(cards[5])); diff != "" {
		t.Error(diff)
	}
}

// The tool prints the memory of the board with each part; the kernel knows that of the part.
func TestDetect_KernelCompletesTheTool(t *testing.T) {
	t.Parallel()
	static := `[{"gpu": 0, "asic": {"market_name": "MI308X", "asic_serial": "0x84CAFEAE17E7696"}, "bus": {"bdf": "0000:0a:00.0"}, "vram": {"size": {"value": 196300, "unit": "MB"}}, "partition": {"compute_partition": "CPX", "partition_id": 0}},
{"gpu": 1, "asic": {"market_name": "MI308X", "asic_serial": "0x84CAFEAE17E7696"}, "bus": {"bdf": "0000:0a:00.1"}, "vram": {"size": {"value": 196300, "unit": "MB"}}, "partition": {"compute_partition": "CPX", "partition_id": 1}}]`
	path := brandtest.Tool(t, "amd-smi", map[string]brandtest.Answer{
		"static --json": {Text: static}, "monitor -p -t -v": {Text: brandtest.Recorded(t, "amd-smi-monitor-ptv-cpx.txt")},
	})
	d := detector(kfdMachine(t), path)
	cards := brandtest.WantCards(t, d,
		"0 amd/gpu/MI308X CPX GPU-084cafeae17e7696-0 49152 ok", "1 amd/gpu/MI308X CPX GPU-084cafeae17e7696-1 49152 ok",
		"-1 amd/gpu/MI308X PCI-0001:0b:00.0 ? "+brand.ReasonUnreported)
	if c := cards[1]; c.Sources["memory"] != "sysfs" || c.Sources["model"] != "cli" {
		t.Errorf("sources %v", c.Sources)
	}
	samples, err := d.Sample(context.Background(), cards)
	if s := samples[cards[1].UUID]; err != nil || s.PowerW != nil || s.MemoryUsedMiB != nil || *s.TemperatureC != 55 {
		t.Errorf("a part has the numbers of its board: %+v, %v", s, err)
	}
}

func TestDetect_HangingTool(t *testing.T) {
	t.Parallel()
	path := brandtest.Tool(t, "rocm-smi", map[string]brandtest.Answer{full: {Hang: true}})
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if cards, err := detector(t.TempDir(), path).Detect(ctx); err == nil {
		t.Errorf("cards %v from a tool that hangs", cards)
	}
}

func TestDetector_Suite(t *testing.T) {
	t.Parallel()
	detectortest.Run(t, detector(t.TempDir(), tool(t, "rocm-smi", map[string]string{full: "rocm-smi-mi100_rocm602.json"})))
	detectortest.Run(t, detector(t.TempDir(), tool(t, "amd-smi", map[string]string{"static": "amd-smi-static-mi300a-with-cpus.txt"})))
	detectortest.Run(t, detector(kfdMachine(t), "no-such-rocm-smi"))
}

func FuzzParse(f *testing.F) { brandtest.Fuzz(f, amd.Spec(), amd.Parse) }

// Not parallel: it counts what the process allocates.
func TestParse_Frugal(t *testing.T) { brandtest.Frugal(t, amd.Parse) }

func BenchmarkParse_OneMiB(b *testing.B) { brandtest.Benchmark(b, amd.Parse) }

func TestParse_TheOtherNumbers(t *testing.T) {
	t.Parallel()
	brandtest.WantMore(t, amd.Parse, map[string][]string{
		"rocm-smi-mi100_rocm602.json":             {"MemoryUtilizationPct=0 MemoryTemperatureC=53 ClockMHz=300 MemoryClockMHz=1200 PCIeReplays=0", "MemoryUtilizationPct=0 MemoryTemperatureC=54 ClockMHz=300 MemoryClockMHz=1200 PCIeReplays=0"},
		"rocm-smi-rx6700xt_rocm430.json":          {"MemoryUtilizationPct=0 MemoryTemperatureC=46 ClockMHz=500 MemoryClockMHz=96 PCIeReplays=0"},
		"rocm-smi-rx6700xt_rocm612.json":          {"MemoryUtilizationPct=0 MemoryTemperatureC=46 ClockMHz=0 MemoryClockMHz=96 PCIeReplays=0"},
		"rocm-smi-vega-20-WKS-GL-XE.json":         {"MemoryUtilizationPct=0 MemoryTemperatureC=35 ClockMHz=1725 MemoryClockMHz=1000 FanPct=0 PCIeReplays=0"},
		"rocm-smi-rx7800xt-6.2.4.json":            {"MemoryTemperatureC=54"},
		"rocm-smi-concise-mi250-5.7.txt":          {"ClockMHz=800 MemoryClockMHz=1600 FanPct=0"},
		"rocm-smi-concise-mixed-6.1.txt":          {"ClockMHz=0 MemoryClockMHz=96 FanPct=0", "ClockMHz=0 MemoryClockMHz=96 FanPct=20"},
		"rocm-smi-concise-mi300a-degree-sign.txt": {"ClockMHz=98 MemoryClockMHz=1300 FanPct=0", "ClockMHz=99 MemoryClockMHz=1200 FanPct=0"},
		"amd-smi-monitor-q.txt":                   {"MemoryUtilizationPct=31 MemoryTemperatureC=84 ClockMHz=1920 MemoryClockMHz=1000 PCIeReplays=0 ECCCorrected=0 ECCUncorrected=0"},
		"amd-smi-monitor-ptv-cpx.txt":             {"MemoryTemperatureC=48"},
		"amd-smi-list-strix-halo.json":            {""},
	})
}

func TestParse_WhatSaysNothingIsUnknownAlone(t *testing.T) {
	t.Parallel()
	brandtest.Unknowns(t, amd.Parse, func(brand.Card) []string { return nil }, "TemperatureC") // the junction's for the edge's
}

func TestParse_BlanksAndLinesBefore(t *testing.T) {
	t.Parallel()
	brandtest.LinesBefore(t, amd.Parse)
	brandtest.Blanks(t, amd.Parse, func(brand.Card) []string { return nil }, map[string]string{
		"rocm-smi-concise-*.txt": brandtest.NoBars,
		"amd-smi-monitor-*.txt":  brandtest.NoBars,
		"rocm-smi-showhw-*.txt":  brandtest.NoBars,
	}, "TemperatureC")
}
