package watch

import (
	"reflect"
	"testing"

	"github.com/heteroflow/heteroflow/internal/store"
)

// What was told to stop does not use up the room that its job reserved anew for what comes after it.
func TestClaimsOf_RoomReservedAnew(t *testing.T) {
	t.Parallel()
	alloc := func(id, desired string, units int) *Alloc {
		ids := make([]string, units)
		return &Alloc{ID: id, Group: "g", NodeID: "n1", Client: "running", Desired: desired, Devices: []Device{{Task: "t", Group: "p", IDs: ids}}}
	}
	claim := func(id string, units int) store.Claim {
		return store.Claim{NodeID: "n1", Group: "p", TaskGroup: "g", Task: "t", AllocID: id, Units: units}
	}
	held := func(state string, claims ...store.Claim) store.Reservation {
		return store.Reservation{State: state, Claims: claims}
	}
	for name, c := range map[string]struct {
		allocs []*Alloc
		held   store.Reservation
		coming bool
		want   []store.Claim
	}{
		"it runs":                        {[]*Alloc{alloc("a", "run", 5)}, held(store.Reserved, claim("", 5)), false, []store.Claim{claim("a", 5)}},
		"it stops, reserved anew":        {[]*Alloc{alloc("a", "stop", 5)}, held(store.Reserved, claim("", 5)), false, nil},
		"and sent to Nomad":              {[]*Alloc{alloc("a", "stop", 5)}, held(store.Submitted, claim("", 5)), true, nil},
		"and nothing is to come":         {[]*Alloc{alloc("a", "stop", 5)}, held(store.Submitted, claim("", 5)), false, []store.Claim{claim("a", 5)}},
		"more is reserved":               {[]*Alloc{alloc("a", "stop", 5)}, held(store.Reserved, claim("", 9)), false, nil},
		"less is reserved":               {[]*Alloc{alloc("a", "stop", 5)}, held(store.Reserved, claim("", 4)), false, []store.Claim{claim("a", 5)}},
		"the ledger still has it":        {[]*Alloc{alloc("a", "stop", 5)}, held(store.Submitted, claim("a", 5), claim("", 5)), true, []store.Claim{claim("a", 5)}},
		"two stop, room for one":         {[]*Alloc{alloc("a", "stop", 5), alloc("b", "evict", 5)}, held(store.Reserved, claim("", 5)), false, []store.Claim{claim("b", 5)}},
		"one stops, the next is there":   {[]*Alloc{alloc("a", "stop", 5), alloc("b", "run", 5)}, held(store.Submitted, claim("b", 5)), true, []store.Claim{claim("a", 5), claim("b", 5)}},
		"several blocks of one task fit": {[]*Alloc{alloc("a", "stop", 5)}, held(store.Reserved, claim("", 2), claim("", 3)), false, nil},
		"nothing is held":                {[]*Alloc{alloc("a", "stop", 5)}, held(""), true, []store.Claim{claim("a", 5)}},
	} {
		got := claimsOf(c.allocs, c.held, c.coming)
		if len(got) != len(c.want) || len(got) > 0 && !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
