package nvidia

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func recorded(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "recorded", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func ptr[T any](v T) *T { return &v }

// numbers is what (processes that only draw are not counted) a recording says of one card, in the order of SAMPLES: nil is unknown.
type numbers struct {
	Index                   *int
	Name, PCI, Dead         string
	Total, Used             *uint64
	Util, Heat, Power       *float64
	MIG                     *bool
	Partitions              int
	PartitionMiB            []uint64
	Driver                  string
	Processes               int
	ProcessesKnown, NameCut bool
}

func summary(r report, i int) numbers {
	g := r.gpus[i]
	n := numbers{
		Index: g.index, Name: g.name, PCI: g.pci, Dead: g.dead, Total: g.memory, Used: g.memoryUsed, Util: g.utilization,
		Heat: g.temperature, Power: g.power, MIG: g.migMode, Partitions: len(g.migs), Driver: r.driver,
		Processes: len(r.processes), ProcessesKnown: r.processesKnown, NameCut: g.nameCut,
	}
	for _, m := range g.migs {
		if m.memory != nil {
			n.PartitionMiB = append(n.PartitionMiB, *m.memory)
		}
	}
	return n
}

func TestParse_RecordedOutputs(t *testing.T) {
	t.Parallel()
	h100 := []uint64{40448, 20096, 9984, 9984}
	cases := map[string]struct {
		want numbers
	}{
		"table-h100-80gb-idle.txt":                    {numbers{Index: ptr(0), Name: "NVIDIA H100 80GB HBM3", PCI: "0000:00:09.0", Total: ptr[uint64](81559), Used: ptr[uint64](0), Util: ptr(0.), Heat: ptr(41.), Power: ptr(69.), MIG: ptr(false), Driver: "590.48.01", ProcessesKnown: true}},
		"table-h200-load.txt":                         {numbers{Index: ptr(0), Name: "NVIDIA H200", PCI: "0000:83:00.0", Total: ptr[uint64](143771), Used: ptr[uint64](32362), Util: ptr(100.), Heat: ptr(52.), Power: ptr(628.), MIG: ptr(false), Driver: "590.48.01", Processes: 3, ProcessesKnown: true}},
		"table-h100-mig-load.txt":                     {numbers{Index: ptr(0), Name: "NVIDIA H100 80GB HBM3", PCI: "0000:00:09.0", Total: ptr[uint64](81559), Used: ptr[uint64](11125), Heat: ptr(52.), Power: ptr(432.), MIG: ptr(true), Partitions: 4, PartitionMiB: h100, Driver: "590.48.01", Processes: 3, ProcessesKnown: true}},
		"table-rtx4080s-load.txt":                     {numbers{Index: ptr(0), Name: "NVIDIA GeForce RTX 4080 ...", NameCut: true, PCI: "0000:01:00.0", Total: ptr[uint64](16376), Used: ptr[uint64](1474), Util: ptr(7.), Heat: ptr(45.), Power: ptr(83.), Driver: "595.71.05", Processes: 3, ProcessesKnown: true}},
		"table-rtx2080s-driver610-idle.txt":           {numbers{Index: ptr(0), Name: "NVIDIA GeForce RTX 2080 ...", NameCut: true, PCI: "0000:0c:00.0", Total: ptr[uint64](8192), Used: ptr[uint64](211), Util: ptr(0.), Heat: ptr(33.), Power: ptr(38.), Driver: "610.57.04", ProcessesKnown: true}},
		"table-rtxpro6000-hami-limited-driver610.txt": {numbers{Index: ptr(0), Name: "NVIDIA RTX PRO 6000 Blac...", NameCut: true, PCI: "0000:05:00.0", Total: ptr[uint64](8000), Used: ptr[uint64](0), Util: ptr(0.), Heat: ptr(34.), Power: ptr(48.), MIG: ptr(false), Driver: "610.43.02"}},
		"table-a30-mig-driver535.txt":                 {numbers{Index: ptr(0), Name: "NVIDIA A30", PCI: "0000:0b:00.0", Total: ptr[uint64](24576), Used: ptr[uint64](50), Heat: ptr(47.), Power: ptr(32.), MIG: ptr(true), Partitions: 3, PartitionMiB: []uint64{11968, 5952, 5952}, Driver: "535.183.01", ProcessesKnown: true}},
		"table-h100nvl-mig-driver560.txt":             {numbers{Index: ptr(0), Name: "NVIDIA H100 NVL", PCI: "0001:00:00.0", Total: ptr[uint64](95830), Used: ptr[uint64](64), Heat: ptr(31.), Power: ptr(62.), MIG: ptr(true), Partitions: 3, PartitionMiB: []uint64{47488, 22144, 11008}, Driver: "560.35.03", ProcessesKnown: true}},
		"list-h100-mig.txt":                           {numbers{Index: ptr(0), Name: "NVIDIA H100 80GB HBM3", Partitions: 4}},
		"list-a30-mig.txt":                            {numbers{Index: ptr(0), Name: "NVIDIA A30", Partitions: 3}},
		"query-h100-mig-load.txt":                     {numbers{Name: "NVIDIA H100 80GB HBM3", PCI: "0000:00:09.0", Total: ptr[uint64](81559), Used: ptr[uint64](11125), Heat: ptr(53.), Power: ptr(432.21), MIG: ptr(true), Partitions: 4, PartitionMiB: h100, Driver: "590.48.01", Processes: 3, ProcessesKnown: true}},
		"query-rtx4080s-load.txt":                     {numbers{Name: "NVIDIA GeForce RTX 4080 SUPER", PCI: "0000:01:00.0", Total: ptr[uint64](16376), Used: ptr[uint64](1474), Util: ptr(7.), Heat: ptr(45.), Power: ptr(84.03), Driver: "595.71.05", Processes: 3, ProcessesKnown: true}},
		"query-gpu-h100-mig-load.csv":                 {numbers{Index: ptr(0), Name: "NVIDIA H100 80GB HBM3", PCI: "0000:00:09.0", Total: ptr[uint64](81559), Used: ptr[uint64](11125), Heat: ptr(53.), Power: ptr(433.78), MIG: ptr(true), Driver: "590.48.01"}},
		"query-gpu-h200-idle.csv":                     {numbers{Index: ptr(0), Name: "NVIDIA H200", PCI: "0000:83:00.0", Total: ptr[uint64](143771), Used: ptr[uint64](0), Util: ptr(0.), Heat: ptr(28.), Power: ptr(77.71), MIG: ptr(false), Driver: "590.48.01"}},
		"query-gpu-rtx4080s-idle.csv":                 {numbers{Index: ptr(0), Name: "NVIDIA GeForce RTX 4080 SUPER", PCI: "0000:01:00.0", Total: ptr[uint64](16376), Used: ptr[uint64](596), Util: ptr(0.), Heat: ptr(43.), Power: ptr(26.20), Driver: "595.71.05"}},
		"query-gpu-l40s-load.csv":                     {numbers{Index: ptr(0), Name: "NVIDIA L40S", PCI: "0000:01:00.0", Total: ptr[uint64](46068), Used: ptr[uint64](1235), Util: ptr(9.), Heat: ptr(54.), Power: ptr(110.23), Driver: "595.80"}},
		"xml-a100-sxm4-v12.xml":                       {numbers{Name: "NVIDIA A100-SXM4-80GB", PCI: "0000:01:00.0", Total: ptr[uint64](81920), Used: ptr[uint64](50), Heat: ptr(27.), Power: ptr(67.03), MIG: ptr(true), Partitions: 4, PartitionMiB: []uint64{19968, 19968, 19968, 19968}, Driver: "535.54.03", ProcessesKnown: true}},
		"xml-a100-sxm4-mig.xml":                       {numbers{Name: "NVIDIA A100-SXM4-40GB", PCI: "0000:00:04.0", Total: ptr[uint64](40960), Used: ptr[uint64](38), Heat: ptr(36.), Power: ptr(66.92), MIG: ptr(true), Partitions: 2, PartitionMiB: []uint64{19968, 19968}, Driver: "510.47.03", ProcessesKnown: true}},
		"xml-a10g.xml":                                {numbers{Name: "NVIDIA A10G", PCI: "0000:00:1e.0", Total: ptr[uint64](23028), Used: ptr[uint64](22), Util: ptr(0.), Heat: ptr(17.), Power: ptr(25.58), Driver: "515.105.01", ProcessesKnown: true}},
		"xml-tesla-t4.xml":                            {numbers{Name: "Tesla T4", PCI: "0000:00:1e.0", Total: ptr[uint64](15360), Used: ptr[uint64](1032), Util: ptr(0.), Heat: ptr(40.), Power: ptr(26.78), Driver: "515.105.01", Processes: 1, ProcessesKnown: true}},
		"xml-tesla-p100.xml":                          {numbers{Name: "Tesla P100-PCIE-16GB", PCI: "0000:00:04.0", Total: ptr[uint64](16384), Used: ptr[uint64](0), Util: ptr(0.), Heat: ptr(38.), Power: ptr(26.16), Driver: "510.47.03", ProcessesKnown: true}},
		"xml-gtx-1070-ti.xml":                         {numbers{Name: "GeForce GTX 1070 Ti", PCI: "0000:01:00.0", Total: ptr[uint64](4096), Used: ptr[uint64](42), Util: ptr(0.), Heat: ptr(39.)}},
		"xml-rtx-3080-v13.xml":                        {numbers{Name: "NVIDIA GeForce RTX 3080", PCI: "0000:0c:00.0", Total: ptr[uint64](10240), Used: ptr[uint64](9184), Util: ptr(65.), Heat: ptr(27.), Power: ptr(142.33), Driver: "595.58.03", ProcessesKnown: true}},
		"error-device-handle-unknown.txt":             {numbers{PCI: "0000:07:00.0", Dead: "nvidia-smi: Unknown Error"}},
		"error-device-handle-unknown-old.txt":         {numbers{PCI: "0000:09:00.0", Dead: "nvidia-smi: Unknown Error"}},
		"error-gpu-lost.txt":                          {numbers{PCI: "0000:05:00.0", Dead: "nvidia-smi: GPU is lost"}},
	}
	for file, tc := range cases {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			r, ok := parse(recorded(t, file))
			if !ok || len(r.gpus) != 1 {
				t.Fatalf("read %d cards, ok %v", len(r.gpus), ok)
			}
			if diff := cmp.Diff(tc.want, summary(r, 0)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestParse_OneOfEightIsDead(t *testing.T) {
	t.Parallel()
	r, ok := parse(recorded(t, "table-a40-one-gpu-err-driver525.txt"))
	if !ok || len(r.gpus) != 8 {
		t.Fatalf("read %d cards", len(r.gpus))
	}
	used := []uint64{0, 0, 821, 0, 0, 3, 3, 3}
	for i, g := range r.gpus {
		if *g.index != i || *g.memory != 46068 || *g.memoryUsed != used[i] {
			t.Errorf("card %d: %+v", i, summary(r, i))
		}
		if (g.dead != "") != (i == 4) || (g.name == "") != (i == 4) {
			t.Errorf("card %d: name %q, dead %q", i, g.name, g.dead)
		}
	}
	dead := summary(r, 4)
	if dead.Heat != nil || dead.Util != nil || dead.Power != nil || dead.PCI != "0000:83:00.0" {
		t.Errorf("dead card: %+v", dead)
	}
	if len(r.processes) != 1 || *r.processes[0].index != 2 || r.processes[0].pid != 2111354 {
		t.Errorf("processes: %+v", r.processes)
	}
}

func TestParse_DeadCardBetweenGoodRows(t *testing.T) {
	t.Parallel()
	r, ok := parse(recorded(t, "query-gpu-failed-between-good-ones.csv"))
	if !ok || len(r.gpus) != 3 {
		t.Fatalf("read %d cards", len(r.gpus))
	}
	if *r.gpus[0].index != 0 || *r.gpus[1].index != 2 || r.gpus[0].name != "NVIDIA GeForce RTX 3090" {
		t.Errorf("good cards: %+v %+v", r.gpus[0], r.gpus[1])
	}
	if r.gpus[2].pci != "0000:02:00.0" || r.gpus[2].dead == "" {
		t.Errorf("dead card: %+v", r.gpus[2])
	}
}

func TestParse_LostCardBesideGoodRow(t *testing.T) {
	t.Parallel()
	r, ok := parse(recorded(t, "query-gpu-lost-beside-good-one.csv"))
	if !ok || len(r.gpus) != 2 {
		t.Fatalf("read %d cards", len(r.gpus))
	}
	if *r.gpus[0].index != 1 || r.gpus[0].name != "NVIDIA GeForce RTX 5070 Ti" || r.gpus[0].dead != "" {
		t.Errorf("good card: %+v", r.gpus[0])
	}
	if r.gpus[1].pci != "0000:24:00.0" || r.gpus[1].dead != "nvidia-smi: GPU is lost" {
		t.Errorf("lost card: %+v", r.gpus[1])
	}
}

func TestParse_WhatSaysNothing(t *testing.T) {
	t.Parallel()
	if r, ok := parse(recorded(t, "error-no-driver.txt")); !ok || !r.noDriver {
		t.Error("no driver is not seen")
	}
	if r, ok := parse(recorded(t, "error-no-devices.txt")); !ok || !r.noDevices || len(r.gpus) != 0 {
		t.Error("no devices is not seen")
	}
	for _, out := range []string{"", "\n\n", recorded(t, "query-gpu-loop-unknown-error.csv"), recorded(t, "version-driver610.txt"), "sh: nvidia-smi: command failed"} {
		if r, ok := parse(out); ok {
			t.Errorf("read %+v from %q", r, out)
		}
	}
}

func TestParse_ProcessesNameTheBoard(t *testing.T) {
	t.Parallel()
	r, ok := parse(recorded(t, "query-compute-apps-h100-mig-load.csv"))
	if !ok || !r.processesKnown || len(r.processes) != 3 || r.processes[2].pid != 21198 {
		t.Fatalf("got %+v", r)
	}
	if r, ok := parse("gpu_uuid, pid\n"); !ok || !r.processesKnown || len(r.processes) != 0 {
		t.Error("a header alone means that there are none")
	}
}

func TestUnknownIsNotZero(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "-", "N/A", "[N/A]", "ERR!", "[Unknown Error]", "[Not Supported]", "Unknown Error", "[GPU is lost]", "[Insufficient Permissions]"} {
		if text(s) != "" || mib(text(s)) != nil {
			t.Errorf("%q is read as a value", s)
		}
	}
}

func TestPCIAddress(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"00000000:C3:00.0": "0000:c3:00.0", "0000:02:00.0": "0000:02:00.0", "00000001:00:00.0": "0001:00:00.0",
		"00010000:E1:00.0": "10000:e1:00.0", "[N/A]": "", "": "", "03:00.0": "",
	} {
		if got := pciAddress(in); got != want {
			t.Errorf("pciAddress(%q) = %q, want %q", in, got, want)
		}
	}
}

// FuzzParse feeds every parser: whatever is printed, reading it ends, and what is read can become cards.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/recorded/*")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		f.Add(recorded(f, filepath.Base(file)))
	}
	f.Fuzz(func(t *testing.T, out string) {
		checkReading(t, out, parse)
	})
}

// The parsers by themselves reach further than through the choice by content.
func FuzzParseCSV(f *testing.F)   { fuzzOne(f, "query-gpu-*", "query-compute*", parseCSV) }
func FuzzParseList(f *testing.F)  { fuzzOne(f, "list-*", "error-*", parseList) }
func FuzzParseTable(f *testing.F) { fuzzOne(f, "table-*", "error-*", parseTable) }
func FuzzParseXML(f *testing.F)   { fuzzOne(f, "xml-gtx*", "xml-a100-sxm4-mig*", parseXML) }
func FuzzParseQuery(f *testing.F) { fuzzOne(f, "query-h100*.txt", "query-rtx*.txt", parseQuery) }

func TestParse_Pmon(t *testing.T) {
	t.Parallel()
	r, ok := parse(recorded(t, "pmon-h100-mig-load.txt"))
	var pids []int
	for _, p := range r.processes {
		pids = append(pids, p.pid)
	}
	if diff := cmp.Diff([]int{21180, 21181, 21198}, pids); diff != "" || !ok || !r.processesKnown || len(r.gpus) != 0 {
		t.Errorf("%+v (-want +got):\n%s", r, diff)
	}
}

// Bytes between two commas are no card.
func TestParse_RowsOfNoText(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"9, \xff\xfeA\x80\xb2", "3, A\x00B", "4, A\x1b[31m40", "123456, A40"} {
		if r, ok := parse(text); ok || len(r.gpus) > 0 {
			t.Errorf("%q is read as %+v", text, r.gpus)
		}
	}
}
