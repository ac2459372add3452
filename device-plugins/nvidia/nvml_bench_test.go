//go:build cgo && linux

package nvidia

import (
	"testing"

	"github.com/heteroflow/heteroflow/device-plugins/device/detectortest"
)

// The mock of the library answers in no time; what is measured is what the plugin makes of it.
func BenchmarkCycle8Cards_NVML(b *testing.B) { detectortest.Cycle(b, byNVML(b, box()), 8) }
