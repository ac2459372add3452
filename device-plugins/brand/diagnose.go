package brand

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/device-plugins/diagnose"
	"github.com/heteroflow/heteroflow/device-plugins/diagnose/mask"
)

var (
	_ device.Diagnoser = (*Detector)(nil)
	_ mask.Knower      = (*Detector)(nil)
)

// A trace is how one reading went.
type trace struct {
	bus   bus
	paths []diagnose.Path
	said  []string
}

func (t *trace) add(tool string, tracer *diagnose.Tracer, state diagnose.State, detail string) {
	t.paths = append(t.paths, diagnose.Path{Name: tool, Kind: diagnose.Tool, State: state, Detail: detail, Calls: tracer.Calls()})
	t.said = append(t.said, tracer.Said()...)
}

func (d *Detector) keep(t *trace) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last = t
}

func counted(n int) string {
	if n == 1 {
		return "lists 1 card"
	}
	return fmt.Sprintf("lists %d cards", n)
}

// Diagnose says how the last reading went, and what is missing for a better one. It reads where nothing was read yet.
func (d *Detector) Diagnose(ctx context.Context) (diagnose.Brand, error) {
	d.mu.Lock()
	t, cards := d.last, d.found
	d.mu.Unlock()
	if t == nil {
		var err error
		if cards, err = d.Detect(ctx); ctx.Err() != nil {
			return diagnose.Brand{}, err
		}
		d.mu.Lock()
		t = d.last
		d.mu.Unlock()
	}
	tried := slices.Clone(t.paths)
	for _, tool := range d.tools[len(tried):] {
		why := "a better one answered"
		switch {
		case !t.bus.mayHaveCards:
			why = "no card shows on the PCI bus or by a device node"
		case len(tried) > 0 && tried[len(t.paths)-1].State == diagnose.Hangs:
			why = "no time was left"
		}
		tried = append(tried, diagnose.Path{Name: tool, Kind: diagnose.Tool, State: diagnose.NotTried, Detail: why})
	}
	return diagnose.Examine(diagnose.Case{
		Vendor: d.spec.Vendor, Setup: d.spec.Setup, Files: d.files, Tools: d.run, Bus: t.bus.cards, Signs: t.bus.signs,
		Paths: tried, Said: t.said, Cards: cards,
	}), nil
}

// Secrets finds what a text of the tool tells of one card, owner or job alone.
func (d *Detector) Secrets(text string) []mask.Secret {
	if d.spec.Parse == nil {
		return nil
	}
	var all []mask.Secret
	for _, c := range d.spec.Parse(text).Cards {
		all = append(all, mask.Secret{Kind: mask.Serial, Value: c.ID})
		for name, value := range c.Facts {
			if name = strings.ToLower(name); strings.Contains(name, "serial") || strings.Contains(name, "uuid") {
				all = append(all, mask.Secret{Kind: mask.Serial, Value: value})
			}
		}
		for _, p := range c.Processes {
			all = append(all, mask.Secret{Kind: mask.Command, Value: p.Name, With: strconv.Itoa(p.PID)})
		}
	}
	return all
}
