package share

import (
	"errors"
	"syscall"
	"testing"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// full is a ledger on a disk without room: names can be removed, nothing can be written.
type full struct{ ledger }

func (full) put(Entry) error { return syscall.ENOSPC }

// A card must come back from a full disk, or nothing of the node does until somebody has cleared it.
func TestRelease_OnAFullDisk(t *testing.T) {
	t.Parallel()
	s := newStub("mps", accel.Silver)
	f := newFixture(t, nil, s)
	a := sliceOf("a", "GPU-1", 1, accel.Silver)
	if _, err := f.Prepare(t.Context(), []Ask{a}, func(string) {}); err != nil {
		t.Fatal(err)
	}
	disk := f.ledger
	f.ledger = full{disk}
	s.stuck = errors.New("in use")
	if err := f.Release(t.Context(), "a"); !errors.Is(err, s.stuck) {
		t.Errorf("release of what is in use: %v", err)
	}
	if e, err := disk.get(a.ID); err != nil || e == nil {
		t.Errorf("what was not given back is gone from the ledger: %v, %v", e, err)
	}
	s.stuck = nil
	if err := f.Release(t.Context(), "a"); err != nil {
		t.Errorf("release: %v", err)
	}
	if e, err := disk.get(a.ID); err != nil || e != nil || len(s.parts) != 0 {
		t.Errorf("left: %v, %v, %v", s.parts, e, err)
	}
}
