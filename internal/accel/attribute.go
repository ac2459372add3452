package accel

// Names of the device group attributes. Memory attributes carry the unit MiB. A group per card (shared, mig)
// and the descriptor of a whole card have all of them that are known; a group of whole cards has those that are
// the same for each of its cards.
const (
	AttrUUID       = "uuid"           // identity of the card
	AttrIndex      = "index"          // display index on the node
	AttrPCI        = "pci_bus_id"     // PCI address
	AttrNUMA       = "numa_node"      // NUMA node
	AttrMemory     = "memory"         // memory of the card, MiB
	AttrHintMemory = "memory_hint"    // what is published of the model, MiB, where the card does not tell its memory; source=catalogue
	AttrUnitMemory = "unit_memory"    // memory of one instance, MiB; the card's for whole cards
	AttrDriver     = "driver_version" // version of the kernel driver
	AttrModel      = "model"          // model name, see ModelName
	AttrArch       = "arch"           // architecture of the model in its maker's words, as published
	AttrForm       = "form"           // whole, shared, mig or partition
	AttrPolicy     = "form_policy"    // auto when the form may be switched by intent, fixed otherwise
	AttrModes      = "modes"          // probed sharing modes, comma separated, see Mode
	AttrRounding   = "rounding"       // what a share becomes in each of the modes, see Rounding; never of a partition
	AttrParent     = "parent"         // identity of the card that a partition is a part of
	AttrLinks      = "links"          // how the card is connected to its neighbours, see FormatLinks; never of a partition
	AttrNIC        = "nic"            // nearest RDMA device
	AttrNICLink    = "nic_link"       // how the card is connected to it, see Link
	AttrState      = "state"          // ok or bad; mirrors health, so that Nomad's computed class changes with it
)

// Names of the live numbers of a card that placement looks at, among those that the device plugin tells.
const (
	StatUtilization = "utilization" // share of time in which work ran on the card, percent
	StatMemory      = "memory"      // memory in use of all the card has, MiB
	StatTemperature = "temperature" // of the card, °C
)

// Values of AttrState and AttrPolicy.
const (
	StateOK     = "ok"
	StateBad    = "bad"
	PolicyAuto  = "auto"
	PolicyFixed = "fixed"
)
