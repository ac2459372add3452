package admission

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/accel"
)

func TestPlain_ReadsDeviceBlocksAsAsks(t *testing.T) {
	t.Parallel()
	for device, want := range map[string]*accel.Ask{
		`{"Name":"gpu","Count":2}`:                       {Count: 2},
		`{"Name":"nvidia/gpu"}`:                          {Count: 1, Vendors: []accel.Vendor{accel.NVIDIA}},
		`{"Name":"nvidia/gpu/A100-SXM4-80GB","Count":1}`: {Count: 1, Vendors: []accel.Vendor{accel.NVIDIA}, Models: []string{"A100-SXM4-80GB"}},
		`{"Name":"nvidia/vgpu","Count":20}`:              {Count: 1, MemoryMiB: 20480, Vendors: []accel.Vendor{accel.NVIDIA}},
		`{"Name":"nvidia/vgpu/one-card","Count":20}`:     nil,
		`{"Name":"intel/fpga","Count":1}`:                nil,
	} {
		job := parse(t, `{"ID":"x","TaskGroups":[{"Name":"g","Count":3,"Tasks":[{"Name":"t","Driver":"docker","Config":{"image":"a"},"Resources":{"Devices":[`+device+`]}}]}]}`)
		r, ok := Plain(job, map[string]int{"g": 2})
		if ok != (want != nil) {
			t.Errorf("%s: %v", device, ok)
			continue
		}
		if !ok {
			continue
		}
		task := r.Groups[0].Tasks[0]
		if task.Driver != "docker" || task.Runtime != "" || r.Groups[0].Count != 2 {
			t.Errorf("%s: %+v", device, r.Groups[0])
		}
		got := accel.Ask{Count: task.Ask.Count, MemoryMiB: task.Ask.MemoryMiB, Vendors: task.Ask.Vendors, Models: task.Ask.Models}
		if diff := cmp.Diff(*want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", device, diff)
		}
		if _, ok := Plain(job, map[string]int{}); ok {
			t.Errorf("%s: nothing is missing, and there is an ask", device)
		}
	}
}
