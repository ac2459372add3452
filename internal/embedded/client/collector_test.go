package client

import (
	"errors"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
)

// TestCollector_StaysKnownOverGarbageCollections: the lock that says that it runs must not go with an unused file.
func TestCollector_StaysKnownOverGarbageCollections(t *testing.T) { // not parallel: it takes signals of the process
	defer signal.Reset()
	dir := allocDir{t.TempDir()}
	if err := errors.Join(dir.build(), dir.buildTask("web")); err != nil {
		t.Fatal(err)
	}
	spec := collectorSpec{Dir: dir.logs(), Task: "web", MaxFiles: 2, MaxBytes: 1 << 20}
	ended := make(chan error, 1)
	go func() { ended <- collect(spec) }()
	c := &collector{log: hclog.NewNullLogger(), spec: spec}
	for deadline := time.Now().Add(10 * time.Second); c.pid() != os.Getpid(); time.Sleep(5 * time.Millisecond) {
		select {
		case err := <-ended:
			t.Fatalf("the collector ended: %v", err)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatal("the collector does not start")
		}
	}
	for range 20 {
		runtime.GC()
		time.Sleep(5 * time.Millisecond) // closing happens beside the collection
		if c.pid() != os.Getpid() {
			t.Error("the collector runs and counts as gone")
			break
		}
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
