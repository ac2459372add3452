package device

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// placePrefixes begin the identity of a card whose UUID no reading gave: it is named by its place.
var placePrefixes = []string{"PCI-", "INDEX-"}

// mostKnown bounds what is remembered of a source whose tool names its cards anew at every reading: no node has so many.
const mostKnown = 1024

const reasonMissing = "the card is no longer reported"

// A tracker remembers the cards of one source over all its readings: the last good facts of each, and whether it is
// sick. A card becomes sick by enough bad readings in a row, or at once by a fault, and well again when its readings
// were good for a while. It is never dropped because it misbehaves, only when another takes its place.
type tracker struct {
	known map[string]*tracked
	limit int              // bad readings in a row that make a card sick
	hold  time.Duration    // how long the readings of a sick card must be good before it is offered again
	now   func() time.Time // asked for every judgement
}

type tracked struct {
	card accel.Card
	bad  int // bad readings in a row
	why  string
	sick bool
	good time.Time // first good reading after the last bad one, while sick
	left int       // of a part: readings in a row that showed its board and not the part
	// remembered is set of a part that an earlier run of the plugin knew, until a reading lists it.
	remembered bool
}

// newTracker makes a tracker that holds back no card; hold and now may be set before its first use.
func newTracker(limit int) *tracker {
	return &tracker{known: map[string]*tracked{}, limit: limit, now: time.Now}
}

// has tells whether a card is known by a reading of this run.
func (t *tracker) has(uuid string) bool {
	e := t.known[uuid]
	return e != nil && !e.remembered
}

// fail notes a reading that could not be made.
func (t *tracker) fail(err error) {
	for _, e := range t.known {
		if !e.remembered {
			t.worse(e, err.Error())
		}
	}
}

// condemn notes a fault that needs no second reading. It tells whether the card is known.
func (t *tracker) condemn(uuid, why string) bool {
	e := t.known[uuid]
	if e == nil {
		return false
	}
	e.bad = max(e.bad, t.limit-1)
	t.worse(e, why)
	return true
}

// unsettled tells whether the next reading of some card may change its health: it is worth reading again sooner.
func (t *tracker) unsettled() bool {
	for _, e := range t.known {
		if e.bad > 0 && !e.sick || e.sick && e.bad == 0 {
			return true
		}
	}
	return false
}

// observe notes a reading.
func (t *tracker) observe(listed []accel.Card) {
	seen, before := map[string]bool{}, map[string]bool{}
	for uuid := range t.known {
		before[uuid] = true
	}
	named := map[string]bool{}
	for _, c := range listed {
		named[c.UUID] = true
	}
	doubtful := t.doubtful(listed, named)
	for _, c := range listed {
		if t.known[c.UUID] == nil && (doubtful[c.UUID] || doubtful[c.Parent]) {
			continue
		}
		if t.stillDivided(c, named) {
			if e := t.known[c.UUID]; e != nil {
				c.Form = e.card.Form
			} else {
				continue
			}
		}
		for _, uuid := range t.take(c, named) {
			seen[uuid] = true
		}
	}
	for uuid, e := range t.known {
		switch {
		case seen[uuid]:
			e.left = 0
		case e.card.Form == accel.Partition && t.boardShown(e.card, listed):
			if e.left++; e.left >= t.limit {
				delete(t.known, uuid)
				continue
			}
			t.worse(e, reasonMissing)
		case replaced(e.card, listed, before):
			delete(t.known, uuid)
		case e.remembered:
		default:
			if t.worse(e, reasonMissing); e.sick && len(t.known) > mostKnown {
				delete(t.known, uuid)
			}
		}
	}
	t.divide()
}

// take files one listed card and returns the identities it stands for. The named are listed themselves: another card at
// their place says nothing of them.
func (t *tracker) take(c accel.Card, named map[string]bool) []string {
	known := t.known[c.UUID]
	if e := known; e != nil && !e.remembered {
		t.update(e, c)
		stands := []string{c.UUID}
		if !c.Health.OK { // the parts of a board die with it
			for uuid, part := range t.known {
				if part.card.Parent == c.UUID && !named[uuid] {
					t.judge(part, c.Health)
					stands = append(stands, uuid)
				}
			}
		}
		return stands
	}
	if known == nil && (placeOnly(c) || !c.Health.OK) {
		// A dead card often cannot say who it is. What is known at its place is what died, partitions included.
		heirs := slices.DeleteFunc(t.at(c), func(uuid string) bool { return named[uuid] })
		if len(heirs) > 0 {
			for _, uuid := range heirs {
				t.judge(t.known[uuid], c.Health)
			}
			return heirs
		}
	}
	e := &tracked{card: c}
	if !c.Health.OK { // never seen good: there is nothing to be patient for
		e.bad, e.why, e.sick = t.limit, c.Health.Reason, true
	}
	t.known[c.UUID] = e
	return []string{c.UUID}
}

func placeOnly(c accel.Card) bool { return byPlace(c.UUID) }

func byPlace(uuid string) bool {
	return slices.ContainsFunc(placePrefixes, func(p string) bool { return strings.HasPrefix(uuid, p) })
}

// at lists the identities known at the place of c, sorted.
func (t *tracker) at(c accel.Card) []string {
	var found []string
	for uuid, e := range t.known {
		byPCI := c.PCIAddress != "" && e.card.PCIAddress == c.PCIAddress
		byIndex := strings.HasPrefix(c.UUID, "INDEX-") && (c.PCIAddress == "" || e.card.PCIAddress == "") && e.card.Index == c.Index
		if byPCI || byIndex {
			found = append(found, uuid)
		}
	}
	slices.Sort(found)
	return found
}

// replaced tells whether a working card stands where the unlisted one stood: it was divided, a card that was known by
// its place has told its UUID or is counted by a tool that tells no places, or the tool has another name for it since an
// upgrade. Two chips of one board share an address: the one that was known beside the unlisted one
// does not replace it, unless the unlisted one was known by nothing but that place.
func replaced(gone accel.Card, listed []accel.Card, before map[string]bool) bool {
	return slices.ContainsFunc(listed, func(c accel.Card) bool {
		if !c.Health.OK || placeOnly(c) && c.PCIAddress != "" {
			return false
		}
		twins := before[c.UUID] && !placeOnly(gone)
		atPlace := gone.PCIAddress != "" && c.PCIAddress == gone.PCIAddress && !twins
		atIndex := gone.PCIAddress == "" && c.PCIAddress == "" && gone.Index >= 0 && c.Index == gone.Index && !before[c.UUID] &&
			gone.Form != accel.Partition && c.Form != accel.Partition
		somewhere := placeOnly(gone) && gone.PCIAddress != "" && c.PCIAddress == "" && c.Form != accel.Partition && !before[c.UUID]
		return c.Parent == gone.UUID || atPlace || atIndex || somewhere
	})
}

func (t *tracker) worse(e *tracked, why string) {
	e.bad++
	e.why = why
	e.sick = e.sick || e.bad >= t.limit
}

func (t *tracker) judge(e *tracked, h accel.Health) {
	if !h.OK {
		t.worse(e, h.Reason)
		return
	}
	if e.sick && e.bad > 0 {
		e.good = t.now()
	}
	e.bad = 0
	if !e.sick || t.now().Sub(e.good) >= t.hold {
		e.sick, e.why = false, ""
	}
}

// update takes over what a reading knows. The facts of a card are pinned once known, because a fingerprint must not
// change while the card lives; a good reading may correct those that can really change.
func (t *tracker) update(e *tracked, c accel.Card) {
	t.judge(e, c.Health)
	k := &e.card
	byPCI := k.Sources[accel.AttrModel] == "sysfs" && c.Sources[accel.AttrModel] != "" && c.Sources[accel.AttrModel] != "sysfs"
	if k.Model == "unknown" || (byPCI || strings.HasSuffix(k.RawName, "...")) && c.Model != "unknown" {
		k.Model, k.RawName = c.Model, c.RawName
		if byPCI { // now the card says it itself
			k.Sources = maps.Clone(k.Sources)
			k.Sources[accel.AttrModel] = c.Sources[accel.AttrModel]
		}
	}
	if k.MemoryMiB == nil {
		k.MemoryMiB = c.MemoryMiB
	}
	if k.NUMANode == nil {
		k.NUMANode = c.NUMANode
	}
	if k.PCIAddress == "" {
		k.PCIAddress = c.PCIAddress
	}
	if k.DriverVersion == "" || c.Health.OK && c.DriverVersion != "" {
		k.DriverVersion = c.DriverVersion
	}
	if c.Health.OK {
		k.Index, k.Form, k.Conflicts = c.Index, c.Form, c.Conflicts
		if len(c.Modes) > 0 {
			k.Modes = c.Modes
		}
		if len(c.Rounding) > 0 {
			k.Rounding = c.Rounding
		}
	}
	for field, source := range c.Sources {
		if k.Sources[field] == "" {
			if k.Sources == nil {
				k.Sources = map[string]string{}
			}
			k.Sources[field] = source
		}
	}
}

// cards lists every known card with its health, ordered by index and identity. A part that is only remembered is listed, as one
// that cannot be used, once a reading has shown its card without it.
func (t *tracker) cards() []accel.Card {
	cards := make([]accel.Card, 0, len(t.known))
	for _, e := range t.known {
		if e.remembered && e.bad == 0 {
			continue
		}
		c := e.card
		c.Health = accel.Health{OK: true}
		if e.sick || e.remembered {
			c.Health = accel.Health{Reason: e.why}
		}
		cards = append(cards, c)
	}
	slices.SortFunc(cards, func(a, b accel.Card) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID))
	})
	return cards
}
