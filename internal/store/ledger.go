package store

import (
	"fmt"
	"time"
)

// Pool is one device group on one node: what its healthy instances can hold.
type Pool struct {
	NodeID   string
	Group    string // vendor/type/name
	Capacity int    // units, the group's healthy instances
	UnitMiB  uint64 // memory of one unit; 0 when unknown
}

// PoolUse is a pool and what is taken from it. Taken is the sum of the open claims and may exceed Capacity when
// Nomad placed more than the ledger had granted.
type PoolUse struct {
	Pool
	Taken int
}

// Free is how many units can still be claimed, never below 0.
func (p PoolUse) Free() int { return max(0, p.Capacity-p.Taken) }

// Claim takes units of one pool for one task.
type Claim struct {
	ReservationID string
	NodeID        string
	Group         string
	Units         int
	TaskGroup     string
	Task          string
	AllocID       string // empty until Nomad's allocation is known
}

// States of a reservation. The first three are open: their claims count.
const (
	Reserved  = "reserved"  // claimed, not yet sent to Nomad
	Submitted = "submitted" // sent to Nomad, some claims not yet seen as allocations
	Confirmed = "confirmed" // every claim belongs to an allocation
	Released  = "released"
	Expired   = "expired"
)

// Reservation is what one job holds. A job has at most one open reservation.
type Reservation struct {
	ID        string // made by Reserve's caller, see NewID
	Tenant    string
	Namespace string
	JobID     string
	State     string
	Claims    []Claim // in the order they were given
	CreatedAt time.Time
	ExpiresAt time.Time // when claims without an allocation lapse
	Version   int64
	// Replaces is the id of the job's open reservation that this one takes the place of. Only read by Reserve.
	Replaces string
	// Alone are pools of which no stranger may hold anything when this reservation takes its claims. Only read by Reserve.
	Alone []Alone
}

// Alone is a pool that a reservation does not share, but with some tenants.
type Alone struct {
	NodeID string
	Group  string
	Beside []string // tenants that may hold something of it all the same
}

// Holder is what the open claims of one tenant take of a pool.
type Holder struct {
	NodeID string
	Group  string
	Tenant string
	Units  int
}

// NoRoomError says which pool a reservation did not fit into. Find it with errors.As.
type NoRoomError struct {
	NodeID string
	Group  string
	Want   int // units asked of the pool
	Free   int // units it had free; 0 when there is no such pool
}

func (e *NoRoomError) Error() string {
	return fmt.Sprintf("no room in %s on node %s: %d units wanted, %d free", e.Group, e.NodeID, e.Want, e.Free)
}
