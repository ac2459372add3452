package grant

import (
	"fmt"
	"slices"
	"time"
)

// Gang is what the grant of a task says whose allocations are members of a gang: the driver starts none of them before all
// have come to the start.
type Gang struct {
	Members      int    `json:"members"`       // of the whole gang; the most of an elastic one
	Min          int    `json:"min,omitempty"` // the fewest that may run, which makes it elastic; 0 for all
	Framework    string `json:"framework"`     // ddp, fsdp, deepspeed or mpi
	StartSeconds int    `json:"start_s"`       // how long the members that came wait for the others
	OnLost       OnLost `json:"on_lost"`       // what becomes of the others when one is lost after the start
}

// OnLost is what becomes of a gang that has lost a member.
type OnLost string

// The policies.
const (
	RestartGang   OnLost = "restart_gang"   // all members start again together
	RestartMember OnLost = "restart_member" // the others go on; the member comes back under its rank
	FailGang      OnLost = "fail"           // the job is stopped
)

// OnLostPolicies are the policies, the default first.
var OnLostPolicies = []OnLost{RestartGang, RestartMember, FailGang}

// StartTimeout is how long members wait for each other.
func (g Gang) StartTimeout() time.Duration { return time.Duration(g.StartSeconds) * time.Second }

// Check says what is wrong with it.
func (g Gang) Check() error {
	switch {
	case g.Members < 1:
		return fmt.Errorf("the gang has %d members", g.Members)
	case g.Min < 0 || g.Min > g.Members:
		return fmt.Errorf("at least %d of %d members are to run", g.Min, g.Members)
	case g.StartSeconds < 1:
		return fmt.Errorf("the members wait %d seconds for each other", g.StartSeconds)
	case !slices.Contains(OnLostPolicies, g.OnLost):
		return fmt.Errorf("policy %q is not known to this driver: upgrade heteroflow-driver", g.OnLost)
	}
	return nil
}
