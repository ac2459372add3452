package watch

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/accel"
)

func attribute(text string) *api.Attribute { return &api.Attribute{StringVal: &text} }

// What a card was seen to have counts for nothing where the driver cannot make a share of it.
func TestWorld_SharesAreWhatTheDriverCanMake(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		uuid  string
		attrs map[string]string
		want  []accel.Mode
	}{
		"a driver that does not tell":  {"GPU-a", map[string]string{"driver.heteroflow.version": "0"}, []string{"hami", "mps"}},
		"one that can make some":       {"GPU-a", map[string]string{"driver.heteroflow.shares": "told", "driver.heteroflow.share.nvidia": "mps"}, []string{"mps"}},
		"one that can make none":       {"GPU-a", map[string]string{"driver.heteroflow.shares": "told"}, nil},
		"one that makes another brand": {"GPU-a", map[string]string{"driver.heteroflow.shares": "told", "driver.heteroflow.share.ascend": "vnpu"}, nil},
		"a simulated card":             {"SIM-NVIDIA-00000000-0", map[string]string{"driver.heteroflow.shares": "told"}, []string{"hami", "mps"}},
	} {
		w, n := NewWorld(), node()
		n.Attributes = tc.attrs
		n.NodeResources.Devices = []*api.NodeDeviceResource{{
			Vendor: "nvidia", Type: "vgpu", Name: "A100-x", Instances: []*api.NodeDevice{{ID: "c1.0", Healthy: true}},
			Attributes: map[string]*api.Attribute{
				accel.AttrUUID: attribute(tc.uuid), accel.AttrForm: attribute("shared"), accel.AttrModes: attribute("hami,mps"),
			},
		}}
		w.setNode(n, time.Now())
		if diff := cmp.Diff(tc.want, w.Snapshot(nil).Nodes[0].Pools[0].Modes); diff != "" {
			t.Errorf("%s: modes (-want +got):\n%s", name, diff)
		}
	}
}
