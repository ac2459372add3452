package biren

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/maker/makertest"
	"github.com/heteroflow/heteroflow/task-driver/share/sharetest"
)

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
					root := t.TempDir()
					f := makertest.NewBRSMI(t, root)
					return sharetest.Machine{Tool: f, Root: root, Things: f.Things, Foreign: func() { f.Call([]string{"gpu", "set", "-s", "1", "-i", "2"}) }}
				},
				New:      func(h share.Host) share.Backend { return New(h) },
				Asks:     asks,
				Nameless: true,
			})
		})
	}
}

func machine(t testing.TB) (*makertest.BRSMI, *SVI) {
	t.Helper()
	root := t.TempDir()
	f := makertest.NewBRSMI(t, root)
	return f, New(share.Host{Tool: f, Root: root, Dir: "/state"})
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
	if got := f.Things(); len(got) > 0 {
		t.Errorf("left are %v", got)
	}
}

func TestSVI_Refusals(t *testing.T) {
	t.Parallel()
	for want, set := range map[string]func(f *makertest.BRSMI, a *share.Ask){
		"is in use (100 MiB)":               func(f *makertest.BRSMI, _ *share.Ask) { f.Used[0] = 100 },
		"sudo brsmi gpu set -s 0 -i 0":      func(f *makertest.BRSMI, _ *share.Ask) { f.Call([]string{"gpu", "set", "-s", "1", "-i", "0"}) },
		"1-4-gpu (16 GiB, 25 %), 1-2-gpu (": func(_ *makertest.BRSMI, a *share.Ask) { a.MemoryMiB = 20480 },
		"numbers of cards have changed":     func(f *makertest.BRSMI, _ *share.Ask) { f.Renames = true },
		"lists no card 9":                   func(_ *makertest.BRSMI, a *share.Ask) { a.Card.Index = 9 },
		"memory of card GPU-0 is not known": func(_ *makertest.BRSMI, a *share.Ask) { a.Card.MemoryMiB = 0 },
	} {
		f, b := machine(t)
		a := ask("a", 0, 32768)
		set(f, &a)
		before := f.Things()
		if _, err := b.Prepare(t.Context(), a, none); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
		if diff := cmp.Diff(before, f.Things()); diff != "" {
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
	if got := f.Things(); len(got) > 0 {
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
			f := makertest.NewBRSMI(t, root)
			f.Call([]string{"gpu", "set", "-s", "1", "-i", "2"})
			return sharetest.Machine{Tool: f, Root: root, Things: f.Things}
		},
		New: func(h share.Host) share.Backend { return New(h) },
		Asks: slices.Concat(
			makertest.Sizes(3, func(task string, mib uint64) share.Ask { return ask(task, 0, mib) }, 16384, 32768),
			makertest.Sizes(3, func(task string, mib uint64) share.Ask { return ask(task, 1, mib) }, 16384, 32768),
		),
	})
}
