package driver

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/task-driver/share"
)

// errNotAdmitted is said to a job that went round the placement service.
var errNotAdmitted = errors.New("this task asks for an accelerator but was not admitted: submit the job to the placement service (NOMAD_ADDR=http://<placement-service>:3333), which decides where it runs")

// errGrantRequired is said to a job with a device block of its own, where the node does not allow one.
var errGrantRequired = errors.New("this task was given cards without a grant, which this node's config does not allow (require_grant): submit the job to the placement service (NOMAD_ADDR=http://<placement-service>:3333), with an accelerator block in place of the device block")

// admission is what a task may use of the node's accelerators.
type admission struct {
	cards      []accel.Card // in the order of the reservations, each once
	memoryMiB  uint64       // per card; 0 when unknown or no card
	computePct int          // 0 is no cap
	qos        accel.QoS
	asks       []share.Ask // one for each card, in the order of cards; without what the runtime decides

	gang    *grant.Gang       // nil for a task that starts by itself
	gangEnv map[string]string // what the gang tells it, once all members have come
}

// held is one card with all that the reservations give of it.
type held struct {
	card  grant.Card
	form  accel.Form
	unit  uint64
	units int
	brand accel.Vendor
}

// memoryMiB is what the task holds on the card; 0 is unknown.
func (h held) memoryMiB() uint64 {
	return grant.Reservation{Form: h.form, UnitMiB: h.unit}.MemoryMiB(grant.Card{MemoryMiB: h.card.MemoryMiB, Units: h.units})
}

// whole reports whether nothing of the card is left for others: the form says so, or all slices are held.
func (h held) whole() bool {
	if h.form == accel.Whole {
		return true
	}
	return h.unit > 0 && h.card.MemoryMiB > 0 && h.memoryMiB()+h.unit > h.card.MemoryMiB
}

func (h held) String() string { return fmt.Sprintf("%s card %s", h.brand, h.card.UUID) }

// admit decides what the task may use. Cards come from the device environment only, what may be done with them from
// the grant; env is never looked at. require refuses cards without a grant.
func admit(cfg *driverpb.TaskConfig, tc TaskConfig, key ed25519.PublicKey, require bool) (admission, error) {
	reservations, err := grant.Reservations(cfg.GetDeviceEnv())
	if err == nil {
		err = checkReservations(reservations)
	}
	if err != nil {
		return admission{}, fmt.Errorf("device reservation: %w", err)
	}
	cards := gather(reservations)
	s := admission{}
	for _, h := range cards {
		s.cards = append(s.cards, accel.Card{
			Vendor: h.brand, UUID: h.card.UUID, Model: h.card.Model, Index: h.card.Index, PCIAddress: h.card.PCI, Form: h.form,
		})
	}
	if len(cards) > 0 {
		s.memoryMiB, s.qos = leastMemoryMiB(cards), derivedQoS(cards)
	}
	if tc.Grant == "" {
		switch {
		case tc.Accelerator != nil:
			return admission{}, errNotAdmitted
		case require && len(cards) > 0:
			return admission{}, errGrantRequired
		}
		s.asks, err = asks(cfg, cards, grant.Grant{})
		return s, err
	}
	g, err := grant.Parse(tc.Grant, key)
	if err != nil {
		return admission{}, err
	}
	if err := checkGrant(g, cfg, cards); err != nil {
		return admission{}, fmt.Errorf("grant %s is refused: %w", g.ID, err)
	}
	if g.MemoryMiB > 0 {
		s.memoryMiB = g.MemoryMiB
	}
	s.computePct, s.gang = g.ComputePct, g.Gang
	if g.QoS != "" {
		s.qos = g.QoS
	}
	s.asks, err = asks(cfg, cards, g)
	return s, err
}

// gather sums the reservations by card, since two device blocks may hold slices of one.
func gather(reservations []grant.Reservation) []held {
	var cards []held
	for _, r := range reservations {
		for _, c := range r.Cards {
			same := func(h held) bool { return h.brand == r.Vendor && h.card.UUID == c.UUID && h.form == r.Form }
			if at := slices.IndexFunc(cards, same); at >= 0 {
				cards[at].units += c.Units
				continue
			}
			cards = append(cards, held{card: c, form: r.Form, unit: r.UnitMiB, units: c.Units, brand: r.Vendor})
		}
	}
	return cards
}

// leastMemoryMiB is what the task holds on every one of its cards; 0 when that is not known of one.
func leastMemoryMiB(cards []held) uint64 {
	least := cards[0].memoryMiB()
	for _, h := range cards {
		least = min(least, h.memoryMiB())
	}
	return least
}

// derivedQoS says what keeps the weakest of the cards' shares apart when no grant says it.
func derivedQoS(cards []held) accel.QoS {
	for _, h := range cards {
		if h.form == accel.Shared && !h.whole() {
			return accel.Bronze
		}
	}
	return accel.Gold
}

// checkReservations holds what a device plugin says of cards against the instances that Nomad gave the task: no more slices
// of a card than there are instances of it, and one form for each card.
func checkReservations(reservations []grant.Reservation) error {
	forms := map[string]accel.Form{}
	seen := map[string]bool{}
	for _, r := range reservations {
		for _, instance := range r.Instances {
			if seen[instance] {
				return fmt.Errorf("instance %s is reserved twice: upgrade the device plugin, two versions of it may be running", instance)
			}
			seen[instance] = true
		}
		units := 0
		for _, c := range r.Cards {
			if c.UUID == "" || c.Units < 1 {
				return fmt.Errorf("card %q is reserved with %d instances: upgrade the device plugin", c.UUID, c.Units)
			}
			units += c.Units
			name := string(r.Vendor) + "/" + c.UUID
			if form, known := forms[name]; known && form != r.Form {
				return fmt.Errorf("card %s is reserved as %s and as %s: ask for it in one form", c.UUID, form, r.Form)
			}
			forms[name] = r.Form
		}
		if units != len(r.Instances) {
			return fmt.Errorf("%d instances were given, the cards behind them count %d: upgrade the device plugin", len(r.Instances), units)
		}
	}
	return nil
}

// checkGrant holds a grant against the task and what Nomad reserved for it.
func checkGrant(g grant.Grant, cfg *driverpb.TaskConfig, cards []held) error {
	if g.Namespace != cfg.GetNamespace() {
		return fmt.Errorf("it is for namespace %q, this task runs in %q", g.Namespace, cfg.GetNamespace())
	}
	if !g.Covers(cfg.GetJobId()) {
		return fmt.Errorf("it is for job %q, this task belongs to %q", g.Job, cfg.GetJobId())
	}
	if g.Group != cfg.GetTaskGroupName() || g.Task != cfg.GetName() {
		return fmt.Errorf("it is for task %s/%s, this is %s/%s", g.Group, g.Task, cfg.GetTaskGroupName(), cfg.GetName())
	}
	if len(cards) == 0 {
		return fmt.Errorf("it allows %s, but Nomad reserved none for this task: submit the job to the placement service again", countOf(g.Count))
	}
	if g.Count != len(cards) {
		return fmt.Errorf("it allows %s, but Nomad reserved %d", countOf(g.Count), len(cards))
	}
	for _, h := range cards {
		if len(g.Vendors) > 0 && !slices.Contains(g.Vendors, h.brand) {
			return fmt.Errorf("it accepts the brands %v, but Nomad reserved a %s", g.Vendors, h)
		}
		switch {
		case g.MemoryMiB == 0 && !h.whole():
			return fmt.Errorf("it is for whole cards, but only %d slices of %s are reserved", h.units, h)
		case g.MemoryMiB > 0 && h.form != accel.Whole && h.memoryMiB() == 0:
			return fmt.Errorf("the slices of %s do not say how much memory they hold", h)
		case g.MemoryMiB > 0 && h.memoryMiB() > 0 && h.memoryMiB() < g.MemoryMiB:
			return fmt.Errorf("it says %s for each card, but the slices reserved of %s hold %s",
				accel.FormatMiB(g.MemoryMiB), h, accel.FormatMiB(h.memoryMiB()))
		}
	}
	return nil
}

func countOf(n int) string {
	if n == 1 {
		return "1 card"
	}
	return strconv.Itoa(n) + " cards"
}

// vendors are the brands of the share, in the order of the brands' list.
func (s admission) vendors() []accel.Vendor {
	var out []accel.Vendor
	for _, v := range accel.Vendors() {
		if slices.ContainsFunc(s.cards, func(c accel.Card) bool { return c.Vendor == v }) {
			out = append(out, v)
		}
	}
	return out
}

// uuids lists the cards.
func (s admission) forms() map[string]accel.Form {
	forms := map[string]accel.Form{}
	for _, c := range s.cards {
		forms[c.UUID] = c.Form
	}
	return forms
}

func (s admission) uuids() []string {
	var out []string
	for _, c := range s.cards {
		if !slices.Contains(out, c.UUID) {
			out = append(out, c.UUID)
		}
	}
	return out
}

// image picks the image of the granted brand.
func (s admission) image(tc TaskConfig) (string, error) {
	byBrand := map[accel.Vendor]string{}
	for name, image := range tc.Images {
		if v, err := accel.ParseVendor(name); err == nil {
			byBrand[v] = image
		}
	}
	for _, v := range s.vendors() {
		if image := byBrand[v]; image != "" {
			return image, nil
		}
	}
	if tc.Image != "" {
		return tc.Image, nil
	}
	if brands := s.vendors(); len(brands) > 0 {
		return "", fmt.Errorf("config.images: there is none for brand %s, which this task was given: add images = { %s = \"…\" }, or image = \"…\" for every other brand", brands[0], brands[0])
	}
	return "", errors.New(`config.image: the task was given no accelerator, so that no brand chooses one of images: write image = "…" too`)
}
