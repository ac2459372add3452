package nvidia

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/brand/brandtest"
)

// What nvidia-smi prints besides what is asked of every card, as brandtest.More shows it.
func TestParse_TheOtherNumbers(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{
		"query-gpu-h200-idle.csv":           "MemoryUtilizationPct=0 MemoryTemperatureC=32 ClockMHz=345 MemoryClockMHz=3201 ECCCorrected=0 ECCUncorrected=0 RemappedRows=0 RepairPending=false ThermalSlowdown=false PowerBrake=false",
		"query-gpu-l40s-load.csv":           "MemoryUtilizationPct=2 ClockMHz=2520 MemoryClockMHz=9001 ECCCorrected=0 ECCUncorrected=0 RemappedRows=0 RepairPending=false ThermalSlowdown=false PowerBrake=false",
		"query-gpu-rtx4080s-idle.csv":       "MemoryUtilizationPct=23 ClockMHz=210 MemoryClockMHz=405 FanPct=0 ThermalSlowdown=false PowerBrake=false",
		"query-rtx4080s-load.txt":           "MemoryUtilizationPct=2 ClockMHz=2805 MemoryClockMHz=11251 FanPct=0 PCIeReplays=0 ThermalSlowdown=false PowerBrake=false",
		"query-h100-mig-load.txt":           "MemoryTemperatureC=58 ClockMHz=1980 MemoryClockMHz=2619 PCIeReplays=9 ECCCorrected=0 ECCUncorrected=0 ThermalSlowdown=false PowerBrake=false",
		"xml-a100-sxm4-v12.xml":             "MemoryTemperatureC=44 ClockMHz=1275 MemoryClockMHz=1593 PCIeReplays=0 ECCCorrected=0 ECCUncorrected=0 ThermalSlowdown=false PowerBrake=false",
		"xml-gtx-1070-ti.xml":               "MemoryUtilizationPct=0 ClockMHz=135 MemoryClockMHz=405 FanPct=100",
		"table-rtx4080s-load.txt":           "FanPct=0",
		"table-h100-80gb-idle.txt":          "ECCUncorrected=0",
		"table-h200-load.txt":               "ECCUncorrected=0",
		"table-h100-mig-load.txt":           "", // in MIG mode the tool shows the mode in place of a count
		"query-gpu-h100-mig-load.csv":       "MemoryTemperatureC=59 ClockMHz=1980 MemoryClockMHz=2619 ECCCorrected=0 ECCUncorrected=0 ThermalSlowdown=false PowerBrake=false",
		"xml-tesla-t4.xml":                  "MemoryUtilizationPct=0 ClockMHz=585 MemoryClockMHz=5000 PCIeReplays=0 ECCCorrected=0 ECCUncorrected=0 RetiredPages=0 RepairPending=false ThermalSlowdown=false PowerBrake=false",
		"table-rtx2080s-driver610-idle.txt": "FanPct=38",
		"list-h100-mig.txt":                 "",
		"query-gpu-loop-unknown-error.csv":  "",
	} {
		body, err := os.ReadFile(filepath.Join("testdata/recorded", file))
		if err != nil {
			t.Fatal(err)
		}
		r, _ := parse(string(body))
		got := ""
		if len(r.gpus) > 0 {
			got = brandtest.More(brand.Card{More: r.gpus[0].more})
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", file, diff)
		}
	}
}

// Without the library the tool alone tells of processes and of links that went down.
func TestSample_ByTheTool(t *testing.T) {
	t.Parallel()
	const list = "index, uuid, name, pci.bus_id, memory.total [MiB]\n0, GPU-a, NVIDIA H100, 00000000:01:00.0, 81559 MiB\n1, GPU-b, NVIDIA H100, 00000000:02:00.0, 81559 MiB\n"
	const matrix = "\tGPU0\tGPU1\nGPU0\t X \tNV2\nGPU1\tNV2\t X \n"
	status := func(second string) string {
		return "GPU 0: NVIDIA H100 (UUID: GPU-a)\n\t Link 0: 26.562 GB/s\n\t Link 1: " + second + "\nGPU 1: NVIDIA H100 (UUID: GPU-b)\n\t Link 0: 26.562 GB/s\n\t Link 1: 26.562 GB/s\n"
	}
	answers := map[string]brandtest.Answer{
		"--query-gpu=" + queryTiers[0] + " --format=csv": {Text: list}, "topo -m": {Text: matrix}, "nvlink -s": {Text: status("26.562 GB/s")},
		"--query-compute-apps=gpu_uuid,pid --format=csv": {Text: "gpu_uuid, pid\nGPU-b, 77\n"},
	}
	d := detector(t, brandtest.Tool(t, "nvidia-smi", answers))
	ctx := context.Background()
	cards, err := d.Detect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	sample := func() (processes map[string][]int, down map[string]any) {
		t.Helper()
		samples, err := d.Sample(ctx, cards)
		if err != nil {
			t.Fatal(err)
		}
		processes, down = map[string][]int{}, map[string]any{}
		for uuid, s := range samples {
			processes[uuid], down[uuid] = s.Processes, nil
			if s.LinkDown != nil {
				down[uuid] = *s.LinkDown
			}
		}
		return processes, down
	}
	processes, down := sample()
	if diff := cmp.Diff(map[string][]int{"GPU-a": {}, "GPU-b": {77}}, processes); diff != "" {
		t.Errorf("processes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]any{"GPU-a": nil, "GPU-b": nil}, down); diff != "" {
		t.Errorf("links before the topology is known (-want +got):\n%s", diff)
	}
	if _, err := d.Links(ctx, cards); err != nil {
		t.Fatal(err)
	}
	if _, down = sample(); !cmp.Equal(down, map[string]any{"GPU-a": false, "GPU-b": false}) {
		t.Errorf("links that are up: %v", down)
	}
	answers["nvlink -s"] = brandtest.Answer{Text: status("<inactive>")}
	d.smi.path = brandtest.Tool(t, "nvidia-smi", answers)
	if _, down = sample(); !cmp.Equal(down, map[string]any{"GPU-a": true, "GPU-b": false}) {
		t.Errorf("a link that went down: %v", down)
	}
}
