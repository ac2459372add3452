package catalogue

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/accel"
)

type figures struct{ products, memory, link, tflops int }

func (f *figures) count(p Product) {
	f.products++
	if p.MemoryMiB != nil {
		f.memory++
	}
	if p.Link != "" {
		f.link++
	}
	if len(p.TFLOPS) > 0 {
		f.tflops++
	}
}

// How many products have a figure, so that none gets lost; more may come.
func TestProducts_Figures(t *testing.T) {
	t.Parallel()
	var all figures
	brands := map[accel.Vendor]*figures{}
	for _, p := range read(t) {
		all.count(p)
		if brands[p.Vendor] == nil {
			brands[p.Vendor] = &figures{}
		}
		brands[p.Vendor].count(p)
	}
	if all.products < 267 || all.memory < 199 || all.link < 115 || all.tflops < 112 {
		t.Errorf("%+v", all)
	}
	for _, name := range []string{"../../docs/device-plugin.md", "../../docs/zh-CN/device-plugin.md"} {
		page, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(page), fmt.Sprintf(" %d ", all.products)) {
			t.Errorf("%s does not say that there are %d products", name, all.products)
		}
		for v, f := range brands {
			if row := fmt.Sprintf("| `%s` | %d | %d | %d | %d |\n", v, f.products, f.memory, f.link, f.tflops); !strings.Contains(string(page), row) {
				t.Errorf("%s does not have the row %s", name, row)
			}
		}
	}
}

func TestProducts_SpotValues(t *testing.T) {
	t.Parallel()
	for _, one := range []struct {
		vendor     accel.Vendor
		name       string
		gib        uint64
		link       accel.LinkKind
		generation int
		gbps       float64
		peak       Peak
	}{
		{accel.NVIDIA, "Tesla-P40", 24, accel.LinkPCIe, 3, 0, Peak{"int8": 47}},
		{accel.NVIDIA, "Tesla-P100-SXM2-16GB", 16, accel.LinkNVLink, 1, 160, Peak{"fp64": 5.3, "fp32": 10.6, "fp16": 21.2}},
		{accel.NVIDIA, "Tesla-V100-SXM2-32GB", 32, accel.LinkNVLink, 2, 300, Peak{"fp64": 7.8, "fp32": 15.7, "fp16": 125}},
		{accel.NVIDIA, "Tesla-T4", 16, accel.LinkPCIe, 3, 0, Peak{"fp32": 8.1, "fp16": 65, "int8": 130}},
		{accel.NVIDIA, "A30", 24, accel.LinkNVLink, 3, 0, Peak{"fp64": 5.2, "fp32": 10.3, "tf32": 82, "fp16": 165, "bf16": 165, "int8": 330}},
		{accel.NVIDIA, "A100-SXM4-80GB", 80, accel.LinkNVLink, 3, 600, Peak{"fp64": 9.7, "fp32": 19.5, "tf32": 156, "fp16": 312, "bf16": 312, "int8": 624}},
		{accel.NVIDIA, "A800-SXM4-80GB", 80, accel.LinkNVLink, 3, 400, Peak{"fp16": 312, "bf16": 312, "int8": 624}},
		{accel.NVIDIA, "H100-80GB-HBM3", 80, accel.LinkNVLink, 4, 900, Peak{
			"fp64": 33.5, "fp32": 66.9, "tf32": 494.7, "fp16": 989.4, "bf16": 989.4, "fp8": 1978.9, "int8": 1978.9,
		}},
		{accel.NVIDIA, "H20", 96, accel.LinkNVLink, 4, 900, Peak{"fp64": 1, "fp32": 44, "tf32": 74, "fp16": 148, "bf16": 148, "fp8": 296, "int8": 296}},
		{accel.NVIDIA, "B200", 180, accel.LinkNVLink, 5, 1800, Peak{"tf32": 1125, "fp16": 2250, "bf16": 2250, "fp8": 4500, "int8": 4500}},
		{accel.NVIDIA, "RTX-A6000", 48, accel.LinkNVLink, 3, 112.5, Peak{"fp32": 38.7, "tf32": 77.4, "fp16": 154.8, "bf16": 154.8, "int8": 309.7}},
		{accel.NVIDIA, "GeForce-RTX-5090", 32, accel.LinkPCIe, 5, 0, Peak{
			"fp64": 1.64, "fp32": 104.8, "tf32": 104.8, "fp16": 419, "bf16": 209.5, "fp8": 838, "int8": 838,
		}},
		{accel.AMD, "MI300X", 192, accel.LinkXGMI, 0, 896, Peak{
			"fp64": 81.7, "fp32": 163.4, "tf32": 653.7, "fp16": 1307.4, "bf16": 1307.4, "fp8": 2614.9, "int8": 2614.9,
		}},
		{accel.AMD, "MI355X", 288, accel.LinkXGMI, 0, 1075.2, Peak{"fp64": 78.6, "fp32": 157.3, "fp16": 2516.6, "bf16": 2516.6, "fp8": 5033.2, "int8": 5033.2}},
		{accel.AMD, "MI210", 64, "", 0, 0, Peak{"fp64": 22.6, "fp16": 181, "bf16": 181, "int8": 181}},
		{accel.Intel, "Data-Center-GPU-Max-1550", 128, "", 0, 0, nil}, // Xe Link has no kind of its own
		{accel.Intel, "Data-Center-GPU-Flex-170", 16, accel.LinkPCIe, 4, 0, Peak{"fp32": 16, "int8": 250}},
		{accel.Ascend, "910B3", 64, accel.LinkHCCS, 0, 392, Peak{"fp32": 82, "fp16": 313}},
		{accel.Cambricon, "MLU290-M5", 32, accel.LinkMLULink, 0, 600, Peak{"int8": 512, "int16": 256}},
		{accel.MThreads, "S4000", 48, accel.LinkMTLink, 1, 240, Peak{"fp32": 25, "tf32": 50, "fp16": 100, "bf16": 100, "int8": 200}},
		{accel.Biren, "BR100", 64, "", 0, 0, Peak{"fp32": 256, "bf16": 1024, "int8": 2048}},
		{accel.Iluvatar, "BI-V100", 32, accel.LinkPCIe, 4, 0, Peak{"fp32": 37, "fp16": 147, "bf16": 147, "int8": 295}},
	} {
		p, ok := ByName(one.vendor, one.name)
		if !ok || p.MemoryMiB == nil || *p.MemoryMiB != one.gib<<10 {
			t.Errorf("%s: memory %v", one.name, p.MemoryMiB)
		}
		if p.Link != one.link || p.LinkGen != one.generation || p.LinkGBps != one.gbps {
			t.Errorf("%s: link %s, generation %d, %v GB/s", one.name, p.Link, p.LinkGen, p.LinkGBps)
		}
		if diff := cmp.Diff(one.peak, p.TFLOPS); diff != "" {
			t.Errorf("%s (-want +got):\n%s", one.name, diff)
		}
	}
}

// Cards of which two sizes are sold under one name have none.
func TestProducts_SeveralSizesAreNone(t *testing.T) {
	t.Parallel()
	for v, names := range map[accel.Vendor][]string{
		accel.NVIDIA: {"GeForce-RTX-3080", "GeForce-RTX-3060", "GeForce-RTX-3050", "GeForce-RTX-4060-Ti", "GeForce-RTX-5060-Ti", "GeForce-RTX-2060", "Tesla-M40"},
		accel.AMD:    {"Radeon-RX-9060-XT"}, accel.Intel: {"Arc-A770"},
	} {
		for _, name := range names {
			if p, ok := ByName(v, name); !ok || p.MemoryMiB != nil {
				t.Errorf("%s has a memory", name)
			}
		}
	}
}

// What NVIDIA prints largest is with sparsity: half of it, never itself, is in the catalogue.
func TestProducts_DenseIsHalfOfSparse(t *testing.T) {
	t.Parallel()
	for name, sparse := range map[string]Peak{
		"A100-SXM4-80GB": {"tf32": 312, "fp16": 624, "bf16": 624, "int8": 1248}, "A100-PCIE-40GB": {"tf32": 312, "fp16": 624, "bf16": 624, "int8": 1248},
		"A30": {"tf32": 165, "fp16": 330, "bf16": 330, "int8": 661}, "A10": {"tf32": 125, "fp16": 250, "bf16": 250, "int8": 500},
		"A40": {"tf32": 149.6, "fp16": 299.4, "bf16": 299.4, "int8": 598.6}, "L4": {"tf32": 120, "fp16": 242, "bf16": 242, "fp8": 485, "int8": 485},
		"L40": {"tf32": 181, "fp16": 362, "bf16": 362, "fp8": 724, "int8": 724}, "L40S": {"tf32": 366, "fp16": 733, "bf16": 733, "fp8": 1466, "int8": 1466},
		"H100-80GB-HBM3": {"tf32": 989, "fp16": 1979, "bf16": 1979, "fp8": 3958, "int8": 3958},
		"H100-PCIe":      {"tf32": 756, "fp16": 1513, "bf16": 1513, "fp8": 3026, "int8": 3026},
		"H100-NVL":       {"fp16": 1671, "bf16": 1671}, "H200-NVL": {"fp16": 1671, "bf16": 1671, "fp8": 3341, "int8": 3341},
		"H200": {"tf32": 989, "fp16": 1979, "bf16": 1979, "fp8": 3958, "int8": 3958}, "RTX-A5000": {"fp16": 222.2}, "RTX-A4000": {"fp16": 153.4},
		"RTX-A2000": {"fp16": 63.9}, "RTX-5000-Ada-Generation": {"fp8": 1044.4}, "RTX-2000-Ada-Generation": {"fp8": 191.9},
		"GeForce-RTX-4090": {"tf32": 165, "fp16": 661, "bf16": 330, "fp8": 1321, "int8": 1321},
		"GeForce-RTX-5090": {"tf32": 210, "fp16": 838, "bf16": 419, "fp8": 1676, "int8": 1676}, "GeForce-RTX-5070": {"bf16": 123.5, "fp16": 247, "int8": 494},
	} {
		p, ok := ByName(accel.NVIDIA, name)
		for precision, n := range sparse {
			if dense := p.TFLOPS[precision]; !ok || dense > n/2*1.005 || dense < n/2*0.98 {
				t.Errorf("%s has %v at %s, and %v with sparsity", name, dense, precision, n)
			}
		}
	}
}

// One figure with sparsity beside one without shows in their ratio: a step in precision doubles the performance of these
// brands at most.
func TestProducts_OneStepDoubles(t *testing.T) {
	t.Parallel()
	for _, p := range read(t) {
		if p.Vendor != accel.NVIDIA && p.Vendor != accel.AMD {
			continue
		}
		for _, step := range [][2]string{{"tf32", "fp16"}, {"bf16", "fp16"}, {"fp16", "fp8"}, {"fp16", "int8"}, {"bf16", "fp8"}, {"fp8", "int8"}, {"int8", "fp8"}} {
			slow, fast := p.TFLOPS[step[0]], p.TFLOPS[step[1]]
			most := 2.03 // rounded
			if step[0] == "tf32" || step[0] == "bf16" && step[1] == "fp8" {
				most = 4.06 // two accumulators
			}
			if step[0] == "fp8" || step[0] == "int8" {
				most = 1.001
			}
			if slow != 0 && fast != 0 && fast > slow*most {
				t.Errorf("%s has %v at %s and %v at %s", p.Model, slow, step[0], fast, step[1])
			}
		}
	}
}
