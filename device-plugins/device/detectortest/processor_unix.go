//go:build unix

package detectortest

import (
	"syscall"
	"testing"
	"time"
)

// ProcessorTime is what this process and the children it has waited for have used so far. Unlike the time on the clock it
// says the same on a busy machine.
func ProcessorTime(b *testing.B) time.Duration {
	b.Helper()
	var sum time.Duration
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		if err := syscall.Getrusage(who, &u); err != nil {
			b.Fatal(err)
		}
		sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return sum
}
