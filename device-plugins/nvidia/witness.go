package nvidia

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/heteroflow/heteroflow/device-plugins/device"
)

// xidNames says in few words what the common Xids are, after NVIDIA's catalogue:
// https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
var xidNames = map[int]string{
	13: "a program made an exception in the graphics engine", 31: "a program touched memory that is not its own",
	43: "a program was stopped for its error", 45: "work was cleaned up after an earlier error",
	46: "the card stopped working", 48: "memory error that cannot be corrected", 62: "the card's controller stopped",
	63: "a page or row of memory is replaced at the next reset", 64: "a bad page or row of memory could not be replaced",
	68: "exception in the video decoder", 69: "a program made a class error in the graphics engine",
	74: "NVLink error", 79: "the card has fallen off the bus", 92: "many corrected memory errors",
	94: "contained memory error", 95: "memory error that was not contained", 109: "a context switch took too long",
	119: "the card's system processor does not answer", 120: "error of the card's system processor",
	140: "memory error without recovery",
}

func xidText(xid int) string {
	if name := xidNames[xid]; name != "" {
		return fmt.Sprintf("Xid %d: %s", xid, name)
	}
	return fmt.Sprintf("Xid %d", xid)
}

// A witness remembers what befell the cards. It is part of a detector.
type witness struct {
	hardware, application []int

	mu      sync.Mutex
	log     kernelLog
	up      map[string][]bool // board → links that were seen up
	untold  []device.Event    // nil before the library was read
	faulted map[string]string // board → the fault that it has not been seen to recover from
}

const (
	maxUntold = 1000 // of what waits for somebody who never asks
	maxEvents = 256  // of one reading: a program that fails in every thread makes many
)

func newWitness(cfg Config) witness {
	return witness{
		hardware: cfg.XidHardware, application: cfg.XidApplication, faulted: map[string]string{}, up: map[string][]bool{},
		log: newKernelLog(cfg),
	}
}

// byNVML makes one reading by the library and notes what it says to have happened.
func (d *Detector) byNVML() (report, error) {
	r, err := d.nvml()
	if err == nil {
		d.name(&r)
		d.note(r)
		d.watchLinks(&r)
	}
	return r, err
}

// byLog notes what the kernel's log says to have happened to the boards of a reading that was made without the library.
func (d *Detector) byLog(r *report, logged []event, heard bool) {
	if r.events = logged; heard {
		d.note(*r)
		d.blame(r)
	}
}

// readLog takes what the kernel's log tells. It is read also while the library tells of events, so that of what happens
// when the library is lost nothing old is told.
func (w *witness) readLog() (logged []event, heard bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.read()
}

// note takes over what a reading says to have happened, and forgets the faults of boards that are well.
func (w *witness) note(r report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.untold == nil {
		w.untold = []device.Event{}
	}
	for _, e := range r.events {
		i := slices.IndexFunc(r.gpus, e.isOf)
		if i < 0 {
			continue // the reading itself says that the board is gone
		}
		blame := w.blames(e.xid)
		if blame == device.BlameCard {
			w.faulted[r.gpus[i].identity()] = xidText(e.xid)
		}
		for _, card := range r.gpus[i].touched(e) {
			if len(w.untold) < maxUntold {
				w.untold = append(w.untold, device.Event{Card: card, Code: fmt.Sprintf("xid-%d", e.xid), Text: xidText(e.xid), Blame: blame})
			}
		}
	}
	for _, g := range r.gpus {
		if g.dead == "" && !g.needsReset {
			delete(w.faulted, g.identity())
		}
	}
}

// isOf tells whether an event is of this board. The log names a board without its function.
func (e event) isOf(g gpu) bool {
	board, _, _ := strings.Cut(g.pci, ".")
	if e.uuid != "" && (g.repeated == "" || e.pci == "" || board == "") {
		return g.uuid == e.uuid
	}
	return e.pci != "" && strings.HasPrefix(e.pci, board+".") && board != ""
}

// watchLinks tells of the boards of a reading whether a link is down. One that never was up may lead nowhere; it counts
// when boards of the same model have more of theirs up, as long as this one has any.
func (w *witness) watchLinks(r *report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	most := map[string]int{}
	for _, g := range r.gpus {
		most[g.name] = max(most[g.name], g.linksUp())
	}
	for i, g := range r.gpus {
		if g.links == nil || g.dead != "" {
			continue
		}
		before := w.up[g.identity()]
		down := g.linksUp() > 0 && g.linksUp() < most[g.name]
		for n, up := range g.links {
			for len(before) <= n {
				before = append(before, false)
			}
			down = down || before[n] && !up
			before[n] = before[n] || up
		}
		w.up[g.identity()] = before
		r.gpus[i].more.LinkDown = &down
	}
}

func (g gpu) linksUp() int {
	n := 0
	for _, up := range g.links {
		if up {
			n++
		}
	}
	return n
}

// blames says whose fault an Xid is. What the config names for both is the card's.
func (w *witness) blames(xid int) device.Blame {
	switch {
	case slices.Contains(w.hardware, xid):
		return device.BlameCard
	case slices.Contains(w.application, xid):
		return device.BlameJob
	}
	return device.BlameNobody
}

// blame marks the boards that have a fault and say that they must be reset.
func (w *witness) blame(r *report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, g := range r.gpus {
		if why := w.faulted[g.identity()]; why != "" {
			first(&r.gpus[i].dead, why+"; reset the card (nvidia-smi -r) or restart the node")
		}
	}
}

// Events hands over what befell the cards since it was asked last.
func (w *witness) Events() []device.Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	told := w.untold
	if told != nil {
		w.untold = []device.Event{}
	}
	return told
}

// touched are the cards that an event is about: the board, or in MIG mode the partition it names, or all of them.
func (g gpu) touched(e event) []string {
	if len(g.migs) == 0 {
		return []string{g.identity()}
	}
	var some, all []string
	for _, m := range g.migs {
		all = append(all, m.identity(g))
		if e.gi != nil && m.gi != nil && *m.gi == *e.gi {
			some = append(some, m.identity(g))
		}
	}
	if len(some) > 0 {
		return some
	}
	return all
}

// sample is the live numbers of a board.
func (g gpu) sample(r report) device.Sample {
	s := g.more
	s.MemoryUsedMiB, s.UtilizationPct, s.TemperatureC, s.PowerW, s.PowerLimitW = g.memoryUsed, g.utilization, g.temperature, g.power, g.powerOf
	if r.processesKnown && !r.unsaid(g.repeated) {
		s.Processes = []int{}
		for _, p := range r.processes {
			if (gpu{uuid: p.uuid, pci: p.pci, index: p.index}).same(g) {
				s.Processes = append(s.Processes, p.pid)
			}
		}
	}
	return s
}
