//go:build !linux

package vendorcli

// endGroup does nothing: what a tool leaves behind is told on Linux only, and so is it here and below.
func endGroup(int) {}

func mark() []string { return nil }

// EndOrphans does nothing.
func EndOrphans() int { return 0 }
