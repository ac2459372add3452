// Package nvidia finds NVIDIA cards and reads their facts, statistics and processes: by NVML, then by nvidia-smi,
// then from the kernel's files. Forms, device groups and reservations do not belong here.
package nvidia

import (
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/device-plugins/toolout"
)

// A report is what one reading said, in the words of the tool. Fields the reading did not have are nil or empty:
// unknown is not zero.
type report struct {
	gpus      []gpu
	driver    string
	processes []process
	// processesKnown is set when the reading lists processes, also when it lists none.
	processesKnown bool
	// noDriver is set when the tool says that it cannot reach the driver, noDevices when it says that it found none.
	noDriver, noDevices bool
	conflict            string  // what the kernel says differently of the driver
	events              []event // what befell cards since the last reading
	// attached is how many cards the tool says there are, cuda the newest level of CUDA that the driver offers.
	attached *int
	cuda     string
}

// event is an Xid: what the driver reported of a board.
type event struct {
	uuid string // empty where the kernel's log told of it
	pci  string // of the board; empty where the library told of it and not where
	xid  int
	gi   *int // GPU instance that it is about, nil for the whole board
}

// gpu is one board as a reading printed it.
type gpu struct {
	index *int
	uuid  string // empty where it does not name the board
	// repeated is the UUID that other boards give too; empty for nearly all boards.
	repeated string
	pci      string // normal form, see pciAddress
	name     string
	nameCut  bool // the name was cut short by the tool
	// nameByPCI is set when the name is the product's of the PCI device: no reading named the card.
	nameByPCI bool
	minor     *int // number of the device node
	memory    *uint64
	migMode   *bool
	migs      []mig
	dead      string // why the card cannot be used, empty when nothing says so

	memoryUsed                               *uint64
	utilization, temperature, power, powerOf *float64

	more       device.Sample // numbers that only some readings have
	links      []bool        // of each link to other cards whether it is up; nil when not known
	conflicts  []string      // what the kernel says differently
	needsReset bool          // the card says that it must be reset before it is of use
	// facts is what the tool says of the card besides, in its own words, by the names of the query.
	facts map[string]string
}

// Bounds of what is taken of one text: no machine has more, nor a board.
const (
	maxBoards    = 128
	maxParts     = 64 // of one board
	maxProcesses = 4096
)

// add adds a board, unless there are too many.
func (r *report) add(g gpu) {
	if len(r.gpus) < maxBoards {
		r.gpus = append(r.gpus, g)
	}
}

// use adds a process, unless there are too many.
func (r *report) use(p process) {
	if len(r.processes) < maxProcesses {
		r.processes = append(r.processes, p)
	}
}

// split adds a partition, unless there are too many.
func (g *gpu) split(m mig) {
	if len(g.migs) < maxParts {
		g.migs = append(g.migs, m)
	}
}

// fact notes a value that says something.
func (g *gpu) fact(name, value string) {
	if value = text(value); value == "" {
		return
	}
	if g.facts == nil {
		g.facts = map[string]string{}
	}
	g.facts[name] = value
}

// mig is one existing partition.
type mig struct {
	profile    string // such as 1g.10gb, empty when the reading does not say
	uuid       string
	device     int // number within the board
	gi, ci     *int
	memory     *uint64
	memoryUsed *uint64
	sms        *int // streaming multiprocessors
}

// process is one compute process, on the board with this UUID, PCI address or index.
type process struct {
	uuid, pci string
	index     *int
	pid       int
	gi, ci    *int // instances that it runs in, nil where the board has none
	memory    *uint64
}

// same tells whether two readings mean one board: by UUID, else by PCI address, else by index.
func (g gpu) same(o gpu) bool {
	switch {
	case g.uuid != "" && o.uuid != "":
		return g.uuid == o.uuid
	case g.pci != "" && o.pci != "":
		return g.pci == o.pci
	case g.index != nil && o.index != nil:
		return *g.index == *o.index
	}
	return false
}

// merge adds what another reading of the same moment knows more. What is known already stays.
func (r *report) merge(o report) {
	for _, theirs := range o.gpus {
		i := slices.IndexFunc(r.gpus, theirs.same)
		if i < 0 {
			r.gpus = append(r.gpus, theirs)
			continue
		}
		r.gpus[i].merge(theirs)
	}
	if r.driver == "" {
		r.driver = o.driver
	}
	if !r.processesKnown {
		r.processes, r.processesKnown = o.processes, o.processesKnown
	}
	first(&r.cuda, o.cuda)
	known(&r.attached, o.attached)
	r.noDriver = r.noDriver || o.noDriver
	r.noDevices = r.noDevices || o.noDevices
}

func (g *gpu) merge(o gpu) {
	if g.name == "" || g.nameCut && o.name != "" && !o.nameCut && !o.nameByPCI {
		g.name, g.nameCut, g.nameByPCI = o.name, o.nameCut, o.nameByPCI
	}
	first(&g.repeated, o.repeated)
	if g.repeated == "" {
		first(&g.uuid, o.uuid)
	}
	first(&g.pci, o.pci)
	first(&g.dead, o.dead)
	known(&g.index, o.index)
	known(&g.minor, o.minor)
	known(&g.memory, o.memory)
	known(&g.memoryUsed, o.memoryUsed)
	known(&g.migMode, o.migMode)
	known(&g.utilization, o.utilization)
	known(&g.temperature, o.temperature)
	known(&g.power, o.power)
	known(&g.powerOf, o.powerOf)
	g.more.Fill(o.more)
	for name, value := range o.facts {
		if g.facts[name] == "" {
			g.fact(name, value)
		}
	}
	if g.links == nil {
		g.links = o.links
	}
	for _, theirs := range o.migs {
		i := slices.IndexFunc(g.migs, func(m mig) bool { return m.device == theirs.device })
		if i < 0 {
			g.migs = append(g.migs, theirs)
			continue
		}
		mine := &g.migs[i]
		first(&mine.profile, theirs.profile)
		first(&mine.uuid, theirs.uuid)
		known(&mine.gi, theirs.gi)
		known(&mine.ci, theirs.ci)
		known(&mine.memory, theirs.memory)
		known(&mine.memoryUsed, theirs.memoryUsed)
		known(&mine.sms, theirs.sms)
	}
}

func first(dst *string, more string) {
	if *dst == "" {
		*dst = more
	}
}

func known[T any](dst **T, more *T) {
	if *dst == nil {
		*dst = more
	}
}

// text is a printed value, empty when it says nothing.
func text(s string) string {
	if strings.HasPrefix(strings.TrimSpace(s), "Requested functionality") { // … has been deprecated
		return ""
	}
	return toolout.Text(s)
}

// mib reads a printed memory size. The tool prints MiB; a size without a unit is MiB as well (nounits).
func mib(s string) *uint64 { return toolout.MiB(s, "MiB") }

func whole(s string) *int { return toolout.Whole(s) }

// onOff reads the state of a mode. Boards without the mode print N/A, which is nil.
func onOff(s string) *bool {
	on := strings.TrimSpace(s) == "Enabled"
	if !on && strings.TrimSpace(s) != "Disabled" {
		return nil
	}
	return &on
}

// pciAddress brings an address to the kernel's form: 4 digits of domain where they suffice, lower case.
func pciAddress(s string) string {
	s = strings.ToLower(text(s))
	domain, rest, ok := strings.Cut(s, ":")
	if !ok || len(rest) != len("00:00.0") {
		return ""
	}
	domain = strings.TrimLeft(domain, "0")
	for len(domain) < 4 {
		domain = "0" + domain
	}
	return domain + ":" + rest
}
