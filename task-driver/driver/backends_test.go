package driver

import (
	"context"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/maker/makertest"
)

// sharesDirHere is where shares are kept on a fake machine.
const sharesDirHere = "/var/lib/heteroflow/shares"

// newNodeManager is the driver's own set of backends on a fake machine, as a new process has it.
func newNodeManager(n *makertest.Node, ledger string, alive func(string) bool) *share.Manager {
	h := share.Host{Tool: n, Root: n.Root, Dir: sharesDirHere}
	return share.NewManager(share.Options{Registry: share.NewRegistry(newBackends(h, settings{})...), Dir: ledger, Alive: alive})
}

// leftOf are the paths of a machine that name one of the shares.
func leftOf(t makertest.TB, root string, kinds []makertest.Kind) []string {
	var out []string
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		for _, k := range kinds {
			if strings.Contains(filepath.Base(path), string(k.Ask.ID)) {
				out = append(out, path)
			}
		}
		return err
	})
	if err != nil {
		t.Fatalf("look at the machine: %v", err)
	}
	return out
}

// Every kind of share is made by the backend that its brand and quality call for, tells its owner so, and is given back.
func TestBackends_EveryKindComesAndGoes(t *testing.T) {
	t.Parallel()
	for _, k := range makertest.Kinds("a") {
		t.Run(string(k.Ask.Vendor)+"/"+k.Backend, func(t *testing.T) {
			t.Parallel()
			n := makertest.NewNode(t, t.TempDir())
			m := newNodeManager(n, t.TempDir(), func(string) bool { return true })
			var told []string
			made, err := m.Prepare(t.Context(), []share.Ask{k.Ask}, func(text string) { told = append(told, text) })
			if err != nil {
				t.Fatal(err)
			}
			if made[0].Backend != k.Backend || len(told) == 0 {
				t.Errorf("made by %s, want %s, and told %q", made[0].Backend, k.Backend, told)
			}
			if _, err := share.Combine(made); err != nil {
				t.Error(err)
			}
			if err := m.Release(t.Context(), k.Ask.TaskID); err != nil {
				t.Error(err)
			}
			if left := append(n.Things(), leftOf(t, n.Root, []makertest.Kind{k})...); len(left) > 0 {
				t.Errorf("left are %v", left)
			}
		})
	}
}

// Tasks of all brands start and end, the driver is started anew, and its memory of tasks is at times behind: at the end nothing
// is left, and never has a card given more than it has.
func TestBackends_RandomWalkOverAllBrands(t *testing.T) {
	t.Parallel()
	var kinds []makertest.Kind
	for _, task := range []string{"a", "b", "c"} {
		kinds = append(kinds, makertest.Kinds(task)...)
	}
	rapid.Check(t, func(rt *rapid.T) {
		n := makertest.NewNode(rt, t.TempDir())
		ledger := t.TempDir()
		alive := map[string]bool{}
		manager := func() *share.Manager {
			return newNodeManager(n, ledger, func(task string) bool { return alive[task] })
		}
		live := func(context.Context) (share.Live, error) { return share.Live{Tasks: alive, Complete: true}, nil }
		m := manager()
		for range rapid.IntRange(1, 10).Draw(rt, "steps") {
			k := rapid.SampledFrom(kinds).Draw(rt, "kind")
			switch rapid.IntRange(0, 5).Draw(rt, "what") {
			case 0, 1, 2:
				alive[k.Ask.TaskID] = true
				if _, err := m.Prepare(context.Background(), []share.Ask{k.Ask}, func(string) {}); err != nil {
					delete(alive, k.Ask.TaskID)
				}
			case 3:
				delete(alive, k.Ask.TaskID) // it has ended; who clears up comes later, or never
			case 4:
				delete(alive, k.Ask.TaskID)
				if err := m.Release(context.Background(), k.Ask.TaskID); err != nil {
					rt.Fatalf("release: %v", err)
				}
			case 5:
				m = manager()
				if err := m.Reconcile(context.Background(), live); err != nil {
					rt.Fatalf("reconcile: %v", err)
				}
			}
		}
		clear(alive)
		if err := manager().Reconcile(context.Background(), live); err != nil {
			rt.Fatalf("reconcile at the end: %v", err)
		}
		if diff := cmp.Diff([]string(nil), append(n.Things(), leftOf(rt, n.Root, kinds)...)); diff != "" {
			rt.Fatalf("left at the end (-want +got):\n%s", diff)
		}
	})
}
