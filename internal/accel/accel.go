// Package accel is the vocabulary of accelerators: vendor, model, card, form, slice, quality of service,
// health, link and units, and the ask a user writes. It holds values and pure functions only: no I/O, no
// clock, no logger, and nothing of Nomad, of a store or of a vendor's tool lives here.
package accel

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// Vendor is the brand of a card, in the lower-case word users write in jobs.
type Vendor string

// The brands of the product, in the order in which they are listed to users.
const (
	NVIDIA    Vendor = "nvidia"
	MThreads  Vendor = "mthreads"
	Hygon     Vendor = "hygon"
	Cambricon Vendor = "cambricon"
	Biren     Vendor = "biren"
	Ascend    Vendor = "ascend"
	Kunlunxin Vendor = "kunlunxin"
	AMD       Vendor = "amd"
	MetaX     Vendor = "metax"
	Iluvatar  Vendor = "iluvatar"
	Enflame   Vendor = "enflame"
	Intel     Vendor = "intel"
)

// Vendors lists every known brand, in display order.
func Vendors() []Vendor {
	return []Vendor{NVIDIA, MThreads, Hygon, Cambricon, Biren, Ascend, Kunlunxin, AMD, MetaX, Iluvatar, Enflame, Intel}
}

// ParseVendor reads a brand as a user may write it; case does not matter. The error lists the known brands.
func ParseVendor(s string) (Vendor, error) {
	v := Vendor(strings.ToLower(strings.TrimSpace(s)))
	if slices.Contains(Vendors(), v) {
		return v, nil
	}
	names := make([]string, 0, len(Vendors()))
	for _, known := range Vendors() {
		names = append(names, string(known))
	}
	return "", fmt.Errorf("unknown brand %q: write one of %s", s, strings.Join(names, ", "))
}

// IsCard tells whether a Nomad device of this vendor and type is a card: makers of cards make other devices too, such as
// Intel's FPGA.
func IsCard(vendor, kind string) bool {
	_, err := ParseVendor(vendor)
	return err == nil && slices.Contains([]string{Whole.DeviceType(), Shared.DeviceType(), MIG.DeviceType()}, kind)
}

// Form is the way in which one card is offered to Nomad. A card has exactly one form at a time.
type Form string

const (
	// Whole offers the card as one instance of the group of its model.
	Whole Form = "whole"
	// Shared offers the card as memory slices in a group of its own.
	Shared Form = "shared"
	// MIG offers the memory slices of a card in MIG mode; the partitions are made at task start.
	MIG Form = "mig"
	// Partition offers the existing partitions that an administrator made.
	Partition Form = "partition"
	// Divided is the form of a card that has partitions. It is withdrawn in favour of them: it has no instances, and is
	// described and measured as before.
	Divided Form = "divided"
)

// DeviceType is the second part of the Nomad device id for a form: gpu for whole cards and existing
// partitions, vgpu for slices, mig for hardware slices. A divided card has its descriptor only.
func (f Form) DeviceType() string {
	switch f {
	case Shared:
		return "vgpu"
	case MIG:
		return "mig"
	case Divided:
		return DescriptorType
	default:
		return "gpu"
	}
}

// DescriptorType is the device type of the group without instances that carries the facts of one whole card,
// since a group of whole cards has one set of attributes for all of them.
const DescriptorType = "card"

// QoS says what keeps a share apart from its neighbours.
type QoS string

const (
	// Gold is isolation by hardware: MIG, vGPU, vNPU, sMLU.
	Gold QoS = "gold"
	// Silver is isolation by driver or library: MPS, HAMi.
	Silver QoS = "silver"
	// Bronze is a share by agreement only. It is not isolated.
	Bronze QoS = "bronze"
)

// ParseQoS reads a quality of service; the empty string means that it is derived.
func ParseQoS(s string) (QoS, error) {
	switch q := QoS(strings.ToLower(s)); q {
	case "", Gold, Silver, Bronze:
		return q, nil
	}
	return "", fmt.Errorf("unknown qos %q: write gold, silver or bronze, or leave it out to have it derived", s)
}

// Health is the state of one card. The reason is a stable text, free of counters and times.
type Health struct {
	OK     bool
	Reason string
}

// Card is one accelerator as a detector found it. Pointers are nil where the card does not report the value:
// unknown is not zero.
type Card struct {
	Vendor        Vendor
	Model         string // as offered to Nomad, see ModelName; never empty
	RawName       string // as the tool or library printed it
	UUID          string // the identity: stable over reboot, reorder and tool upgrade; starts with a letter
	Index         int    // the tool's own index, for display only
	PCIAddress    string // domain:bus:device.function in lower case, empty when unknown
	NUMANode      *int
	MemoryMiB     *uint64 // total memory of the card
	DriverVersion string
	Modes         []Mode     // probed sharing modes; sorted
	Rounding      []Rounding // of the modes, as far as a probe told them; what is published stands in for the rest
	Parent        string     // UUID of the card that this is a partition of; empty for others
	Form          Form
	Health        Health
	Sources       map[string]string // field name → nvml, cli or sysfs
	Conflicts     []string          // facts of which two sources tell different things, with both; the first is taken
}

// ShortID names a card in 8 hexadecimal digits derived from brand and UUID.
func ShortID(v Vendor, uuid string) string {
	sum := sha256.Sum256([]byte(string(v) + "/" + uuid))
	return hex.EncodeToString(sum[:4])
}

// ShortID is the short name of the card, the same on every node and after every restart.
func (c Card) ShortID() string { return ShortID(c.Vendor, c.UUID) }

// SliceID is the id of the n-th memory slice of a card. It starts with a letter, because text that reads as a
// number never matches a constraint in Nomad.
func (c Card) SliceID(n int) string { return fmt.Sprintf("c%s.%d", c.ShortID(), n) }

// GroupName is the third part of the card's Nomad device id: the model for whole cards, the model and the short
// id for the forms that have one group per card.
func (c Card) GroupName() string {
	if c.Form == Whole || c.Form == Partition {
		return c.Model
	}
	return c.Model + "-" + c.ShortID()
}

// DeviceID is the full Nomad device id, vendor/type/name.
func (c Card) DeviceID() string {
	return string(c.Vendor) + "/" + c.Form.DeviceType() + "/" + c.GroupName()
}

// DescriptorName is the name of the group that describes a whole card.
func (c Card) DescriptorName() string { return c.Model + "-" + c.ShortID() }

// Slices is the number of memory slices the card is offered in, sliceMiB each. The rest below one slice stays
// with the card for its driver. It is 0 when the memory is unknown: such a card cannot be shared.
func (c Card) Slices(sliceMiB uint64) int {
	if c.MemoryMiB == nil || sliceMiB == 0 {
		return 0
	}
	return int(*c.MemoryMiB / sliceMiB)
}

// ModelName turns a tool's product name into the model users write: the maker's name in front is dropped and
// blanks become dashes, so "NVIDIA A100-SXM4-80GB" is "A100-SXM4-80GB". It returns "unknown" for a name that
// says nothing.
func ModelName(v Vendor, raw string) string {
	words := strings.Fields(strings.Map(func(r rune) rune {
		if r == '/' || r == ',' || r < ' ' {
			return ' '
		}
		return r
	}, raw))
	prefixes := map[Vendor][]string{
		NVIDIA: {"NVIDIA"}, MThreads: {"MTT"}, Hygon: {"HYGON"}, Cambricon: {"CAMBRICON"}, Biren: {"BIREN"},
		Ascend: {"ASCEND", "HUAWEI"}, Kunlunxin: {"KUNLUNXIN", "KUNLUN"}, AMD: {"AMD"},
		MetaX: {"METAX"}, Iluvatar: {"ILUVATAR"}, Enflame: {"ENFLAME"}, Intel: {"INTEL", "INTEL(R)"},
	}
	for len(words) > 1 && slices.Contains(prefixes[v], strings.ToUpper(words[0])) {
		words = words[1:]
	}
	name := strings.Join(words, "-")
	switch strings.ToUpper(name) {
	case "", "ERR!", "N/A", "[N/A]", "[UNKNOWN-ERROR]", "-", "UNKNOWN":
		return "unknown"
	}
	return name
}

// SimulatedPrefix begins the UUID of a card that a device plugin invents.
const SimulatedPrefix = "SIM-"

// IsSimulated reports whether there is no such card on any machine: nothing of the host belongs to it, and its shares are
// only counted.
func IsSimulated(uuid string) bool { return strings.HasPrefix(uuid, SimulatedPrefix) }
