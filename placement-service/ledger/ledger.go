// Package ledger is the service's view of what is taken from each pool: a copy of the store's ledger that spares
// reading every pool for every decision. The store's compare-and-swap stays the judge, so a copy that is behind
// costs one more try and never an overcommitment. Deciding and settling do not belong here.
package ledger

import (
	"context"
	"fmt"
	"maps"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

// Pools is where the view reads from.
type Pools interface {
	Pools(context.Context) ([]store.PoolUse, error)
	// Holders is what each tenant holds of each pool.
	Holders(context.Context) ([]store.Holder, error)
}

// View is safe for concurrent use.
type View struct {
	from Pools

	mu    sync.Mutex
	taken watch.Taken // nil when it has to be read
	round uint64      // counts what made the copy old
	busy  int         // changes under way, of which a reader cannot tell whether it saw them
}

// New makes a view that has read nothing yet.
func New(from Pools) *View { return &View{from: from} }

// Invalidate has the next Taken read the store.
func (v *View) Invalidate() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.taken = nil
	v.round++
}

// Taken is what is taken of each pool. The map is not to be changed. cached tells that the store was not asked.
func (v *View) Taken(ctx context.Context) (taken watch.Taken, cached bool, err error) {
	v.mu.Lock()
	have, round := v.taken, v.round
	v.mu.Unlock()
	if have != nil {
		return have, true, nil
	}
	if taken, err = v.Read(ctx); err != nil {
		return nil, false, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.round == round && v.busy == 0 {
		v.taken = taken
	}
	return taken, false, nil
}

// Read is what is taken of each pool, from the store. Who holds it is asked at the same time: where the two differ the store
// has the last word, since it looks again when room is reserved.
func (v *View) Read(ctx context.Context) (watch.Taken, error) {
	var (
		pools   []store.PoolUse
		holders []store.Holder
	)
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() (err error) {
		if pools, err = v.from.Pools(ctx); err != nil {
			err = fmt.Errorf("read the ledger's pools: %w", err)
		}
		return err
	})
	both.Go(func() (err error) {
		if holders, err = v.from.Holders(ctx); err != nil {
			err = fmt.Errorf("read who holds the ledger's pools: %w", err)
		}
		return err
	})
	if err := both.Wait(); err != nil {
		return nil, err
	}
	taken := watch.Taken{}
	for _, p := range pools {
		if p.Taken != 0 {
			add(taken, p.NodeID, p.Group, p.Taken)
		}
	}
	for _, h := range holders {
		// What is hidden, or was given back meanwhile, counts for nobody; and of a job that is not in the books nobody knows whose it is.
		if taken[h.NodeID][h.Group] > 0 && h.Tenant != "" {
			add(taken, h.NodeID, watch.HeldBy(h.Group, h.Tenant), h.Units)
		}
	}
	return taken, nil
}

// Change does a change of the ledger in which claims of a tenant take the place of others, and notes it when it went well.
func (v *View) Change(tenant string, before, after []store.Claim, do func() error) error {
	v.mu.Lock()
	v.busy++
	v.round++
	v.mu.Unlock()
	err := do()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.busy--
	v.round++
	if err != nil || v.taken == nil {
		v.taken = nil
		return err
	}
	next := copyFor(v.taken, before, after) // others may be reading the old one
	addTo(next, tenant, before, -1)
	addTo(next, tenant, after, 1)
	v.taken = next
	return nil
}

// Without is taken without some claims of a tenant.
func Without(taken watch.Taken, tenant string, claims []store.Claim) watch.Taken {
	if len(claims) == 0 {
		return taken
	}
	next := copyFor(taken, claims)
	addTo(next, tenant, claims, -1)
	return next
}

// copyFor is a copy in which the nodes of the claims may be changed.
func copyFor(taken watch.Taken, claims ...[]store.Claim) watch.Taken {
	next := maps.Clone(taken)
	for _, list := range claims {
		for _, c := range list {
			next[c.NodeID] = maps.Clone(taken[c.NodeID])
		}
	}
	return next
}

func addTo(taken watch.Taken, tenant string, claims []store.Claim, sign int) {
	for _, c := range claims {
		add(taken, c.NodeID, c.Group, sign*c.Units)
		add(taken, c.NodeID, watch.HeldBy(c.Group, tenant), sign*c.Units)
	}
}

func add(taken watch.Taken, node, group string, units int) {
	if taken[node] == nil {
		taken[node] = map[string]int{}
	}
	if left := taken[node][group] + units; left > 0 {
		taken[node][group] = left
	} else {
		delete(taken[node], group)
	}
}
