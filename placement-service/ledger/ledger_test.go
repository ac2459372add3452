package ledger

import (
	"context"
	"errors"
	"testing"

	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

type fake struct {
	pools   []store.PoolUse
	holders []store.Holder
	reads   int
}

func (f *fake) Holders(context.Context) ([]store.Holder, error) { return f.holders, nil }

func (f *fake) Pools(context.Context) ([]store.PoolUse, error) {
	f.reads++
	return f.pools, nil
}

func use(node, group string, taken int) store.PoolUse {
	return store.PoolUse{Pool: store.Pool{NodeID: node, Group: group, Capacity: 80}, Taken: taken}
}

func claim(units int) []store.Claim { return []store.Claim{{NodeID: "n", Group: "g", Units: units}} }

func taken(t *testing.T, v *View) (watch.Taken, bool) {
	t.Helper()
	got, cached, err := v.Taken(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return got, cached
}

func TestView_ReadsOnceAndFollowsItsOwnChanges(t *testing.T) {
	t.Parallel()
	f := &fake{pools: []store.PoolUse{use("n", "g", 10), use("n", "free", 0)}}
	v := New(f)
	first, cached := taken(t, v)
	if cached || first["n"]["g"] != 10 || len(first["n"]) != 1 {
		t.Errorf("first reading is %v, cached %v", first, cached)
	}
	if err := v.Change("t", claim(10), claim(30), func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	if got, cached := taken(t, v); !cached || got["n"]["g"] != 30 || first["n"]["g"] != 10 {
		t.Errorf("after a change: %v cached %v, the first reading is %v now", got, cached, first)
	}
	if got := Without(first, "t", claim(10)); got["n"]["g"] != 0 || first["n"]["g"] != 10 {
		t.Errorf("without its claims: %v, the original is %v", got, first)
	}
	v.Invalidate()
	if got, cached := taken(t, v); cached || got["n"]["g"] != 10 || f.reads != 2 {
		t.Errorf("after Invalidate: %v cached %v, %d reads", got, cached, f.reads)
	}
}

func TestView_KeepsNothingThatWasReadDuringAChange(t *testing.T) {
	t.Parallel()
	f := &fake{pools: []store.PoolUse{use("n", "g", 10)}}
	v := New(f)
	err := v.Change("t", nil, claim(10), func() error {
		taken(t, v) // it may or may not have seen the change
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, cached := taken(t, v); cached {
		t.Error("a reading that may count the change twice was kept")
	}
	if err := v.Change("t", nil, claim(5), func() error { return errors.New("no room") }); err == nil {
		t.Error("the error got lost")
	}
	if _, cached := taken(t, v); cached {
		t.Error("the copy was kept after a change that may have been half done")
	}
}

// TestView_KnowsWhoHoldsWhat: what tenants hold follows the store and the changes made here.
func TestView_KnowsWhoHoldsWhat(t *testing.T) {
	t.Parallel()
	f := &fake{pools: []store.PoolUse{use("n", "g", 10)}, holders: []store.Holder{
		{NodeID: "n", Group: "g", Tenant: "a", Units: 10}, {NodeID: "n", Group: "hidden", Tenant: "a", Units: 3}, {NodeID: "n", Group: "g", Units: 1},
	}}
	v := New(f)
	first, _ := taken(t, v)
	if first["n"][watch.HeldBy("g", "a")] != 10 || len(first["n"]) != 2 {
		t.Errorf("first reading is %v", first)
	}
	if err := v.Change("b", nil, claim(5), func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	got, _ := taken(t, v)
	if got["n"]["g"] != 15 || got["n"][watch.HeldBy("g", "a")] != 10 || got["n"][watch.HeldBy("g", "b")] != 5 {
		t.Errorf("after a change: %v", got)
	}
	if _, left := Without(got, "a", claim(10))["n"][watch.HeldBy("g", "a")]; left {
		t.Error("who gave back all is still there")
	}
}
