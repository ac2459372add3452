package cambricon

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/device-plugins/catalogue"
	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/maker"
	"github.com/heteroflow/heteroflow/task-driver/share/maker/makertest"
	"github.com/heteroflow/heteroflow/task-driver/share/sharetest"
)

// program is a fake of the administrator's program over two cards, that keeps profiles and instances as the library does: an
// instance needs its profile, a profile in use is not destroyed, a card has 100 percent and its memory.
type program struct {
	*sharetest.Tools
	mu        sync.Mutex
	next      int
	profiles  map[int][]profile
	instances []instance
}

const cardMiB = 23374

func newProgram() *program {
	p := &program{profiles: map[int][]profile{0: nil, 1: nil}}
	p.Tools = sharetest.NewTools(map[string]func([]string) share.Output{maker.Program(accel.Cambricon, accel.ModeSMLU): p.run})
	return p
}

func (p *program) things() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for index, profiles := range p.profiles {
		for _, one := range profiles {
			out = append(out, fmt.Sprintf("profile of card %d: %d %% and %d MiB", index, one.Pct, one.MiB))
		}
	}
	for _, i := range p.instances {
		out = append(out, fmt.Sprintf("instance %s of card %d", i.Name, i.Index))
	}
	return out
}

func bad(text string) share.Output { return share.Output{Stderr: text, ExitCode: 1} }

func (p *program) run(args []string) share.Output {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(args) == 1 && args[0] == "instances" {
		var b strings.Builder
		for _, i := range p.instances {
			fmt.Fprintf(&b, "%d %s %d %s\n", i.Index, i.Name, i.Profile, i.Node)
		}
		return share.Output{Stdout: b.String()}
	}
	if len(args) < 2 {
		return share.Output{Stderr: "usage", ExitCode: 64}
	}
	index, err := strconv.Atoi(args[1])
	if _, card := p.profiles[index]; err != nil || !card {
		return bad("no such card")
	}
	switch args[0] {
	case "profiles":
		var b strings.Builder
		for _, one := range p.profiles[index] {
			fmt.Fprintf(&b, "%d %d %d\n", one.ID, one.Pct, one.MiB)
		}
		return share.Output{Stdout: b.String()}
	case "create-profile":
		return p.createProfile(index, args[2], args[3])
	case "destroy-profile":
		return p.destroyProfile(index, args[2])
	case "create-instance":
		return p.createInstance(index, args[2], args[3])
	case "destroy-instance":
		n := len(p.instances)
		p.instances = slices.DeleteFunc(p.instances, func(i instance) bool { return i.Index == index && i.Name == args[2] })
		if len(p.instances) == n {
			return bad("no such instance")
		}
		return share.Output{}
	}
	return share.Output{Stderr: "usage", ExitCode: 64}
}

func (p *program) createProfile(index int, percent, memory string) share.Output {
	pct, err := strconv.Atoi(percent)
	mib, mibErr := strconv.ParseUint(memory, 10, 64)
	if err != nil || mibErr != nil || pct < 1 || pct > 100 || mib%256 != 0 {
		return bad("invalid profile")
	}
	p.profiles[index] = append(p.profiles[index], profile{ID: p.next, Pct: pct, MiB: mib})
	p.next++
	return share.Output{}
}

func (p *program) find(index int, id string) *profile {
	at := slices.IndexFunc(p.profiles[index], func(one profile) bool { return strconv.Itoa(one.ID) == id })
	if at < 0 {
		return nil
	}
	return &p.profiles[index][at]
}

func (p *program) destroyProfile(index int, id string) share.Output {
	one := p.find(index, id)
	switch {
	case one == nil:
		return bad("no such profile")
	case slices.ContainsFunc(p.instances, func(i instance) bool { return i.Index == index && i.Profile == one.ID }):
		return bad("profile in use")
	}
	p.profiles[index] = slices.DeleteFunc(p.profiles[index], func(o profile) bool { return o.ID == one.ID })
	return share.Output{}
}

func (p *program) createInstance(index int, id, name string) share.Output {
	one := p.find(index, id)
	if one == nil {
		return bad("no such profile")
	}
	pct, mib := one.Pct, one.MiB
	for _, i := range p.instances {
		if i.Name == name {
			return bad("name is taken")
		}
		if i.Index == index {
			other := p.find(index, strconv.Itoa(i.Profile))
			pct, mib = pct+other.Pct, mib+other.MiB
		}
	}
	if pct > 100 || mib > cardMiB {
		return bad("insufficient resources")
	}
	number := 1
	for slices.ContainsFunc(p.instances, func(i instance) bool { return i.Node == node(index, number) }) {
		number++
	}
	p.instances = append(p.instances, instance{Index: index, Name: name, Profile: one.ID, Node: node(index, number)})
	return share.Output{}
}

func node(index, number int) string {
	return fmt.Sprintf("/dev/cambricon-caps/cap_dev%d_mi%d", index, number)
}

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
					p := newProgram()
					return sharetest.Machine{Tool: p, Root: t.TempDir(), Things: p.things, Foreign: func() {
						p.run([]string{"create-profile", "1", "25", "4096"})
						p.run([]string{"create-profile", "1", "10", "1024"})
						p.run([]string{"create-instance", "1", "1", "somebody"})
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
	p := newProgram()
	if _, err := New(share.Host{Tool: p, Root: t.TempDir(), Dir: "/state"}).Prepare(t.Context(), ask("a", 4096, 25), none); err != nil {
		t.Fatal(err)
	}
	if err := New(share.Host{Tool: p, Root: t.TempDir(), Dir: "/state"}).Reconcile(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"profile of card 1: 25 % and 4096 MiB"}, p.things()); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

// A stranger's profile of our size, made after ours, is not ours.
func TestSMLUs_AStrangersProfileOfOneSizeStays(t *testing.T) {
	t.Parallel()
	p := newProgram()
	b := New(share.Host{Tool: p, Root: t.TempDir(), Dir: "/state"})
	if _, err := b.Prepare(t.Context(), ask("a", 4096, 25), none); err != nil {
		t.Fatal(err)
	}
	p.run([]string{"create-profile", "1", "25", "4096"})
	if err := b.Release(t.Context(), ask("a", 0, 0).ID); err != nil {
		t.Fatal(err)
	}
	if got := p.profiles[1]; len(got) != 1 || got[0].ID == 0 {
		t.Errorf("left are %v, want the stranger's", got)
	}
}

func TestSMLUs_SizesAndRefusals(t *testing.T) {
	t.Parallel()
	p := newProgram()
	b := New(share.Host{Tool: p, Root: t.TempDir(), Dir: "/state"})
	got, err := b.Prepare(t.Context(), ask("a", 4096, 0), none)
	if diff := cmp.Diff(share.Setup{Nodes: []string{"/dev/cambricon-caps/cap_dev1_mi1"}}, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if !slices.Contains(p.things(), "profile of card 1: 17 % and 4096 MiB") {
		t.Errorf("without a limit of compute: %v", p.things())
	}
	before := p.things()
	for want, a := range map[string]share.Ask{
		"multiples of 256 MiB":   ask("b", 4097, 10),
		"insufficient resources": ask("b", 20480, 10),
	} {
		if _, err := b.Prepare(t.Context(), a, none); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
		if diff := cmp.Diff(before, p.things()); diff != "" {
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
			p := newProgram()
			p.run([]string{"create-profile", "1", "25", "4096"})
			return sharetest.Machine{Tool: p, Root: root, Things: p.things}
		},
		New:  func(h share.Host) share.Backend { return New(h) },
		Asks: makertest.Sizes(4, func(task string, mib uint64) share.Ask { return ask(task, mib, 0) }, 4096, 8192),
	})
}
