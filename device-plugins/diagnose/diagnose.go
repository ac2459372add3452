// Package diagnose says why the cards of a brand can or cannot be used on a machine: what the PCI bus, the kernel's
// modules and the device nodes show, how each way to read the cards fared, what is missing, and how to mend it. What a
// brand needs, and how its maker says to get it, is told by the package of the brand.
package diagnose

import (
	"github.com/heteroflow/heteroflow/device-plugins/hostfs"
	"github.com/heteroflow/heteroflow/internal/accel"
)

// Brand is what was found out about one brand on one machine. It has no times and no counters: the same machine gives the
// same text.
type Brand struct {
	Vendor accel.Vendor `json:"vendor"`
	// Present tells that a card of the brand shows, on the bus, by its device nodes or to its tool.
	Present bool       `json:"present"`
	Cards   int        `json:"cards"`  // that the detector lists
	Usable  int        `json:"usable"` // of them, that nothing is wrong with
	Bus     []Function `json:"bus,omitempty"`
	Modules []Module   `json:"modules,omitempty"`
	Nodes   []string   `json:"nodes,omitempty"` // device nodes found
	Paths   []Path     `json:"paths,omitempty"` // ways to read the cards, best first
	Lacks   []Lack     `json:"lacks,omitempty"` // the cause before what follows from it
	Notes   []string   `json:"notes,omitempty"` // what is no fault and worth knowing
}

// Function is a device on the PCI bus that is, or could be, a card.
type Function struct {
	Address string `json:"address"`
	ID      string `json:"id"`               // vendor:device, 4 hexadecimal digits each
	Driver  string `json:"driver,omitempty"` // the kernel driver that holds it; empty when none does
	Answers bool   `json:"answers"`
}

// Module is a module of the kernel that the cards need.
type Module struct {
	Name    string `json:"name"`
	Loaded  bool   `json:"loaded"`
	Version string `json:"version,omitempty"`
}

// State is how one way to read the cards fared.
type State string

// The states of paths.
const (
	Works    State = "works"     // it listed the cards, or said that there are none
	Missing  State = "missing"   // the library or tool is not installed
	Failed   State = "failed"    // it answered with an error, or with what is not known
	Hangs    State = "hangs"     // it did not answer in time
	Foreign  State = "foreign"   // it is another maker's tool of the same name
	NotTried State = "not_tried" // see Detail
)

// Path is one way to read the cards.
type Path struct {
	Name   string `json:"name"` // of the library or tool
	Kind   Way    `json:"kind"`
	State  State  `json:"state"`
	Detail string `json:"detail,omitempty"`
	Calls  []Call `json:"calls,omitempty"`
}

// Way is a kind of path.
type Way string

// The kinds of paths, best first.
const (
	Library Way = "library"
	Tool    Way = "tool"
	Kernel  Way = "kernel"
)

// Call is one call of a tool.
type Call struct {
	Args string `json:"args"` // joined with blanks
	Form string `json:"form"` // of what it printed: json, xml, text or nothing
	// Status is the exit status; nil when the tool did not end by itself.
	Status  *int   `json:"status,omitempty"`
	Trouble string `json:"trouble,omitempty"`
}

// Kind is a kind of thing that is missing.
type Kind string

// What can be missing. A brand's text tells what exactly.
const (
	NoDriver      Kind = "driver"         // the maker's kernel driver is not installed, or does not hold the card
	NoModule      Kind = "kernel_module"  // it is installed and not loaded
	NoNode        Kind = "device_node"    // the driver is loaded and a node under /dev is not there
	NoPermission  Kind = "permission"     // this process may not use what is there
	NoLibrary     Kind = "library"        // the maker's library is not installed, or does not fit its driver
	NoTool        Kind = "tool"           // no tool of the maker is installed
	ToolHangs     Kind = "tool_hangs"     // it does not answer
	ToolFails     Kind = "tool_fails"     // it answers with an error, or with what is not known
	NoRuntime     Kind = "runtime"        // the maker's container toolkit is not installed
	NoDockerSetup Kind = "docker_runtime" // it is installed, and Docker does not know it
	CardSilent    Kind = "card_silent"    // a card does not answer on the bus
)

// Lack is one thing that is missing.
type Lack struct {
	Kind Kind   `json:"kind"`
	What string `json:"what"`
	Fix
}

// Fix is how something is mended.
type Fix struct {
	Do  string `json:"do,omitempty"`  // a command, or a setting to write
	See string `json:"see,omitempty"` // address of where the maker says so
}

// Setup is what a brand needs on a machine, and how it is got. Every part may be empty: what is not known is not looked
// for.
type Setup struct {
	// Modules are the names under which the brand's kernel module can be loaded, the one to load first.
	Modules []string
	// Wrong are kernel drivers that take the cards and cannot compute with them, with what to do against it.
	Wrong map[string]Fix
	// Extra are modules that are needed besides, with how each is loaded.
	Extra map[string]Fix
	Nodes []Node
	// Groups are those whose members may use the device nodes; empty when only root may.
	Groups  []string
	Driver  Fix // how the driver is installed
	Tool    Fix // how the tool is installed
	Runtime *Runtime
	Sayings []Saying
}

// Node is a device node that must be there once the driver is loaded.
type Node struct {
	Pattern string // under the root, without a slash in front; one file that matches is enough
	Fix     Fix
}

// Runtime is the container runtime of a maker.
type Runtime struct {
	Name      string   // as Docker knows it
	Programs  []string // names or paths, one of which is there when the toolkit is installed
	Install   Fix
	Configure Fix
}

// Saying is a known complaint of a tool.
type Saying struct {
	Text string // that the tool prints
	Kind Kind
	What string
	Fix  Fix
}

// Bus makes what is told of the functions of a brand.
func Bus(devices []hostfs.PCIDevice) []Function {
	var all []Function
	for _, d := range devices {
		all = append(all, Function{Address: d.Address, ID: d.Vendor + ":" + d.Device, Driver: d.Driver, Answers: d.Answers})
	}
	return all
}
