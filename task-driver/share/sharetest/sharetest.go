package sharetest

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/heteroflow/heteroflow/task-driver/share"
)

// Machine is a fake machine that keeps state.
type Machine struct {
	// Tool are its tools; see Tools.
	Tool share.Tool
	// Root is a folder of the test's that stands for its file system.
	Root string
	// Things lists what there is on the machine of the kind that the backend makes, ours and others': instances, virtual
	// cards, daemons, vendor's files. Files and folders below Root whose name contains a share's ID are found without it.
	// Nil: there are none.
	Things func() []string
	// Foreign makes one thing of that kind as a stranger would. Nil: there is no such thing.
	Foreign func()
}

// Suite says how to test a backend.
type Suite struct {
	// Machine makes a fresh machine that has all that the backend needs.
	Machine func(t testing.TB) Machine
	// New makes the backend as a new process of the driver does.
	New func(h share.Host) share.Backend
	// Asks are at least two that fit the machine at once, of different tasks, two of them on one card where it can be shared.
	Asks []share.Ask
	// Nameless is true when the maker's tool keeps no names, so that nothing tells ours from a stranger's once the state
	// folder is wiped.
	Nameless bool
	// Toolless is true when the backend needs no tool.
	Toolless bool
	// NoLies leaves out the tools that lie, where another suite of the backend has them: it may wait for what they promised.
	NoLies bool
}

// stateDir is where the driver keeps its state on a fake machine.
const stateDir = "/var/lib/heteroflow/shares"

// patience bounds what must not hang; a healthy run never waits.
const patience = 20 * time.Second

// node is a machine and the processes of the driver on it, one after the other.
type node struct {
	t testing.TB
	s Suite
	m Machine
}

func (s Suite) node(t testing.TB) *node {
	t.Helper()
	return &node{t: t, s: s, m: s.Machine(t)}
}

// process is the backend in a new process, with tools as they are or faulty.
func (n *node) process(tool share.Tool) share.Backend {
	if tool == nil {
		tool = n.m.Tool
	}
	return n.s.New(share.Host{Tool: tool, Root: n.m.Root, Dir: stateDir})
}

// things is everything of the backend's kind, and every path that names a share.
func (n *node) things() []string {
	n.t.Helper()
	out := []string{}
	if n.m.Things != nil {
		out = append(out, n.m.Things()...)
	}
	err := filepath.WalkDir(n.m.Root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		for _, a := range n.s.Asks {
			if strings.Contains(filepath.Base(path), string(a.ID)) {
				out = append(out, "file "+path)
			}
		}
		return nil
	})
	if err != nil {
		n.t.Fatalf("look at the machine's files: %v", err)
	}
	slices.Sort(out)
	return out
}

// same fails unless the machine is as it was.
func (n *node) same(want []string, when string) {
	n.t.Helper()
	if diff := cmp.Diff(want, n.things(), cmpopts.EquateEmpty()); diff != "" {
		n.t.Errorf("%s: things on the machine (-want +got):\n%s", when, diff)
	}
}

func (n *node) prepare(b share.Backend, a share.Ask) share.Setup {
	n.t.Helper()
	setup, err := b.Prepare(n.ctx(), a, func(string) {})
	if err != nil {
		n.t.Fatalf("prepare %s: %v", a.ID, err)
	}
	return setup
}

func (n *node) release(b share.Backend, id share.ID) {
	n.t.Helper()
	if err := b.Release(n.ctx(), id); err != nil {
		n.t.Errorf("release %s: %v", id, err)
	}
}

func (n *node) reconcile(b share.Backend, live ...share.Ask) {
	n.t.Helper()
	if err := b.Reconcile(n.ctx(), liveOf(live...)); err != nil {
		n.t.Errorf("reconcile with %d live: %v", len(live), err)
	}
}

func (n *node) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	n.t.Cleanup(cancel)
	return ctx
}

func liveOf(asks ...share.Ask) map[share.ID]share.Ask {
	live := map[share.ID]share.Ask{}
	for _, a := range asks {
		live[a.ID] = a
	}
	return live
}

// wipe removes the driver's state folder.
func (n *node) wipe() {
	n.t.Helper()
	if err := os.RemoveAll(filepath.Join(n.m.Root, stateDir)); err != nil {
		n.t.Fatal(err)
	}
}

// Run runs the suite.
func Run(t *testing.T, s Suite) {
	t.Helper()
	if len(s.Asks) < 2 {
		t.Fatal("the suite needs two asks at least")
	}
	t.Run("it describes itself", s.describes)
	t.Run("a probe passes, or says what is missing", s.probes)
	t.Run("what is made twice is there once", s.preparesTwice)
	t.Run("what is released twice is gone", s.releasesTwice)
	t.Run("shares do not touch each other", s.neighbours)
	t.Run("foreign things stay", s.foreign)
	t.Run("reconcile keeps what is live and removes the rest", s.reconciles)
	t.Run("other sizes are made anew", s.resizes)
	t.Run("the state folder is wiped", s.wiped)
	t.Run("half of the files are there", s.halfOfTheFiles)
	t.Run("prepare meets every fault at every call", s.prepareFaults)
	t.Run("release meets every fault at every call", s.releaseFaults)
	t.Run("reconcile meets every fault at every call", s.reconcileFaults)
	t.Run("strangers and shares come in any order", s.mixed)
	if s.NoLies {
		return
	}
	t.Run("prepare meets a lie at every call", s.prepareLies)
	t.Run("release meets a lie at every call", s.releaseLies)
	t.Run("reconcile meets a lie at every call", s.reconcileLies)
}
