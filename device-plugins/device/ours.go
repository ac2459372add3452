package device

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
)

// The driver divides a card when a task starts, and undoes it when the task ends. Tools list what it made like the parts
// that an administrator made. Offered like those, one card would have two owners: what the driver made belongs to the card,
// which stays in the form in which its tasks have it. The driver's notes on this node tell which cards these are.

// settleAfter is how long at least a card counts as held after it was last seen held: a reading may show parts that are gone,
// since what a card is divided in is not asked at every reading. One that goes by what was asked before shows nothing newer,
// however long that is ago: see Ager.
const settleAfter = 90 * time.Second

// ReasonDivided is the reason of a card that cannot be used: not whole, because it is divided, and not in parts.
const ReasonDivided = "the card is divided and its tool does not list the parts: undo the division with the maker's tool"

// reasonDoubt is the reason of a card of which it is not known who divided it.
const reasonDoubt = "the card is divided, and the notes of the driver on this node, which tell whether it did it, cannot be read: see the log of the plugin, or remove what cannot be read when no task runs"

// held is what the notes of the driver say at one moment.
type held struct {
	forms map[string]accel.Form // what tasks have, cards and parts by UUID; the empty form where an older driver tells none
	moved [2]time.Time          // when the notes were last changed
	first bool                  // nothing of the source was offered yet: nobody can have made and undone a share since
	err   error                 // of notes that cannot be read: they may be of any card
}

// readHeld reads the leases of running tasks and the ledger of shares. A share may outlive its task and its lease.
func readHeld(stateDir string) held {
	dirs := [2]string{filepath.Join(stateDir, "leases"), filepath.Join(stateDir, "shares")}
	h := held{forms: map[string]accel.Form{}}
	for i, dir := range dirs {
		if info, err := os.Stat(dir); err == nil { // before they are read: what changes meanwhile counts as a change
			h.moved[i] = info.ModTime()
		}
	}
	leases, err := grant.Leases(dirs[0])
	for _, l := range leases {
		for _, uuid := range l.Cards {
			h.note(uuid, l.Forms[uuid])
		}
	}
	shares, shareErr := grant.Shares(dirs[1])
	for _, s := range shares {
		h.note(s.Card, s.Form)
	}
	h.err = errors.Join(err, shareErr)
	return h
}

// note adds what one note says. Of two that differ, the one that divides the card counts.
func (h held) note(uuid string, form accel.Form) {
	if have, noted := h.forms[uuid]; !noted || have == "" || !divides(have) && divides(form) {
		h.forms[uuid] = form
	}
}

// divides tells whether the driver may divide a card that tasks have in this form. Older drivers tell no form.
func divides(f accel.Form) bool { return f == accel.Shared || f == accel.MIG || f == "" }

// An ownership is what is remembered of who divided which card. Keys are the UUIDs of cards.
type ownership struct {
	seen    map[string]time.Time // when it was last seen that tasks have the card in a form in which the driver divides it
	unsure  map[string]time.Time // since when its parts may be of a share that came and went during one reading
	doubt   map[string]bool      // it is divided, and nothing was known of it before the notes could not be read
	theirs  map[string]bool      // an administrator divided it
	trouble string               // why the notes cannot be read, as logged last
}

func newOwnership() ownership {
	return ownership{seen: map[string]time.Time{}, unsure: map[string]time.Time{}, doubt: map[string]bool{}, theirs: map[string]bool{}}
}

// look reads the notes before a reading of a source. Nil where that has no cards: nobody needs to know.
func (p *Plugin) look(s *source) *held {
	p.mu.Lock()
	dir, reported, none := p.set.StateDir, s.reported, len(s.tracker.known) == 0
	p.mu.Unlock()
	if reported && none {
		return nil
	}
	h := readHeld(dir)
	h.first = !reported
	return &h
}

// own leaves out of a reading what the driver made, and gives the cards that it divided the form that they had. What a task
// had before or after the reading, it may have had during it. The reading goes by what was asked at asOf. The caller holds mu.
func (p *Plugin) own(before *held, asOf time.Time, listed []accel.Card) []accel.Card {
	if len(listed) == 0 {
		return listed
	}
	now := readHeld(p.set.StateDir)
	p.say(now.err)
	stirred := before != nil && !before.first && before.moved != now.moved
	if before != nil {
		for uuid, form := range before.forms {
			now.note(uuid, form)
		}
		now.err = errors.Join(now.err, before.err)
	}
	maps.DeleteFunc(p.parts.seen, func(_ string, at time.Time) bool { return p.now().Sub(at) >= settleAfter && at.Before(asOf) })
	for uuid, form := range now.forms {
		if divides(form) {
			p.parts.seen[uuid] = p.now()
		}
	}
	parts := map[string][]accel.Card{}
	for _, c := range listed {
		if c.Form == accel.Partition && c.Parent != "" {
			parts[c.Parent] = append(parts[c.Parent], c)
		}
	}
	ours := map[string]bool{}
	for i, c := range listed {
		if c.Form != accel.Divided {
			delete(p.parts.unsure, c.UUID)
			delete(p.parts.doubt, c.UUID)
			if c.Health.OK {
				delete(p.parts.theirs, c.UUID)
			}
			continue
		}
		if ours[c.UUID] = p.driverMade(c, parts[c.UUID], now, asOf, stirred); ours[c.UUID] {
			listed[i] = undivided(c, p.knownCard(c.UUID))
		}
		p.parts.theirs[c.UUID] = !ours[c.UUID]
	}
	return slices.DeleteFunc(listed, func(c accel.Card) bool { return c.Form == accel.Partition && ours[c.Parent] })
}

// driverMade tells whether the driver divided a card, also where that is only possible: a part that is offered in doubt may
// be somebody's. What an administrator divided stays the administrator's until it is whole again.
func (p *Plugin) driverMade(c accel.Card, parts []accel.Card, h held, asOf time.Time, stirred bool) bool {
	known := p.knownCard(c.UUID)
	if p.parts.theirs[c.UUID] || known != nil && known.Form == accel.Divided || slices.ContainsFunc(parts, func(part accel.Card) bool {
		return h.forms[part.UUID] == accel.Partition || p.knownCard(part.UUID) != nil
	}) {
		return false
	}
	if p.lately(p.parts.seen, c.UUID, asOf) {
		delete(p.parts.doubt, c.UUID)
		return true
	}
	if h.err != nil { // what was offered stays; where that is not known, nothing is
		p.parts.doubt[c.UUID] = p.parts.doubt[c.UUID] || known == nil
		return true
	}
	delete(p.parts.doubt, c.UUID)
	if _, noted := p.parts.unsure[c.UUID]; stirred && !noted {
		p.parts.unsure[c.UUID] = p.now()
	}
	return p.lately(p.parts.unsure, c.UUID, asOf)
}

// age is when the oldest fact of a source's last reading was asked for.
func (p *Plugin) age(s *source) time.Time {
	if a, ok := s.Detector.(Ager); ok {
		return a.AsOf()
	}
	return p.now()
}

// lately tells whether a moment was less than settleAfter ago, or after what the reading goes by. One from the future was noted
// before the clock was set back.
func (p *Plugin) lately(moments map[string]time.Time, uuid string, asOf time.Time) bool {
	at, noted := moments[uuid]
	if age := p.now().Sub(at); noted && age < 0 {
		moments[uuid] = p.now()
	} else if !noted || age >= settleAfter && at.Before(asOf) {
		return false
	}
	return true
}

// knownCard is what is remembered of a card, nil when nothing is.
func (p *Plugin) knownCard(uuid string) *accel.Card {
	for _, s := range p.sources {
		if e := s.tracker.known[uuid]; e != nil {
			return &e.card
		}
	}
	return nil
}

// undivided is a divided card as it is without its parts: as it is known, if it is.
func undivided(c accel.Card, known *accel.Card) accel.Card {
	switch {
	case known != nil:
		c.Form = known.Form
	case slices.Contains(c.Modes, accel.ModeMIG): // its MIG mode is on, or it would have no parts
		c.Form = accel.MIG
	default:
		c.Form = accel.Whole
	}
	if c.Health.Reason == ReasonDivided {
		c.Health = accel.Health{OK: true}
	}
	return c
}

// say tells once that the notes cannot be read, and once that they can again.
func (p *Plugin) say(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text == p.parts.trouble {
		return
	}
	p.parts.trouble = text
	if text == "" {
		p.log.Info("the notes of the driver can be read again")
		return
	}
	p.log.Warn("notes of the driver cannot be read: cards and parts stay offered as they were, and parts that are new are not offered", "error", err)
}
