package nvidia

import (
	"cmp"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
)

// A driver that repeats a UUID would have one card hide another. Such a UUID names none of its cards, but for one that was
// named by it before the others came: they are named by their places, as cards without a UUID are.

// apart takes from the boards of one reading the UUIDs that several of them print. Readings are completed by one another
// board by board, and a UUID would say that two boards are one.
func (r *report) apart() {
	boards := map[string]int{}
	for _, g := range r.gpus {
		boards[g.uuid]++
	}
	for i := range r.gpus {
		if g := &r.gpus[i]; g.uuid != "" && boards[g.uuid] > 1 {
			g.uuid, g.repeated = "", g.uuid
		}
	}
}

// name decides of every board of a reading whether its UUID names it, by this reading and those before. Partitions of a board
// that it does not name are not named by UUIDs either: the driver makes them of the board's.
func (d *Detector) name(r *report) {
	printed := make([]brand.Card, len(r.gpus))
	for i, g := range r.gpus {
		printed[i] = brand.Card{ID: cmp.Or(g.uuid, g.repeated), PCI: g.pci, Index: g.index}
	}
	repeated := map[string]bool{}
	d.mu.Lock()
	for _, uuid := range d.repeated {
		repeated[uuid] = true
	}
	d.mu.Unlock()
	for i, own := range d.known.Own(printed) {
		g := &r.gpus[i]
		uuid := printed[i].ID
		switch {
		case own:
			g.uuid = uuid
		case uuid != "":
			g.uuid, g.repeated = "", uuid
			for n := range g.migs {
				g.migs[n].uuid = ""
			}
		}
		if g.repeated != "" {
			repeated[g.repeated] = true
		}
	}
	for i := range r.gpus { // also the one that keeps it: what is said of the UUID may be said of another
		if g := &r.gpus[i]; repeated[g.uuid] {
			g.repeated = g.uuid
		}
	}
	for i := range r.processes {
		if p := &r.processes[i]; repeated[p.uuid] && (p.pci != "" || p.index != nil) {
			p.uuid = "" // the place tells of which board it is
		}
	}
}

// unsaid tells whether a process runs on one of the boards with this UUID, and the reading does not say on which.
func (r report) unsaid(repeated string) bool {
	for _, p := range r.processes {
		if repeated != "" && p.uuid == repeated {
			return true
		}
	}
	return false
}
