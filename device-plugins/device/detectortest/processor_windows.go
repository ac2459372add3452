package detectortest

import (
	"testing"
	"time"
)

// ProcessorTime is not measured on Windows.
func ProcessorTime(b *testing.B) time.Duration {
	b.Helper()
	b.Skip("processor time is measured on Linux only")
	return 0
}
