package catalogue

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// What each brand's way of sharing makes of an ask, after the makers' numbers.
func TestRounding_BrandByMode(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		vendor accel.Vendor
		model  string
		mode   accel.Mode
		mib    uint64
		pct    int
		want   accel.Share
	}{
		"MIG of A100":            {accel.NVIDIA, "A100-SXM4-80GB", "mig", 15000, 0, accel.Share{Template: "1g.20gb", MemoryMiB: 19968, Parts: 1, ComputePct: 14}},
		"MIG of A30":             {accel.NVIDIA, "A30", "mig", 5952, 26, accel.Share{Template: "2g.12gb", MemoryMiB: 11968, Parts: 2, ComputePct: 50}},
		"MIG of H200":            {accel.NVIDIA, "H200", "mig", 16384, 0, accel.Share{Template: "1g.18gb", MemoryMiB: 16384, Parts: 1, ComputePct: 14}},
		"MPS":                    {accel.NVIDIA, "L40S", "mps", 5001, 33, accel.Share{MemoryMiB: 5001, Parts: 33, ComputePct: 33}},
		"HAMi, model unknown":    {accel.NVIDIA, "new", "hami", 5001, 33, accel.Share{MemoryMiB: 5001, Parts: 33, ComputePct: 33}},
		"vNPU of 310P3":          {accel.Ascend, "310P3", "vnpu", 3073, 0, accel.Share{Template: "vir02", MemoryMiB: 6144, Parts: 2, ComputePct: 25}},
		"vNPU of 910B4":          {accel.Ascend, "910B4", "vnpu", 8192, 0, accel.Share{Template: "vir05_1c_8g", MemoryMiB: 8192, Parts: 5, ComputePct: 25}},
		"vNPU of 910B4-1":        {accel.Ascend, "910B4-1", "vnpu", 8192, 0, accel.Share{Template: "vir05_1c_16g", MemoryMiB: 16384, Parts: 5, ComputePct: 25}},
		"vDCU":                   {accel.Hygon, "K100_AI", "vdcu", 4096, 10, accel.Share{MemoryMiB: 4096, ComputePct: 10}},
		"sMLU":                   {accel.Cambricon, "MLU370-X8", "smlu", 4097, 10, accel.Share{MemoryMiB: 4352, Parts: 10, ComputePct: 10}},
		"sGPU of MetaX":          {accel.MetaX, "C500", "sgpu", 4097, 10, accel.Share{MemoryMiB: 5120, Parts: 10, ComputePct: 10}},
		"sGPU of Moore Threads":  {accel.MThreads, "S4000", "sgpu", 9000, 10, accel.Share{Template: "32", MemoryMiB: 16384}},
		"vXPU":                   {accel.Kunlunxin, "P800", "vxpu", 24577, 0, accel.Share{Template: "1-2", MemoryMiB: 49152}},
		"Enflame shares percent": {accel.Enflame, "S60", "vgcu", 100, 20, accel.Share{MemoryMiB: 100, Parts: 20, ComputePct: 20}},
	} {
		p, _ := ByName(tc.vendor, tc.model)
		r, ok := p.Rounding(tc.vendor, tc.mode)
		if !ok {
			t.Errorf("%s: there is no rule", name)
			continue
		}
		got, fits := r.Round(tc.mib, tc.pct, 0)
		if diff := cmp.Diff(tc.want, got); diff != "" || !fits {
			t.Errorf("%s: fits %v (-want +got):\n%s", name, fits, diff)
		}
	}
	// The bare 910B is a chip of the first generation: the templates of 910B1 to 910B4 are not its own.
	first, _ := ByName(accel.Ascend, "910B")
	if r, ok := first.Rounding(accel.Ascend, accel.ModeVNPU); ok {
		t.Errorf("a first 910B has the templates %v", r)
	}
}

// Every rule that can be published can be written as an attribute and read again.
func TestRounding_EveryProductReadsBack(t *testing.T) {
	t.Parallel()
	for _, p := range loaded().products {
		var rules []accel.Rounding
		for _, mode := range []accel.Mode{"mig", "mps", "hami", "vnpu", "vdcu", "smlu", "sgpu", "svi", "vxpu", "vgcu"} {
			if r, ok := p.Rounding(p.Vendor, mode); ok {
				rules = append(rules, r)
			}
		}
		got, err := accel.ParseRounding(accel.FormatRounding(rules))
		if err != nil || accel.FormatRounding(got) != accel.FormatRounding(rules) {
			t.Errorf("%s %s: %v became %v, %v", p.Vendor, p.Model, rules, got, err)
		}
	}
}
