package client

import (
	"math"
	"testing"
)

// Readings follow each other faster than the kernel's clock ticks: most find nothing new.
func TestHostCPU_NothingNewIsNoLoadOfItsOwn(t *testing.T) {
	t.Parallel()
	var h hostCPU
	for range 20 {
		cpus, err := h.read()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range cpus {
			if sum := c.User + c.System + c.Idle; math.Abs(sum-100) > 50 { // steal and guest time are counted in the total only
				t.Fatalf("%s is %v %% busy and %v %% idle", c.CPU, c.User+c.System, c.Idle)
			}
		}
	}
}
