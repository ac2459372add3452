package brand

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/device-plugins/diagnose"
	"github.com/heteroflow/heteroflow/device-plugins/hostfs"
	"github.com/heteroflow/heteroflow/device-plugins/topology"
	"github.com/heteroflow/heteroflow/device-plugins/vendorcli"
	"github.com/heteroflow/heteroflow/internal/accel"
)

// toolLimit is how long all calls of one reading may take together. It is below the limit of a reading, so that the
// kernel's files can still be read when a tool hangs.
const toolLimit = 4 * time.Second

// Reasons of cards that the kernel shows and the tool does not.
const (
	ReasonNoAnswer   = "the card does not answer on the PCI bus"
	ReasonNoDriver   = "no kernel driver is bound to the card: install or load the maker's driver"
	ReasonUnreported = "the card is on the PCI bus and the maker's tool does not report it"
)

// Spec is what sets one brand apart from the others.
type Spec struct {
	Vendor accel.Vendor
	PCI    string   // PCI vendor, 4 hexadecimal digits
	NotPCI []string // PCI devices of the vendor that are no accelerators
	NotAt  string   // addresses that begin so are of graphics in the processor
	Rival  string   // PCI vendor whose cards the same text may be of, see Reading.Doubtful
	Signs  []string // patterns of files under the root that show that there may be cards, besides the bus
	Prefix string   // begins the identities that the maker's numbers give, such as "GPU-"
	Tools  []string // names or paths of the tool, best first
	// Read asks the tool of this name for everything that is of use. It returns what it has read even when a later call
	// fails.
	Read func(tool string, call Call) (Reading, error)
	// Model makes the name under which a product is offered of the one that the tool prints; nil takes it as it is.
	Model func(printed string) string
	// Kernel reads what the kernel's files say besides the bus; nil when nothing.
	Kernel func(files hostfs.FS) Reading
	// Links reads how the cards are connected, named by the tool's labels; nil when the tool does not tell.
	Links func(tool string, call Call) (topology.Graph, error)
	// Nodes names the device nodes of a card; nil when they are not known.
	Nodes func(card Card) []string
	// Parse reads any text that the tool prints; nil when no number of a card need be masked in it, see Secrets.
	Parse func(out string) Reading
	// Setup is what the cards need on a machine.
	Setup diagnose.Setup
	// Parts lists the parts of a card that the kernel's files show, for a tool that lists none.
	Parts func(files hostfs.FS, card Card) []Part
	// Seldom tells calls whose answer holds for a minute: what cards can be divided into, and are. Where such a call fails
	// or ends with a status other than 0 later, the older answer stays. Nil when there are none.
	Seldom func(args []string) bool
}

// Call calls the tool once and returns what it printed. The error says that it printed nothing.
type Call func(args ...string) (string, error)

// Config says where to look.
type Config struct {
	Root  string           // folder with /proc and /sys of the machine; empty is "/"
	Tool  string           // name or path of the tool, in place of the brand's own
	Files hostfs.FS        // the machine's files, in place of those under Root
	Tools vendorcli.Runner // runs the tools; nil runs those of this machine
	// StateDir is a folder that outlives a restart, for what must be remembered of the cards; empty remembers nothing.
	StateDir string
	Looking  bool // StateDir is only read
}

// Detector finds the cards of one brand. It is safe for concurrent use.
type Detector struct {
	spec  Spec
	tools []string
	log   hclog.Logger
	files hostfs.FS
	run   vendorcli.Runner

	known *Namesakes

	mu    sync.Mutex
	nodes map[string][]string // card UUID → device nodes
	said  string              // the last thing logged about the path taken
	tool  string              // the tool that listed the cards last; empty when none did
	last  *trace              // of the last reading; nil before the first
	found []accel.Card        // that were listed last
	held  map[string]answer   // call → its answer, of calls that are made seldom
	asOf  time.Time           // of the oldest answer of the last reading
	now   func() time.Time
}

var (
	_ device.Detector      = (*Detector)(nil)
	_ device.Sampler       = (*Detector)(nil)
	_ device.ProcessLister = (*Detector)(nil)
	_ device.NodeLister    = (*Detector)(nil)
	_ device.Ager          = (*Detector)(nil)
)

// New returns a detector. It touches nothing until the first call.
func New(spec Spec, cfg Config, log hclog.Logger) *Detector {
	d := &Detector{spec: spec, tools: spec.Tools, log: log, files: cfg.Files, run: cfg.Tools, nodes: map[string][]string{}, held: map[string]answer{}, now: time.Now}
	d.known = NewNamesakes(spec.Vendor, cfg, log)
	if !d.files.Valid() {
		d.files = hostfs.New(cfg.Root)
	}
	if d.run == nil {
		d.run = vendorcli.Host{}
	}
	if cfg.Tool != "" {
		d.tools = []string{cfg.Tool}
	}
	return d
}

// Name is the name of the source.
func (d *Detector) Name() string { return string(d.spec.Vendor) }

// Vendor is the brand.
func (d *Detector) Vendor() accel.Vendor { return d.spec.Vendor }

// Detect lists the cards by the best path that answers: the tool, the kernel.
func (d *Detector) Detect(ctx context.Context) ([]accel.Card, error) {
	r, err := d.read(ctx)
	if err != nil {
		return nil, err
	}
	cards := []accel.Card{}
	nodes := map[string][]string{}
	for i, card := range r.offer(d.spec, d.known) {
		if card.UUID == "" {
			continue
		}
		if card.PCIAddress != "" {
			card.NUMANode = d.files.NUMANode(card.PCIAddress)
		}
		if card.NUMANode != nil {
			card.Sources[accel.AttrNUMA] = "sysfs"
		}
		cards = append(cards, card)
		if d.spec.Nodes != nil {
			nodes[card.UUID] = d.spec.Nodes(r.Cards[i])
		}
		parts := r.Cards[i].parts(card)
		for n, part := range parts {
			nodes[part.UUID] = r.Cards[i].Parts[n].Nodes
		}
		cards = append(cards, parts...)
	}
	slices.SortStableFunc(cards, func(a, b accel.Card) int {
		return cmp.Or(cmp.Compare(uint(a.Index), uint(b.Index)), cmp.Compare(a.PCIAddress, b.PCIAddress), cmp.Compare(a.UUID, b.UUID))
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	d.nodes, d.found = nodes, cards
	return cards, nil
}

// Nodes are the device nodes of the card; nil when they are not known.
func (d *Detector) Nodes(card accel.Card) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.nodes[card.UUID]
}

// read makes one reading by the best path, completed by the kernel.
func (d *Detector) read(ctx context.Context) (Reading, error) {
	if err := ctx.Err(); err != nil {
		return Reading{}, err
	}
	d.mu.Lock()
	d.asOf = d.now()
	d.mu.Unlock()
	bus := d.bus()
	traced := &trace{bus: bus}
	defer d.keep(traced)
	if !bus.mayHaveCards {
		d.say("none", nil)
		return Reading{}, nil
	}
	limited, cancel := context.WithTimeout(ctx, toolLimit)
	defer cancel()
	trouble, passed := "", exec.ErrNotFound
	for _, tool := range d.tools {
		name := filepath.Base(tool)
		tracer := diagnose.Trace(d.run)
		r, err := d.spec.Read(name, d.caller(limited, tracer, tool))
		tried := func(state diagnose.State, detail string) { traced.add(tool, tracer, state, detail) }
		var start *fs.PathError
		switch {
		case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
			tried(diagnose.Missing, "")
			continue
		case len(r.Cards) > 0 && d.ours(r, bus):
			tried(diagnose.Works, counted(len(r.Cards)))
			d.use(tool)
			return d.complete(r, bus), nil
		case r.Foreign, len(r.Cards) > 0 && bus.listed:
			tried(diagnose.Foreign, "another maker's tool of the same name")
			passed = fmt.Errorf("%s is another maker's tool of the same name", name)
		case len(r.Cards) > 0:
			trouble = "nothing tells whether the cards that " + name + " lists are of this brand"
			tried(diagnose.Failed, "lists cards, and nothing tells whether they are of this brand")
		case r.NoCards:
			tried(diagnose.Works, "lists no card")
			d.say(tool, nil)
			return d.complete(r, bus), nil
		case ctx.Err() != nil:
			return Reading{}, ctx.Err()
		case r.Trouble != "":
			trouble = name + ": " + r.Trouble
			tried(diagnose.Failed, "says: "+r.Trouble)
		case errors.As(err, &start):
			trouble = name + " cannot be started: " + start.Err.Error()
			tried(diagnose.Failed, "cannot be started: "+start.Err.Error())
		case limited.Err() != nil, tracer.Hung():
			trouble = name + " does not answer"
			tried(diagnose.Hangs, fmt.Sprintf("does not answer after %.0f s", toolLimit.Seconds()))
			return d.byKernel(bus, trouble, passed) // no time is left for another
		default:
			trouble = name + " printed nothing that is known"
			tried(diagnose.Failed, "prints nothing that is known")
		}
	}
	return d.byKernel(bus, trouble, passed)
}

// byKernel is the reading without a tool: the cards on the bus. Where a tool is in trouble, so are they. Without a tool
// and without cards there is nothing; a tool that fails where no card is seen cannot tell.
func (d *Detector) byKernel(bus bus, trouble string, noTool error) (Reading, error) {
	r := d.complete(Reading{}, bus)
	if trouble == "" {
		d.say("sysfs", noTool)
		return r, nil
	}
	d.say("sysfs", errors.New(trouble))
	if len(r.Cards) == 0 {
		if bus.listed {
			return r, nil // the bus was read and has none of our cards: the tool has nothing to talk to
		}
		return Reading{}, errors.New(trouble)
	}
	for i := range r.Cards {
		r.Cards[i].Dead = cmp.Or(r.Cards[i].Dead, trouble)
	}
	return r, nil
}

// caller calls one tool. What it printed to its error stream counts when it printed nothing else.
func (d *Detector) caller(ctx context.Context, run vendorcli.Runner, tool string) Call {
	return d.seldom(ctx, tool, func(args ...string) (string, bool, error) {
		out, err := run.Run(ctx, tool, args...)
		if err != nil {
			return "", true, err
		}
		if text := cmp.Or(out.Stdout, out.Stderr); text != "" {
			return text, out.ExitCode != 0, nil
		}
		return "", true, fmt.Errorf("%s printed nothing", filepath.Base(tool))
	})
}

// say logs the path taken and why no better one was, once for every change.
func (d *Detector) say(path string, why error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	said := path
	if why != nil {
		said += ": " + why.Error()
	}
	if d.said == said {
		return
	}
	d.said = said
	facts := []any{"vendor", d.spec.Vendor, "path", path}
	if why != nil {
		facts = append(facts, "why", why)
	}
	d.log.Info("reading cards", facts...)
}

// Sample reads the live numbers of cards.
func (d *Detector) Sample(ctx context.Context, cards []accel.Card) (map[string]device.Sample, error) {
	r, err := d.read(ctx)
	if err != nil {
		return nil, err
	}
	samples := map[string]device.Sample{}
	d.match(r, cards, func(c Card, uuid string) {
		sample := c.More
		sample.MemoryUsedMiB, sample.UtilizationPct, sample.TemperatureC = c.MemoryUsedMiB, c.UtilizationPct, c.TemperatureC
		sample.PowerW, sample.PowerLimitW = c.PowerW, c.PowerLimitW
		if r.ProcessesKnown {
			sample.Processes = c.pids()
		}
		samples[uuid] = sample
	})
	return samples, nil
}

// Processes lists the processes of each card, when the tool lists them.
func (d *Detector) Processes(ctx context.Context, cards []accel.Card) (map[string][]int, error) {
	r, err := d.read(ctx)
	if err != nil {
		return nil, err
	}
	processes := map[string][]int{}
	if !r.ProcessesKnown {
		return processes, nil
	}
	d.match(r, cards, func(c Card, uuid string) {
		processes[uuid] = c.pids()
	})
	return processes, nil
}

// pids are the processes of the card, never nil.
func (c Card) pids() []int {
	pids := []int{}
	for _, p := range c.Processes {
		pids = append(pids, p.PID)
	}
	return pids
}

func (d *Detector) match(r Reading, cards []accel.Card, found func(Card, string)) {
	for i, identity := range r.identities(d.spec.Prefix, d.known) {
		if slices.ContainsFunc(cards, func(c accel.Card) bool { return c.UUID == identity }) {
			found(r.Cards[i], identity)
		}
	}
}
