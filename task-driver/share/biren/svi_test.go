package biren

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/maker/makertest"
	"github.com/heteroflow/heteroflow/task-driver/share/sharetest"
)

// brsmi is a fake brsmi of three cards that keeps how they are divided, and the nodes below root.
type brsmi struct {
	*sharetest.Tools
	t       testing.TB
	mu      sync.Mutex
	root    string
	parts   map[int]int
	extra   map[int][]int // numbers of the nodes that a division made
	used    map[int]int
	renames bool // dividing a card takes the node of another
}

func newBRSMI(t testing.TB, root string) *brsmi {
	t.Helper()
	f := &brsmi{t: t, root: root, parts: map[int]int{0: 1, 1: 1, 2: 1}, extra: map[int][]int{}, used: map[int]int{}}
	for n := range f.parts {
		f.node(n, true)
	}
	f.Tools = sharetest.NewTools(map[string]func([]string) share.Output{"brsmi": f.run})
	return f
}

func (f *brsmi) path(n int) string { return filepath.Join(f.root, nodeStem+strconv.Itoa(n)) }

func (f *brsmi) node(n int, there bool) {
	if !there {
		if err := os.Remove(f.path(n)); err != nil {
			f.t.Error(err)
		}
		return
	}
	if err := os.MkdirAll(filepath.Dir(f.path(n)), 0o755); err != nil {
		f.t.Error(err)
	}
	if err := os.WriteFile(f.path(n), nil, 0o600); err != nil {
		f.t.Error(err)
	}
}

func (f *brsmi) things() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for index, parts := range f.parts {
		if parts > 1 {
			out = append(out, fmt.Sprintf("card %d in %d", index, parts))
		}
	}
	slices.Sort(out)
	return out
}

func (f *brsmi) run(args []string) share.Output {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case len(args) == 3 && strings.HasPrefix(args[1], "--query-gpu=index,svi.mode.current,memory.used"):
		var b strings.Builder
		for _, index := range slices.Sorted(maps.Keys(f.parts)) {
			mode := "Disabled"
			if f.parts[index] > 1 {
				mode = "Enabled"
			}
			fmt.Fprintf(&b, "%d, %s, %d\n", index, mode, f.used[index])
		}
		return share.Output{Stdout: b.String()}
	case len(args) == 6 && args[1] == "set" && args[2] == "-s" && args[4] == "-i":
		return f.set(args[3], args[5])
	}
	return share.Output{Stderr: "unknown command", ExitCode: 2}
}

func (f *brsmi) set(mode, card string) share.Output {
	index, err := strconv.Atoi(card)
	parts, known := map[string]int{"0": 1, "1": 2, "2": 4}[mode]
	switch {
	case err != nil || !known || f.parts[index] == 0:
		return share.Output{Stderr: "invalid argument", ExitCode: 2}
	case f.used[index] > 0:
		return share.Output{Stderr: "device or resource busy", ExitCode: 16}
	case parts > 1 && f.parts[index] > 1:
		return share.Output{Stderr: "already enabled", ExitCode: 1}
	}
	for _, n := range f.extra[index] {
		f.node(n, false)
	}
	f.extra[index] = nil
	f.parts[index] = parts
	for n := 3; len(f.extra[index]) < parts-1; n++ {
		if _, err := os.Stat(f.path(n)); err != nil {
			f.node(n, true)
			f.extra[index] = append(f.extra[index], n)
		}
	}
	if f.renames && parts > 1 {
		f.node(2, false)
	}
	return share.Output{}
}

func ask(task string, index int, mib uint64) share.Ask {
	uuid := "GPU-" + strconv.Itoa(index)
	return share.Ask{
		ID: share.NewID(task, accel.Biren, uuid), TaskID: task, Vendor: accel.Biren, Form: accel.Shared, MemoryMiB: mib, Of: 1, Container: true,
		Card: grant.Card{UUID: uuid, Model: "Biren166C", Index: index, MemoryMiB: 65536, Nodes: []string{nodeStem + strconv.Itoa(index)}},
	}
}

func none(string) {}

func TestSVI_PassesTheSuite(t *testing.T) {
	t.Parallel()
	for name, asks := range map[string][]share.Ask{
		"two halves of one card":    {ask("a/t/1", 0, 32768), ask("b/t/2", 0, 32768)},
		"parts of two cards":        {ask("a/t/1", 0, 32768), ask("b/t/2", 1, 16384)},
		"two quarters and the rest": {ask("a/t/1", 1, 16384), ask("b/t/2", 1, 16384), ask("c/t/3", 1, 16384)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sharetest.Run(t, sharetest.Suite{
				Machine: func(t testing.TB) sharetest.Machine {
					f := newBRSMI(t, t.TempDir())
					return sharetest.Machine{Tool: f, Root: f.root, Things: f.things, Foreign: func() { f.run([]string{"gpu", "set", "-s", "1", "-i", "2"}) }}
				},
				New:      func(h share.Host) share.Backend { return New(h) },
				Asks:     asks,
				Nameless: true,
			})
		})
	}
}

func machine(t testing.TB) (*brsmi, *SVI) {
	t.Helper()
	f := newBRSMI(t, t.TempDir())
	return f, New(share.Host{Tool: f, Root: f.root, Dir: "/state"})
}

func TestSVI_EachTaskHasItsOwnNode(t *testing.T) {
	t.Parallel()
	f, b := machine(t)
	var nodes []string
	for _, task := range []string{"a", "b", "c", "d"} {
		s, err := b.Prepare(t.Context(), ask(task, 1, 16384), none)
		if err != nil {
			t.Fatal(err)
		}
		if !s.Instead || len(s.Nodes) != 1 || s.Env["BR_PHY_CARDS"] != "card_"+s.Visible {
			t.Errorf("setup %+v", s)
		}
		nodes = append(nodes, s.Nodes...)
	}
	if diff := cmp.Diff([]string{nodeStem + "1", nodeStem + "3", nodeStem + "4", nodeStem + "5"}, nodes); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
	if _, err := b.Prepare(t.Context(), ask("e", 1, 16384), none); err == nil || !strings.Contains(err.Error(), "all 4 parts") {
		t.Errorf("a fifth quarter: %v", err)
	}
	if _, err := b.Prepare(t.Context(), ask("e", 1, 32768), none); err == nil || !strings.Contains(err.Error(), "divided in 4 for other tasks") {
		t.Errorf("a half beside quarters: %v", err)
	}
	for _, task := range []string{"a", "b", "c", "d"} {
		if err := b.Release(t.Context(), ask(task, 1, 0).ID); err != nil {
			t.Error(err)
		}
	}
	if got := f.things(); len(got) > 0 {
		t.Errorf("left are %v", got)
	}
}

func TestSVI_Refusals(t *testing.T) {
	t.Parallel()
	for want, set := range map[string]func(f *brsmi, a *share.Ask){
		"is in use (100 MiB)":               func(f *brsmi, _ *share.Ask) { f.used[0] = 100 },
		"sudo brsmi gpu set -s 0 -i 0":      func(f *brsmi, _ *share.Ask) { f.run([]string{"gpu", "set", "-s", "1", "-i", "0"}) },
		"1-4-gpu (16 GiB, 25 %), 1-2-gpu (": func(_ *brsmi, a *share.Ask) { a.MemoryMiB = 20480 },
		"numbers of cards have changed":     func(f *brsmi, _ *share.Ask) { f.renames = true },
		"lists no card 9":                   func(_ *brsmi, a *share.Ask) { a.Card.Index = 9 },
		"memory of card GPU-0 is not known": func(_ *brsmi, a *share.Ask) { a.Card.MemoryMiB = 0 },
	} {
		f, b := machine(t)
		a := ask("a", 0, 32768)
		set(f, &a)
		before := f.things()
		if _, err := b.Prepare(t.Context(), a, none); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
		if diff := cmp.Diff(before, f.things()); diff != "" {
			t.Errorf("%s: cards (-before +after):\n%s", want, diff)
		}
		if notes, err := b.shares.All(); err != nil || len(notes) > 0 {
			t.Errorf("%s: left are %v, %v", want, notes, err)
		}
	}
}

// A division outlives a restart of the machine: what we divided is made whole when its tasks are gone.
func TestSVI_AfterARestartOfTheMachine(t *testing.T) {
	t.Parallel()
	f, b := machine(t)
	if _, err := b.Prepare(t.Context(), ask("a", 0, 32768), none); err != nil {
		t.Fatal(err)
	}
	if err := New(b.host).Reconcile(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if got := f.things(); len(got) > 0 {
		t.Errorf("left are %v", got)
	}
}

func FuzzParseRows(f *testing.F) {
	f.Add("0, Disabled, 0\n1, Enabled, 2048\n")
	f.Fuzz(func(t *testing.T, text string) {
		for index := range parseRows(text) {
			if index < 0 {
				t.Errorf("card %d", index)
			}
		}
	})
}

func TestSVI_RandomWalk(t *testing.T) {
	t.Parallel()
	makertest.Run(t, makertest.Walk{
		Machine: func(_ *rapid.T, root string) sharetest.Machine {
			f := newBRSMI(t, root)
			f.run([]string{"gpu", "set", "-s", "1", "-i", "2"})
			return sharetest.Machine{Tool: f, Root: root, Things: f.things}
		},
		New: func(h share.Host) share.Backend { return New(h) },
		Asks: slices.Concat(
			makertest.Sizes(3, func(task string, mib uint64) share.Ask { return ask(task, 0, mib) }, 16384, 32768),
			makertest.Sizes(3, func(task string, mib uint64) share.Ask { return ask(task, 1, mib) }, 16384, 32768),
		),
	})
}
