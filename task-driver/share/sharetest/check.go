package sharetest

import (
	"cmp"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/task-driver/share"
)

func (s Suite) describes(t *testing.T) {
	t.Parallel()
	n := s.node(t)
	b := n.process(nil)
	if b.Name() == "" || strings.ToLower(b.Name()) != b.Name() {
		t.Errorf("its name is %q: write one word in lower case", b.Name())
	}
	i := b.Describe()
	known := []share.Enforcement{share.ByHardware, share.ByDriver, share.ByLibrary, share.Watched, share.NotAtAll}
	for what, by := range map[string]share.Enforcement{"memory": i.Memory, "compute": i.Compute, "faults": i.Faults, "sight": i.Sight} {
		if !slices.Contains(known, by) {
			t.Errorf("%s is enforced by %q, which is none of %v", what, by, known)
		}
	}
	if i.QoS == "" || len(i.Forms) == 0 || i.Limits == "" || i.LimitsZH == "" {
		t.Errorf("the description lacks its qos, forms or limits: %+v", i)
	}
}

func (s Suite) probes(t *testing.T) {
	t.Parallel()
	n := s.node(t)
	before := n.things()
	if err := n.process(nil).Probe(n.ctx()); err != nil {
		t.Errorf("a machine that has everything: %v", err)
	}
	n.same(before, "after a probe")
	if s.Toolless {
		return
	}
	if err := n.process(none{}).Probe(n.ctx()); err == nil {
		t.Error("a machine without tools passes")
	} else if strings.TrimSpace(err.Error()) == "" {
		t.Error("the refusal says nothing")
	}
}

func (s Suite) preparesTwice(t *testing.T) {
	t.Parallel()
	n := s.node(t)
	before := n.things()
	b := n.process(nil)
	first := n.prepare(b, s.Asks[0])
	made := n.things()
	for when, b := range map[string]share.Backend{"again": b, "by a new process": n.process(nil)} {
		if diff := gocmp.Diff(first, n.prepare(b, s.Asks[0])); diff != "" {
			t.Errorf("prepared %s: setup (-first +second):\n%s", when, diff)
		}
		n.same(made, "prepared "+when)
	}
	n.release(n.process(nil), s.Asks[0].ID)
	n.same(before, "released by a new process")
}

func (s Suite) releasesTwice(t *testing.T) {
	t.Parallel()
	n := s.node(t)
	before := n.things()
	b := n.process(nil)
	n.release(b, share.NewID("never", b.Vendor(), "GPU-never"))
	n.prepare(b, s.Asks[0])
	n.release(b, s.Asks[0].ID)
	n.same(before, "released")
	n.release(b, s.Asks[0].ID)
	n.release(n.process(nil), s.Asks[0].ID)
	n.same(before, "released again")
}

func (s Suite) neighbours(t *testing.T) {
	t.Parallel()
	n := s.node(t)
	before := n.things()
	b := n.process(nil)
	n.prepare(b, s.Asks[0])
	alone := n.things()
	n.prepare(b, s.Asks[1])
	n.release(b, s.Asks[1].ID)
	n.same(alone, "a neighbour has come and gone")
	second := n.prepare(b, s.Asks[1])
	n.release(b, s.Asks[0].ID)
	if diff := gocmp.Diff(second, n.prepare(b, s.Asks[1])); diff != "" {
		t.Errorf("the neighbour's setup changed (-before +after):\n%s", diff)
	}
	n.release(b, s.Asks[1].ID)
	n.same(before, "both are released")
}

func (s Suite) foreign(t *testing.T) {
	t.Parallel()
	n := s.node(t)
	if n.m.Foreign == nil {
		t.Skip("a stranger can make nothing of this kind")
	}
	n.m.Foreign()
	before := n.things()
	if len(before) == 0 {
		t.Fatal("the fake does not list what a stranger made")
	}
	b := n.process(nil)
	n.reconcile(b)
	n.same(before, "reconciled")
	n.prepare(b, s.Asks[0])
	n.reconcile(b, s.Asks[0])
	n.release(b, s.Asks[0].ID)
	n.same(before, "a share has come and gone")
	n.wipe()
	n.reconcile(n.process(nil))
	n.same(before, "the state folder is wiped")
}

func (s Suite) reconciles(t *testing.T) {
	t.Parallel()
	n := s.node(t)
	before := n.things()
	b := n.process(nil)
	n.reconcile(b)
	first := n.prepare(b, s.Asks[0])
	alone := n.things()
	n.prepare(b, s.Asks[1])
	both := n.things()
	n.reconcile(n.process(nil), s.Asks[0], s.Asks[1])
	n.same(both, "both are live")
	n.reconcile(n.process(nil), s.Asks[0])
	n.same(alone, "one is live")
	if diff := gocmp.Diff(first, n.prepare(n.process(nil), s.Asks[0])); diff != "" {
		t.Errorf("the live share's setup changed (-before +after):\n%s", diff)
	}
	n.reconcile(n.process(nil))
	n.same(before, "none is live")
	n.reconcile(n.process(nil), s.Asks[0]) // live, and never made: the task holds a share that is gone
	n.reconcile(n.process(nil))
	n.same(before, "what was live and gone is no more")
}

func (s Suite) resizes(t *testing.T) {
	t.Parallel()
	n := s.node(t)
	before := n.things()
	b := n.process(nil)
	n.prepare(b, s.Asks[0])
	other := s.Asks[0]
	other.MemoryMiB, other.ComputePct = s.Asks[1].MemoryMiB, s.Asks[1].ComputePct
	setup := n.prepare(n.process(nil), other)
	made := n.things()
	if diff := gocmp.Diff(setup, n.prepare(b, other)); diff != "" {
		t.Errorf("prepared again: setup (-first +second):\n%s", diff)
	}
	n.same(made, "prepared again")
	n.release(b, other.ID)
	n.same(before, "released")
}

func (s Suite) wiped(t *testing.T) {
	t.Parallel()
	if s.Nameless {
		t.Skip("the maker's tool keeps no names: what is ours cannot be told once the notes are gone")
	}
	n := s.node(t)
	before := n.things()
	n.prepare(n.process(nil), s.Asks[0])
	n.wipe()
	n.reconcile(n.process(nil))
	n.same(before, "reconciled")
	n.prepare(n.process(nil), s.Asks[0])
	n.wipe()
	n.release(n.process(nil), s.Asks[0].ID)
	n.same(before, "released")
}

// halfOfTheFiles removes the files that a Prepare wrote, the last ones first: what a crash between two writes leaves.
func (s Suite) halfOfTheFiles(t *testing.T) {
	t.Parallel()
	if s.Nameless {
		t.Skip("the maker's tool keeps no names: without its note a share is a stranger's")
	}
	for keep := 0; ; keep++ {
		n := s.node(t)
		before, old := n.things(), n.files()
		want := n.prepare(n.process(nil), s.Asks[0])
		var fresh []string
		for path := range n.files() {
			if _, was := old[path]; !was {
				fresh = append(fresh, path)
			}
		}
		now := n.files()
		slices.SortFunc(fresh, func(a, b string) int { return cmp.Or(now[a].Compare(now[b]), strings.Compare(a, b)) })
		if keep >= len(fresh) {
			return
		}
		for _, path := range fresh[keep:] {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
		when := "without its last " + filepath.Base(fresh[keep])
		if keep%2 == 0 {
			n.reconcile(n.process(nil))
		} else {
			if diff := gocmp.Diff(want, n.prepare(n.process(nil), s.Asks[0])); diff != "" {
				t.Errorf("%s: setup (-want +got):\n%s", when, diff)
			}
			n.release(n.process(nil), s.Asks[0].ID)
		}
		n.same(before, when)
	}
}

// files are the machine's regular files and when each was written. Those of /proc are the kernel's: no crash loses them.
func (n *node) files() map[string]time.Time {
	n.t.Helper()
	out := map[string]time.Time{}
	err := filepath.WalkDir(n.m.Root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && path == filepath.Join(n.m.Root, "proc") {
			return fs.SkipDir
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		out[path] = info.ModTime()
		return nil
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return out
}
