package device

import (
	"context"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// Found is what one look at the machine gave, for people and for the doctor.
type Found struct {
	Sources []FoundSource `json:"sources"`
	Cards   []FoundCard   `json:"cards"`
}

// FoundSource is how one detector fared.
type FoundSource struct {
	Name   string       `json:"name"`
	Vendor accel.Vendor `json:"vendor"`
	Cards  int          `json:"cards"`
	Error  string       `json:"error,omitempty"`
	Note   string       `json:"note,omitempty"` // what this build of the plugin leaves out
}

// A Noter says what a build of the plugin leaves out of a detector; empty when nothing.
type Noter interface {
	Note() string
}

// FoundCard is one card as it would be offered. Absent numbers are unknown.
type FoundCard struct {
	Vendor        accel.Vendor      `json:"vendor"`
	Model         string            `json:"model"`
	RawName       string            `json:"raw_name"`
	UUID          string            `json:"uuid"`
	Index         *int              `json:"index,omitempty"`
	PCIAddress    string            `json:"pci_bus_id,omitempty"`
	NUMANode      *int              `json:"numa_node,omitempty"`
	MemoryMiB     *uint64           `json:"memory_mib,omitempty"`
	DriverVersion string            `json:"driver_version,omitempty"`
	Modes         []string          `json:"modes,omitempty"`
	Rounding      string            `json:"rounding,omitempty"`
	Parent        string            `json:"parent,omitempty"`
	Links         string            `json:"links,omitempty"`
	NIC           string            `json:"nic,omitempty"`
	NICLink       string            `json:"nic_link,omitempty"`
	Form          accel.Form        `json:"form"`
	FormPolicy    string            `json:"form_policy"`
	DeviceID      string            `json:"device_id"`
	Healthy       bool              `json:"healthy"`
	Reason        string            `json:"reason,omitempty"`
	Sources       map[string]string `json:"sources,omitempty"`
	Conflicts     []string          `json:"conflicts,omitempty"` // of its sources, with what each says
}

// Once looks at the machine once, as the plugin would, and changes nothing.
func Once(ctx context.Context, cfg Config, build Build, log hclog.Logger) (Found, error) {
	p := New(build, log)
	if err := p.Use(cfg); err != nil {
		return Found{}, err
	}
	return p.once(ctx, func(int, *source) {})
}

// once makes one reading of every source, and does what else is to be done with each of them.
func (p *Plugin) once(ctx context.Context, then func(i int, s *source)) (Found, error) {
	if err := p.ready(); err != nil {
		return Found{}, err
	}
	found := Found{Sources: make([]FoundSource, len(p.sources)), Cards: []FoundCard{}}
	var wg sync.WaitGroup
	for i, s := range p.sources {
		wg.Go(func() {
			defer then(i, s)
			before := p.look(s)
			cards, err := guarded(ctx, &s.detecting, p.limit, s.Detect)
			found.Sources[i] = FoundSource{Name: s.Name(), Vendor: s.Vendor(), Cards: len(cards)}
			if n, ok := s.Detector.(Noter); ok {
				found.Sources[i].Note = n.Note()
			}
			if err != nil {
				found.Sources[i].Error = err.Error()
				return
			}
			p.mu.Lock()
			p.take(s, p.own(before, p.age(s), valid(cards)))
			cards = s.tracker.cards()
			p.mu.Unlock()
			if l, ok := s.Detector.(Linker); ok && len(cards) > 0 {
				p.readLinks(ctx, s, l, cards)
			}
		})
	}
	wg.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range p.offers() {
		h := o.health()
		var index *int
		if o.Index >= 0 {
			index = &o.Index
		}
		found.Cards = append(found.Cards, FoundCard{
			Vendor: o.Vendor, Model: o.Model, RawName: o.RawName, UUID: o.UUID, Index: index, PCIAddress: o.PCIAddress,
			NUMANode: o.NUMANode, MemoryMiB: o.MemoryMiB, DriverVersion: o.DriverVersion, Modes: o.Modes, Form: o.Form,
			Links: o.links, NIC: o.nic, NICLink: o.nicLink,
			Rounding: accel.FormatRounding(o.Rounding), Parent: o.Parent,
			FormPolicy: o.policy, DeviceID: o.DeviceID(), Healthy: h.OK, Reason: h.Reason, Sources: o.Sources, Conflicts: o.Conflicts,
		})
	}
	return found, nil
}
