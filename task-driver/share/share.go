// Package share makes the share that a task was given of a card real and bounded, and gives it back: the interface of what
// makes one kind of share, the choice between them, the node's ledger of the shares that were made, and the reconciler
// that removes what no task holds any more. How a brand divides its cards lives in the packages below; deciding who gets
// what does not belong here.
package share

import (
	"context"
	"crypto/sha256"
	"encoding/hex"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
)

// ID names a share: one card of one task. It is "hf" and 16 hexadecimal digits, so that it fits file names, control groups
// and the names that makers' tools take, and is the same after every restart.
type ID string

// idLength is the length of every ID.
const idLength = 18

// NewID is the id of the share that a task has of a card.
func NewID(taskID string, v accel.Vendor, uuid string) ID {
	sum := sha256.Sum256([]byte(taskID + "\x00" + string(v) + "/" + uuid))
	return ID("hf" + hex.EncodeToString(sum[:])[:idLength-2])
}

// IsID reports whether a name was made by NewID: a backend that finds it on something on the node knows it for ours.
func IsID(name string) bool {
	if len(name) != idLength || name[:2] != "hf" {
		return false
	}
	_, err := hex.DecodeString(name[2:])
	return err == nil
}

// Ask is one share to be made.
type Ask struct {
	ID      ID           `json:"id"`
	TaskID  string       `json:"task_id"`
	AllocID string       `json:"alloc_id"`
	Vendor  accel.Vendor `json:"vendor"`
	Card    grant.Card   `json:"card"` // with its device nodes, total memory and the slices reserved of it
	Form    accel.Form   `json:"form"`

	MemoryMiB  uint64    `json:"memory_mib,omitempty"`  // exact grant, at most what the reserved slices hold; 0 is the whole card
	ComputePct int       `json:"compute_pct,omitempty"` // 1–100; 0 is no cap
	QoS        accel.QoS `json:"qos,omitempty"`

	// Position is the number of the card among those of its brand in the task, from 0: what the task's process sees as
	// the device's number. Of is how many there are.
	Position int `json:"position"`
	Of       int `json:"of"`

	// Container is true when the task has a root file system of its own, so that mounts work. A process of the host takes
	// environment only: a backend that needs a mount refuses it in Prepare, with the sentence that says so.
	Container bool `json:"container"`
}

// Setup is what a task needs to use its share. The driver applies it last, after everything the job and the image say.
type Setup struct {
	// Env wins over every other source of the task's environment.
	Env map[string]string `json:"env,omitempty"`
	// Visible is what the brand's variables and runtime name in place of the card, such as the UUID of a MIG device or the
	// number of a virtual NPU. Empty: the card itself.
	Visible string  `json:"visible,omitempty"`
	Mounts  []Mount `json:"mounts,omitempty"`
	// Nodes are device nodes, "host" or "host:container".
	Nodes []string `json:"nodes,omitempty"`
	// Instead says that Nodes stand in place of the card's own device nodes, which the task must not get.
	Instead bool `json:"instead,omitempty"`
	// Runtime is the OCI runtime that the share needs; empty when the brand's usual one does.
	Runtime string `json:"runtime,omitempty"`
	// IPCHost asks for the host's IPC name space.
	IPCHost bool `json:"ipc_host,omitempty"`
}

// Mount is a file or folder of the host that the task sees.
type Mount struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// A Backend makes one kind of share real. Every method may be repeated, and the process may be killed at any point of it,
// between two calls of a tool too; the next call finds what is there. The Manager never calls Prepare, Release and
// Reconcile of one backend at the same moment, also across two processes of the driver.
//
// A backend must find its own things without anything but the machine: by an ID in a name or label that the maker's tool
// keeps, or where tools keep no names by a note (Notes) that is written before the tool is called. What it cannot tell for
// its own is foreign and stays.
type Backend interface {
	// Name is the mode's word in accel, such as mig, mps, hami, vnpu; "bronze" for the one without a mode. It is what the
	// plugin's config writes, unique within a brand.
	Name() string
	// Vendor is the brand; empty for every brand.
	Vendor() accel.Vendor
	// Describe says what is enforced and what is not. It does not look at the machine.
	Describe() Isolation
	// Probe is nil when the backend is usable on this node, else the sentence that says what is missing and the fix. It
	// changes nothing and is quick: it is asked at every look of the driver, once a minute.
	Probe(ctx context.Context) error
	// Prepare makes the share, or finds that it is made, and says how to use it: the same Setup for the same ID. An error
	// leaves nothing behind. A share of this ID that was made for other sizes is made anew. event tells the job's owner
	// what happens, such as "waiting for the MPS daemon of GPU-…".
	Prepare(ctx context.Context, a Ask, event func(string)) (Setup, error)
	// Release gives the share back. Gone already is no error. After an error it is called again.
	Release(ctx context.Context, id ID) error
	// Reconcile removes this backend's leftovers that are not live, and mends what is live where it can, such as a daemon
	// that died. What is foreign it never touches.
	//
	// It is called every minute, within 30 s, but not before every task that runs on the node has been brought back: until
	// then live may lack what a lost ledger held.
	Reconcile(ctx context.Context, live map[ID]Ask) error
}

// Joiner is a backend whose setups for several cards of one task need more than to be laid beside each other: without it two
// setups that give one variable two values are refused. It gets them in the order of Ask.Position and returns one;
// Visible and Instead stay each card's own.
type Joiner interface {
	Join(setups []Setup) (Setup, error)
}

// Fitter is a backend that cannot make every share of its forms. Fits is nil, or the sentence that says why it does not make this
// one: then the next backend of the order is asked. It does not look at the machine.
type Fitter interface {
	Fits(a Ask) error
}

// Keeper is a backend with work that goes on while shares are held, such as supervising a daemon or watching memory. Keep
// returns when ctx ends. live tells the shares held at that moment.
type Keeper interface {
	Keep(ctx context.Context, live func() map[ID]Ask, tasks Tasks) error
}

// Tasks is how a Keeper speaks to and about running tasks.
type Tasks interface {
	// Tell shows a text to the job's owner as a task event.
	Tell(taskID, text string)
	// Stop ends the task; its restart policy decides what follows. text says why.
	Stop(taskID, text string)
	// PIDs are the processes of the task on the host; an error when they cannot be told.
	PIDs(ctx context.Context, taskID string) ([]int, error)
}

// SelfTester is a backend that can show on the node, without harm to what runs, that it enforces what Describe says. The
// result becomes a driver attribute. It is run when the driver starts and the backend's Probe passes for the first time.
type SelfTester interface {
	SelfTest(ctx context.Context) error
}
