package makertest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/sharetest"
)

type smluProfile struct {
	ID, Pct int
	MiB     uint64
}

type smluInstance struct {
	Index   int
	Name    string
	Profile int
	Node    string
}

// SMLUs is a fake of the administrator's program over two cards, that keeps profiles and instances as the library does: an
// instance needs its profile, a profile in use is not destroyed, a card has 100 percent and its memory.
type SMLUs struct {
	*sharetest.Tools
	mu        sync.Mutex
	next      int
	profiles  map[int][]smluProfile
	instances []smluInstance
}

// smluMiB is the memory of a card.
const smluMiB = 23374

// NewSMLUs is two cards without profiles.
func NewSMLUs() *SMLUs {
	p := &SMLUs{profiles: map[int][]smluProfile{0: nil, 1: nil}}
	p.Tools = sharetest.NewTools(map[string]func([]string) share.Output{"/usr/local/libexec/heteroflow/cambricon-smlu": p.Call})
	return p
}

// Things lists profiles and instances.
func (p *SMLUs) Things() []string {
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

// Call calls the program as anybody may.
func (p *SMLUs) Call(args []string) share.Output {
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
		p.instances = slices.DeleteFunc(p.instances, func(i smluInstance) bool { return i.Index == index && i.Name == args[2] })
		if len(p.instances) == n {
			return bad("no such instance")
		}
		return share.Output{}
	}
	return share.Output{Stderr: "usage", ExitCode: 64}
}

func (p *SMLUs) createProfile(index int, percent, memory string) share.Output {
	pct, err := strconv.Atoi(percent)
	mib, mibErr := strconv.ParseUint(memory, 10, 64)
	if err != nil || mibErr != nil || pct < 1 || pct > 100 || mib%256 != 0 {
		return bad("invalid profile")
	}
	p.profiles[index] = append(p.profiles[index], smluProfile{ID: p.next, Pct: pct, MiB: mib})
	p.next++
	return share.Output{}
}

func (p *SMLUs) find(index int, id string) *smluProfile {
	at := slices.IndexFunc(p.profiles[index], func(one smluProfile) bool { return strconv.Itoa(one.ID) == id })
	if at < 0 {
		return nil
	}
	return &p.profiles[index][at]
}

func (p *SMLUs) destroyProfile(index int, id string) share.Output {
	one := p.find(index, id)
	switch {
	case one == nil:
		return bad("no such profile")
	case slices.ContainsFunc(p.instances, func(i smluInstance) bool { return i.Index == index && i.Profile == one.ID }):
		return bad("profile in use")
	}
	p.profiles[index] = slices.DeleteFunc(p.profiles[index], func(o smluProfile) bool { return o.ID == one.ID })
	return share.Output{}
}

func (p *SMLUs) createInstance(index int, id, name string) share.Output {
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
	if pct > 100 || mib > smluMiB {
		return bad("insufficient resources")
	}
	number := 1
	for slices.ContainsFunc(p.instances, func(i smluInstance) bool { return i.Node == smluNode(index, number) }) {
		number++
	}
	p.instances = append(p.instances, smluInstance{Index: index, Name: name, Profile: one.ID, Node: smluNode(index, number)})
	return share.Output{}
}

func smluNode(index, number int) string {
	return fmt.Sprintf("/dev/cambricon-caps/cap_dev%d_mi%d", index, number)
}
