package cambricon

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/device-plugins/catalogue"
	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/maker/makertest"
	"github.com/heteroflow/heteroflow/task-driver/share/sharetest"
)

const cardMiB = 23374

func ask(task string, mib uint64, pct int) share.Ask {
	return share.Ask{
		ID: share.NewID(task, accel.Cambricon, "MLU-1"), TaskID: task, Vendor: accel.Cambricon, Form: accel.Shared, MemoryMiB: mib, ComputePct: pct, Of: 1, Container: true,
		Card: grant.Card{UUID: "MLU-1", Model: "MLU370-X8", Index: 1, MemoryMiB: cardMiB},
	}
}

func none(string) {}

func TestSMLUs_PassTheSuite(t *testing.T) {
	t.Parallel()
	for name, asks := range map[string][]share.Ask{
		"two sizes":                  {ask("a/t/1", 4096, 25), ask("b/t/2", 8192, 50)},
		"one size, and so a profile": {ask("a/t/1", 4096, 25), ask("b/t/2", 4096, 25)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sharetest.Run(t, sharetest.Suite{
				Machine: func(t testing.TB) sharetest.Machine {
					p := makertest.NewSMLUs()
					return sharetest.Machine{Tool: p, Root: t.TempDir(), Things: p.Things, Foreign: func() {
						p.Call([]string{"create-profile", "1", "25", "4096"})
						p.Call([]string{"create-profile", "1", "10", "1024"})
						profiles, err := parseProfiles(p.Call([]string{"profiles", "1"}).Stdout)
						if err != nil {
							t.Fatal(err)
						}
						own := slices.IndexFunc(profiles, func(p profile) bool { return p.Pct == 10 }) // theirs, whatever we made before
						p.Call([]string{"create-instance", "1", strconv.Itoa(profiles[own].ID), "somebody"})
					}}
				},
				New:      func(h share.Host) share.Backend { return New(h) },
				Asks:     asks,
				Nameless: true,
			})
		})
	}
}

// Instances have names: they are found without our notes. A profile without one is left.
func TestSMLUs_AWipedStateFolderLeavesNoInstance(t *testing.T) {
	t.Parallel()
	p := makertest.NewSMLUs()
	if _, err := New(share.Host{Tool: p, Root: t.TempDir(), Dir: "/state"}).Prepare(t.Context(), ask("a", 4096, 25), none); err != nil {
		t.Fatal(err)
	}
	if err := New(share.Host{Tool: p, Root: t.TempDir(), Dir: "/state"}).Reconcile(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"profile of card 1: 25 % and 4096 MiB"}, p.Things()); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

// A stranger's profile of our size, made after ours, is not ours.
func TestSMLUs_AStrangersProfileOfOneSizeStays(t *testing.T) {
	t.Parallel()
	p := makertest.NewSMLUs()
	b := New(share.Host{Tool: p, Root: t.TempDir(), Dir: "/state"})
	if _, err := b.Prepare(t.Context(), ask("a", 4096, 25), none); err != nil {
		t.Fatal(err)
	}
	p.Call([]string{"create-profile", "1", "25", "4096"})
	if err := b.Release(t.Context(), ask("a", 0, 0).ID); err != nil {
		t.Fatal(err)
	}
	if got := p.Call([]string{"profiles", "1"}).Stdout; got != "1 25 4096\n" {
		t.Errorf("left are %q, want the stranger's, whose number is 1", got)
	}
}

func TestSMLUs_SizesAndRefusals(t *testing.T) {
	t.Parallel()
	p := makertest.NewSMLUs()
	b := New(share.Host{Tool: p, Root: t.TempDir(), Dir: "/state"})
	got, err := b.Prepare(t.Context(), ask("a", 4096, 0), none)
	if diff := cmp.Diff(share.Setup{Nodes: []string{"/dev/cambricon-caps/cap_dev1_mi1"}}, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if !slices.Contains(p.Things(), "profile of card 1: 17 % and 4096 MiB") {
		t.Errorf("without a limit of compute: %v", p.Things())
	}
	before := p.Things()
	for want, a := range map[string]share.Ask{
		"multiples of 256 MiB":   ask("b", 4097, 10),
		"insufficient resources": ask("b", 20480, 10),
	} {
		if _, err := b.Prepare(t.Context(), a, none); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
		if diff := cmp.Diff(before, p.Things()); diff != "" {
			t.Errorf("%s (-before +after):\n%s", want, diff)
		}
	}
	err = New(share.Host{Tool: sharetest.NewTools(nil)}).Probe(t.Context())
	if err == nil || !strings.Contains(err.Error(), "libcndev") || !strings.Contains(err.Error(), "/usr/local/libexec/heteroflow/cambricon-smlu") {
		t.Errorf("without the program: %v", err)
	}
}

func TestRule_IsTheCataloguesOwn(t *testing.T) {
	t.Parallel()
	want, _ := catalogue.Product{}.Rounding(accel.Cambricon, accel.ModeSMLU)
	if diff := cmp.Diff(want, rule); diff != "" {
		t.Errorf("(-catalogue +here):\n%s", diff)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("0 25 4096\n1 50 8192\n")
	f.Add("0 hf0123456789abcdef 0 /dev/cambricon-caps/cap_dev0_mi1\n")
	f.Fuzz(func(t *testing.T, text string) {
		if all, err := parseProfiles(text); err != nil && len(all) > 0 {
			t.Error("half a list of profiles")
		}
		all, err := parseInstances(text)
		for _, i := range all {
			if err != nil || i.Index < 0 || i.Profile < 0 || !strings.HasPrefix(i.Node, "/dev/") {
				t.Errorf("%+v with %v", i, err)
			}
		}
	})
}

func TestSMLUs_RandomWalk(t *testing.T) {
	t.Parallel()
	makertest.Run(t, makertest.Walk{
		Machine: func(_ *rapid.T, root string) sharetest.Machine {
			p := makertest.NewSMLUs()
			p.Call([]string{"create-profile", "1", "25", "4096"})
			return sharetest.Machine{Tool: p, Root: root, Things: p.Things}
		},
		New:  func(h share.Host) share.Backend { return New(h) },
		Asks: makertest.Sizes(4, func(task string, mib uint64) share.Ask { return ask(task, mib, 0) }, 4096, 8192),
	})
}

// A crash left a note without an id, and since then a stranger made a profile of that size: of two, one is the stranger's, and
// which cannot be told.
func TestSMLUs_LeaveProfilesThatMayBeAStrangers(t *testing.T) {
	t.Parallel()
	p := makertest.NewSMLUs()
	b := New(share.Host{Tool: p, Root: t.TempDir(), Dir: "/state"})
	n := note{Index: 1, Pct: 25, MiB: 4096}
	if err := b.notes.Put(n.id(), n); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		p.Call([]string{"create-profile", "1", "25", "4096"})
	}
	for range 3 {
		if err := b.Reconcile(t.Context(), nil); err != nil {
			t.Error(err)
		}
	}
	if things := p.Things(); len(things) != 2 {
		t.Errorf("left: %v", things)
	}
}
