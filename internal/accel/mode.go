package accel

import "slices"

// Mode is a way in which a card can be shared or divided. A card has a mode when a probe of the machine showed it, never
// because of its model: see AttrModes.
type Mode = string

// The modes. A probe is what must have been seen for a card to have one.
const (
	ModeMIG  Mode = "mig"  // NVIDIA: the library or the tool tells a MIG mode, on or off
	ModeMPS  Mode = "mps"  // NVIDIA: the control program is on the host
	ModeHAMi Mode = "hami" // HAMi's library is on the host
	ModeVNPU Mode = "vnpu" // Ascend: the tool lists templates or virtual NPUs of the chip
	ModeVDCU Mode = "vdcu" // Hygon: the tool answers about virtual cards
	ModeSMLU Mode = "smlu" // Cambricon: the tool shows the mode switched on
	ModeSGPU Mode = "sgpu" // MetaX: the tool shows the mode switched on
	ModeSVI  Mode = "svi"  // Biren: the tool tells an SVI mode, on or off
	ModeVXPU Mode = "vxpu" // Kunlunxin: the tool shows the mode switched on
	ModeVGCU Mode = "vgcu" // Enflame: the tool shows the card virtualised
	ModeCPX  Mode = "cpx"  // AMD: the kernel or the tool lists compute partitions for the board
	ModeVGPU Mode = "vgpu" // a card divided by the hypervisor's driver
)

// SourceOfMode is the name under which Card.Sources tells what showed a mode.
func SourceOfMode(m Mode) string { return AttrModes + "/" + m }

// modeQoS is what keeps two shares of one card apart, by the mode that makes them. The rows of gold and the first two of
// silver are the classes of the architecture; the makers' own drivers that cap shares without parting the hardware count as
// drivers.
var modeQoS = map[Mode]QoS{
	ModeMIG: Gold, ModeVNPU: Gold, ModeSMLU: Gold, ModeVGPU: Gold, ModeSVI: Gold, ModeCPX: Gold,
	ModeMPS: Silver, ModeHAMi: Silver, ModeVDCU: Silver, ModeSGPU: Silver, ModeVXPU: Silver, ModeVGCU: Silver,
}

// divides are the modes that divide a whole card, which then has another form. A card in slices is not divided by them.
var divides = map[Mode]bool{ModeMIG: true, ModeCPX: true}

// QoSOf is the strongest isolation that the modes of a card give to a task on it in this form. Whole cards have no
// neighbours, and partitions and MIG slices are parted by hardware: Gold. Slices are Bronze unless a mode that makes shares
// says better; modes that are not known to this version say nothing.
func QoSOf(form Form, modes []Mode) QoS {
	if form != Shared {
		return Gold
	}
	best := Bronze
	for _, m := range modes {
		switch q := modeQoS[m]; {
		case divides[m]:
		case q == Gold:
			return Gold
		case q == Silver:
			best = Silver
		}
	}
	return best
}

// Makes tells whether the mode is one by which a share of quality q may be made of a card in this form that has these modes:
// it is one of the least quality that is enough. Nothing makes bronze, nor shares of cards that are not divided.
func Makes(m Mode, form Form, modes []Mode, q QoS) bool {
	switch {
	case form == MIG:
		return m == ModeMIG
	case form != Shared || q == Bronze || divides[m]:
		return false
	}
	enough := Gold
	for _, other := range modes {
		if q != Gold && modeQoS[other] == Silver {
			enough = Silver
		}
	}
	return modeQoS[m] == enough && slices.Contains(modes, m)
}
