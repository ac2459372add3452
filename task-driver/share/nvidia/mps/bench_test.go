package mps

import (
	"os"
	"testing"

	"github.com/heteroflow/heteroflow/task-driver/share"
)

// BenchmarkProcesses reads the processes of the machine it runs on, as is done when a daemon is started or stopped.
func BenchmarkProcesses(b *testing.B) {
	if _, err := os.Stat("/proc/self/comm"); err != nil {
		b.Skip("this machine has no /proc")
	}
	backend := New(share.Host{Root: "/", Dir: stateDir}, Options{})
	for b.Loop() {
		if _, err := backend.processes(); err != nil {
			b.Fatal(err)
		}
	}
}
