package share

import "github.com/heteroflow/heteroflow/internal/accel"

// Enforcement is what stands behind one limit of a share.
type Enforcement string

// The kinds of enforcement, strongest first.
const (
	ByHardware Enforcement = "hardware" // the card itself refuses
	ByDriver   Enforcement = "driver"   // the kernel driver or the maker's daemon refuses
	ByLibrary  Enforcement = "library"  // a library in the task's processes refuses; one who removes it is not bound
	Watched    Enforcement = "watched"  // nothing refuses; over-use is seen and told, or the task is stopped
	NotAtAll   Enforcement = "none"
)

// Isolation is what a backend's shares are kept apart by. It is published as a table in the docs.
type Isolation struct {
	QoS     accel.QoS
	Memory  Enforcement // of the share's memory
	Compute Enforcement // of the share's part of the card's compute
	Faults  Enforcement // a neighbour's crash does not reach the share
	Sight   Enforcement // neighbours' processes, names and counters are not seen, profiling tools included

	// Forms are those of the cards that the backend divides: Shared, MIG.
	Forms []accel.Form
	// Limits is what the reader must know and the words above do not say, in one or two plain sentences, in English and
	// Chinese.
	Limits, LimitsZH string
}
