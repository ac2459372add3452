//go:build linux

package device_test

import (
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/ascend"
	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/brand/brandtest"
	"github.com/heteroflow/heteroflow/device-plugins/device/detectortest"
	"github.com/heteroflow/heteroflow/device-plugins/metax"
)

// Cards read by a maker's tool, here a shell script that prints a recorded table. nvidia has the benchmarks of its own
// two paths. The 16 dies of 8 Ascend boards are 16 cards.
func BenchmarkCycle8Cards(b *testing.B) {
	for name, tc := range map[string]struct {
		spec   brand.Spec
		cards  int
		tool   string
		sample string
	}{
		"metax":  {metax.Spec(), 8, "mx-smi", "../metax/testdata/table-c500-8cards-2.1.12.txt"},
		"ascend": {ascend.Spec(), 16, "npu-smi", "../ascend/testdata/info-910c-dual-die-25.2.1.txt"},
	} {
		b.Run(name, func(b *testing.B) {
			tool := brandtest.Tool(b, tc.tool, map[string]brandtest.Answer{"*": brandtest.Sample(b, tc.sample)})
			detectortest.Cycle(b, brand.New(tc.spec, brand.Config{Root: b.TempDir(), Tool: tool}, hclog.NewNullLogger()), tc.cards)
		})
	}
}
