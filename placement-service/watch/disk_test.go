package watch

import (
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

func TestWorld_CountsDisk(t *testing.T) {
	t.Parallel()
	w, n := NewWorld(), node()
	n.NodeResources.Disk.DiskMB, n.ReservedResources.Disk.DiskMB = 1000, 200
	w.setNode(n, time.Now())
	resources := &api.AllocatedResources{Shared: api.AllocatedSharedResources{DiskMB: 300}, Tasks: map[string]*api.AllocatedTaskResources{}}
	w.setAlloc(allocOf(&api.Allocation{ID: "a", Namespace: "default", JobID: "j", NodeID: "n1", ClientStatus: "running", AllocatedResources: resources}), time.Now())
	if got := w.Snapshot(nil).Nodes[0]; got.DiskMiB != 800 || got.UsedDiskMiB != 300 {
		t.Errorf("disk is %d, used %d, want 800 and 300", got.DiskMiB, got.UsedDiskMiB)
	}
}
