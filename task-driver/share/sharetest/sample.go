package sharetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/task-driver/share"
)

// Cards is a fake maker's tool, "sharetool", that divides cards and keeps what it made. It is safe for concurrent use.
//
//	sharetool list                        lines "<name> <card> <MiB>"
//	sharetool create <name> <card> <MiB>  exit 17 when the name is taken
//	sharetool destroy <name>              exit 2 when there is none
type Cards struct {
	*Tools
	mu    sync.Mutex
	parts map[string]Part
}

// Part is one part of a card.
type Part struct {
	Name, Card string
	MemoryMiB  uint64
}

// NewCards are cards without a part.
func NewCards() *Cards {
	c := &Cards{parts: map[string]Part{}}
	c.Tools = NewTools(map[string]func([]string) share.Output{"sharetool": c.run})
	return c
}

// Parts are what the cards are divided into, by name.
func (c *Cards) Parts() []Part {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []Part
	for _, p := range c.parts {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b Part) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Add makes a part as anybody may.
func (c *Cards) Add(p Part) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.parts[p.Name] = p
}

func (c *Cards) run(args []string) share.Output {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case len(args) == 1 && args[0] == "list":
		var out strings.Builder
		for _, p := range c.parts {
			fmt.Fprintf(&out, "%s %s %d\n", p.Name, p.Card, p.MemoryMiB)
		}
		return share.Output{Stdout: out.String()}
	case len(args) == 4 && args[0] == "create":
		if _, taken := c.parts[args[1]]; taken {
			return share.Output{Stderr: "name is taken", ExitCode: 17}
		}
		mib, err := strconv.ParseUint(args[3], 10, 64)
		if err != nil {
			return share.Output{Stderr: "bad size", ExitCode: 1}
		}
		c.parts[args[1]] = Part{Name: args[1], Card: args[2], MemoryMiB: mib}
		return share.Output{}
	case len(args) == 2 && args[0] == "destroy":
		if _, there := c.parts[args[1]]; !there {
			return share.Output{Stderr: "no such part", ExitCode: 2}
		}
		delete(c.parts, args[1])
		return share.Output{}
	}
	return share.Output{Stderr: "usage", ExitCode: 64}
}

// Sample is a backend over sharetool: the shortest that passes the suite, for tests of what uses backends.
type Sample struct {
	host   share.Host
	vendor accel.Vendor
	name   string
}

var _ share.Backend = (*Sample)(nil)

// NewSample is the backend of this brand and name.
func NewSample(h share.Host, v accel.Vendor, name string) *Sample {
	return &Sample{host: h, vendor: v, name: name}
}

// Name is as it was made with.
func (b *Sample) Name() string { return b.name }

// Vendor is as it was made with.
func (b *Sample) Vendor() accel.Vendor { return b.vendor }

// Describe says what a maker's driver would.
func (b *Sample) Describe() share.Isolation {
	return share.Isolation{
		QoS: accel.Silver, Memory: share.ByDriver, Compute: share.NotAtAll, Faults: share.NotAtAll, Sight: share.NotAtAll,
		Forms: []accel.Form{accel.Shared}, Limits: "It is a fake.", LimitsZH: "仅供测试。",
	}
}

// Probe looks for the tool.
func (b *Sample) Probe(context.Context) error {
	if _, err := b.host.Tool.Look("sharetool"); err != nil {
		return fmt.Errorf("sharetool is not installed: install it (%w)", err)
	}
	return nil
}

// Prepare makes the part.
func (b *Sample) Prepare(ctx context.Context, a share.Ask, event func(string)) (share.Setup, error) {
	setup := share.Setup{Env: map[string]string{"SAMPLE_PART": string(a.ID)}}
	parts, err := b.list(ctx)
	if err != nil {
		return share.Setup{}, err
	}
	if p, there := parts[a.ID]; there {
		if p.MemoryMiB == a.MemoryMiB && p.Card == a.Card.UUID {
			return setup, nil
		}
		if err := b.Release(ctx, a.ID); err != nil {
			return share.Setup{}, err
		}
	}
	event(fmt.Sprintf("making a part of %d MiB of card %s", a.MemoryMiB, a.Card.UUID))
	if err := b.create(ctx, a); err != nil {
		return share.Setup{}, errors.Join(err, b.Release(context.WithoutCancel(ctx), a.ID))
	}
	return setup, nil
}

// create makes the part and looks for it: what a tool says is not what it did.
func (b *Sample) create(ctx context.Context, a share.Ask) error {
	if err := b.tool(ctx, "create", string(a.ID), a.Card.UUID, strconv.FormatUint(a.MemoryMiB, 10)); err != nil {
		return err
	}
	parts, err := b.list(ctx)
	if _, there := parts[a.ID]; err == nil && !there {
		err = fmt.Errorf("sharetool says that it made %s, and it is not there", a.ID)
	}
	return err
}

// Release destroys the part.
func (b *Sample) Release(ctx context.Context, id share.ID) error {
	parts, err := b.list(ctx)
	if err != nil {
		return err
	}
	if _, there := parts[id]; !there {
		return nil
	}
	return b.tool(ctx, "destroy", string(id))
}

// Reconcile destroys parts with our names that are not live.
func (b *Sample) Reconcile(ctx context.Context, live map[share.ID]share.Ask) error {
	parts, err := b.list(ctx)
	if err != nil {
		return err
	}
	var problems []error
	for id := range parts {
		if _, is := live[id]; !is {
			problems = append(problems, b.tool(ctx, "destroy", string(id)))
		}
	}
	return errors.Join(problems...)
}

// list are the parts with our names.
func (b *Sample) list(ctx context.Context) (map[share.ID]Part, error) {
	out, err := b.host.Tool.Run(ctx, "sharetool", "list")
	if err != nil {
		return nil, err
	}
	if out.ExitCode != 0 {
		return nil, fmt.Errorf("sharetool list: %s", out.Stderr)
	}
	parts := map[share.ID]Part{}
	for line := range strings.Lines(out.Stdout) {
		fields := strings.Fields(line)
		if len(fields) != 3 || !share.IsID(fields[0]) {
			continue
		}
		mib, err := strconv.ParseUint(fields[2], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("sharetool list: %q is no size", fields[2])
		}
		parts[share.ID(fields[0])] = Part{Name: fields[0], Card: fields[1], MemoryMiB: mib}
	}
	return parts, nil
}

func (b *Sample) tool(ctx context.Context, args ...string) error {
	out, err := b.host.Tool.Run(ctx, "sharetool", args...)
	if err != nil {
		return err
	}
	if out.ExitCode != 0 {
		return fmt.Errorf("sharetool %s: %s", args[0], out.Stderr)
	}
	return nil
}
