// Package device is the core of the device plugin: it watches detectors, remembers the last good facts of every card,
// decides the form in which each card is offered, and answers Nomad's Fingerprint, Reserve and Stats. How a brand's
// cards are found and read does not belong here.
package device

import (
	"context"
	"time"

	"github.com/heteroflow/heteroflow/device-plugins/diagnose"
	"github.com/heteroflow/heteroflow/internal/accel"
)

// A Detector finds the cards of one brand. What a detector can do besides is told by the small interfaces below.
// Calls come from one goroutine each but may overlap; a call that outlives its context is abandoned, and no other of
// its kind is made until it returns.
type Detector interface {
	// Name is short and unique among the detectors of a plugin: it names the source in logs and reasons.
	Name() string
	Vendor() accel.Vendor
	// Detect lists the cards that are there now, also those that cannot be used, with the reason as their health. An
	// card whose index is not known has the index -1. An empty list means that there are none, an error that it cannot be told. Both texts are stable: no times, no
	// counters.
	Detect(ctx context.Context) ([]accel.Card, error)
}

// A Sampler reads the live numbers of cards, by UUID. A card it knows nothing about is left out.
type Sampler interface {
	Sample(ctx context.Context, cards []accel.Card) (map[string]Sample, error)
}

// A ProcessLister lists the compute processes on each card, by UUID. A card without an entry is one of which it cannot
// tell; a card without processes has an empty entry.
type ProcessLister interface {
	Processes(ctx context.Context, cards []accel.Card) (map[string][]int, error)
}

// An Ager tells when the oldest fact was asked for that its last Detect went by: what cards are divided in need not be asked
// each time, and what was known stays while a tool is in trouble.
type Ager interface {
	AsOf() time.Time
}

// A NodeLister names the device nodes of a card on the host.
type NodeLister interface {
	Nodes(card accel.Card) []string
}

// A Diagnoser says why its cards can or cannot be used here. It is asked after Detect.
type Diagnoser interface {
	Diagnose(ctx context.Context) (diagnose.Brand, error)
}

// A Reserver has a say before cards are handed out.
type Reserver interface {
	BeforeReserve(ctx context.Context, cards []accel.Card) error
}

// An EventTeller hands over what befell its cards since it was asked last. It is asked after every Detect. Nil says that
// it cannot hear of events as things are, an empty list that there were none.
type EventTeller interface {
	Events() []Event
}

// Event is one thing that befell one card.
type Event struct {
	Card  string // UUID
	Code  string // short and stable, such as xid-31
	Text  string // for people
	Blame Blame
}

// Blame says whose fault an event is.
type Blame int

// Whose fault an event can be.
const (
	BlameNobody Blame = iota // it is told, and nothing follows from it
	BlameJob                 // a program made an error: the card stays
	BlameCard                // the card is unhealthy from now on, until its readings were good for a while
)

// Sample is the live numbers of one card. Nil is a number that the card does not report.
type Sample struct {
	MemoryUsedMiB        *uint64
	UtilizationPct       *float64 // share of time in which a kernel ran, 0–100
	MemoryUtilizationPct *float64 // share of time in which memory was read or written, 0–100
	TemperatureC         *float64
	MemoryTemperatureC   *float64
	PowerW               *float64
	PowerLimitW          *float64
	EnergyJ              *float64 // since the driver was loaded
	ClockMHz             *float64
	MemoryClockMHz       *float64
	FanPct               *float64 // share of its full speed, 0–100
	LinkErrors           *float64 // of the links to other cards, since they were last reset
	PCIeReplays          *float64
	ECCCorrected         *float64 // memory errors since the driver was loaded
	ECCUncorrected       *float64
	RetiredPages         *float64
	RemappedRows         *float64
	RepairPending        *bool // a page or row of memory is to be replaced at the next reset
	ThermalSlowdown      *bool // the clocks are held down because of heat
	PowerBrake           *bool // the clocks are held down from outside, such as by the power supply
	LinkDown             *bool // a link to other cards is down that was up, or that is up on cards like it
	Processes            []int // compute processes; nil when they are not known, empty when there are none
}
