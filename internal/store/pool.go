package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/heteroflow/heteroflow/internal/store/sqlgen"
)

// PutPools makes the node's pools exactly these. Claims on a pool that vanished stay until they are settled, and
// count again when it comes back. Pools of a node that is gone: PutPools with none.
func (s *Store) PutPools(ctx context.Context, nodeID string, pools []Pool) error {
	want, err := checkPools(nodeID, pools)
	if err != nil {
		return fmt.Errorf("put pools of node %s: %w", nodeID, err)
	}
	// Fingerprints repeat themselves: look before taking the writer.
	have, err := s.reader().ListPoolsOfNode(ctx, nodeID)
	if err != nil {
		return fmt.Errorf("read pools of node %s: %w", nodeID, err)
	}
	if len(poolChanges(have, want)) == 0 {
		return nil
	}
	err = s.inRelaxedTx(ctx, func(q *sqlgen.Queries) error {
		have, err := q.ListPoolsOfNode(ctx, nodeID)
		if err != nil {
			return err
		}
		for _, change := range poolChanges(have, want) {
			if err := change.apply(ctx, q); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("put pools of node %s: %w", nodeID, err)
	}
	return nil
}

func checkPools(nodeID string, pools []Pool) (map[string]Pool, error) {
	want := make(map[string]Pool, len(pools))
	for _, p := range pools {
		if err := checkNames(nodeID, p.Group); err != nil {
			return nil, err
		}
		if p.NodeID != "" && p.NodeID != nodeID {
			return nil, fmt.Errorf("pool %s belongs to node %s: %w", p.Group, p.NodeID, ErrInvalid)
		}
		if _, twice := want[p.Group]; twice || p.Group == "" || p.Capacity < 0 {
			return nil, fmt.Errorf("pool %q with capacity %d, named once and not below 0, is %w", p.Group, p.Capacity, ErrInvalid)
		}
		p.NodeID = nodeID
		want[p.Group] = p
	}
	return want, nil
}

// poolChange is a pool to offer, or, when gone, to hide.
type poolChange struct {
	pool Pool
	gone bool
}

// poolChanges lists what differs, in the one order in which everyone locks pools.
func poolChanges(have []sqlgen.Pool, want map[string]Pool) []poolChange {
	var changes []poolChange
	same := make(map[string]bool, len(have))
	for _, row := range have {
		p, wanted := want[row.GroupName]
		switch {
		case wanted && row.Present && row.Capacity == int64(p.Capacity) && row.UnitMib == int64(p.UnitMiB):
			same[row.GroupName] = true
		case !wanted && (row.Present || row.Taken == 0):
			changes = append(changes, poolChange{pool: Pool{NodeID: row.NodeID, Group: row.GroupName}, gone: true})
		}
	}
	for _, p := range want {
		if !same[p.Group] {
			changes = append(changes, poolChange{pool: p})
		}
	}
	slices.SortFunc(changes, func(a, b poolChange) int { return cmp.Compare(a.pool.Group, b.pool.Group) })
	return changes
}

func (c poolChange) apply(ctx context.Context, q *sqlgen.Queries) error {
	p := c.pool
	if !c.gone {
		return q.UpsertPool(ctx, sqlgen.UpsertPoolParams{
			NodeID: p.NodeID, GroupName: p.Group, Capacity: int64(p.Capacity), UnitMib: int64(p.UnitMiB),
		})
	}
	if err := q.HidePool(ctx, sqlgen.HidePoolParams{NodeID: p.NodeID, GroupName: p.Group}); err != nil {
		return err
	}
	return q.DeleteHiddenPool(ctx, sqlgen.DeleteHiddenPoolParams{NodeID: p.NodeID, GroupName: p.Group})
}

// Pools lists every pool that its node offers now, by node and group.
func (s *Store) Pools(ctx context.Context) ([]PoolUse, error) {
	rows, err := s.reader().ListPools(ctx)
	if err != nil {
		return nil, fmt.Errorf("list pools: %w", err)
	}
	return mapRows(rows, poolOf)
}

func poolOf(row sqlgen.Pool) (PoolUse, error) {
	return PoolUse{
		Pool: Pool{
			NodeID: row.NodeID, Group: row.GroupName, Capacity: int(row.Capacity), UnitMiB: uint64(row.UnitMib),
		},
		Taken: int(row.Taken),
	}, nil
}

// Holders lists what each tenant holds of each pool by the open claims, also of pools that their node does not offer now.
func (s *Store) Holders(ctx context.Context) ([]Holder, error) {
	rows, err := s.reader().SumHolders(ctx)
	if err != nil {
		return nil, fmt.Errorf("list holders of pools: %w", err)
	}
	return mapRows(rows, func(row sqlgen.SumHoldersRow) (Holder, error) {
		return Holder{NodeID: row.NodeID, Group: row.GroupName, Tenant: row.Tenant, Units: int(row.Units)}, nil
	})
}

// RecountPools sets what is taken from each pool to the sum of its claims, and says how many pools were wrong. It is
// a safety net: every write keeps the two equal.
func (s *Store) RecountPools(ctx context.Context) (fixed int, err error) {
	rows, err := s.reader().ListAllPools(ctx)
	if err != nil {
		return 0, fmt.Errorf("list pools: %w", err)
	}
	claimed, err := s.reader().ListClaimedPools(ctx)
	if err != nil {
		return 0, fmt.Errorf("list claimed pools: %w", err)
	}
	keys := make(deltas, len(rows))
	for _, row := range rows {
		keys[poolKey{row.NodeID, row.GroupName}] = 0
	}
	for _, row := range claimed {
		keys[poolKey{row.NodeID, row.GroupName}] = 0
	}
	for _, k := range keys.sorted() {
		wrong, err := s.recount(ctx, k)
		if err != nil {
			return fixed, fmt.Errorf("recount %s on node %s: %w", k.group, k.node, err)
		}
		if wrong {
			fixed++
		}
	}
	return fixed, nil
}

func (s *Store) recount(ctx context.Context, k poolKey) (wrong bool, err error) {
	err = s.inRelaxedTx(ctx, func(q *sqlgen.Queries) error {
		// Adding nothing locks the row, and makes it when claims lie on a pool that nobody has offered yet.
		if err := q.AddTaken(ctx, sqlgen.AddTakenParams{NodeID: k.node, GroupName: k.group, Units: 0}); err != nil {
			return err
		}
		sum, err := q.SumClaimsOfPool(ctx, sqlgen.SumClaimsOfPoolParams{NodeID: k.node, GroupName: k.group})
		if err != nil {
			return err
		}
		row, err := q.GetPool(ctx, sqlgen.GetPoolParams{NodeID: k.node, GroupName: k.group})
		if err != nil {
			return err
		}
		if wrong = row.Taken != sum; !wrong {
			return nil
		}
		return q.SetTaken(ctx, sqlgen.SetTakenParams{NodeID: k.node, GroupName: k.group, Taken: sum})
	})
	return wrong, err
}

type poolKey struct{ node, group string }

// deltas is by how many units what is taken from each pool changes.
type deltas map[poolKey]int

func (d deltas) add(claims []Claim, times int) {
	for _, c := range claims {
		d[poolKey{c.NodeID, c.Group}] += times * c.Units
	}
}

// sorted is the one order in which every transaction touches pools, so that no two wait for each other in a ring.
func (d deltas) sorted() []poolKey {
	keys := make([]poolKey, 0, len(d))
	for k := range d {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b poolKey) int {
		return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.group, b.group))
	})
	return keys
}

// force changes what is taken, also beyond capacity: Nomad's allocations exist, whatever the ledger had granted.
func (d deltas) force(ctx context.Context, q *sqlgen.Queries) error {
	for _, k := range d.sorted() {
		if d[k] == 0 {
			continue
		}
		err := q.AddTaken(ctx, sqlgen.AddTakenParams{NodeID: k.node, GroupName: k.group, Units: int64(d[k])})
		if err != nil {
			return fmt.Errorf("take from %s on node %s: %w", k.group, k.node, err)
		}
	}
	return nil
}

// take changes what is taken where there is room, and answers *NoRoomError at the first pool without.
func (d deltas) take(ctx context.Context, q *sqlgen.Queries) error {
	for _, k := range d.sorted() {
		units := d[k]
		if units <= 0 {
			if err := (deltas{k: units}).force(ctx, q); err != nil {
				return err
			}
			continue
		}
		n, err := q.TakeIfRoom(ctx, sqlgen.TakeIfRoomParams{NodeID: k.node, GroupName: k.group, Units: int64(units)})
		if err != nil {
			return fmt.Errorf("take from %s on node %s: %w", k.group, k.node, err)
		}
		if n == 0 {
			return noRoom(ctx, q, k, units)
		}
	}
	return nil
}

func noRoom(ctx context.Context, q *sqlgen.Queries, k poolKey, units int) error {
	e := &NoRoomError{NodeID: k.node, Group: k.group, Want: units}
	row, err := q.GetPool(ctx, sqlgen.GetPoolParams{NodeID: k.node, GroupName: k.group})
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return e
	case err != nil:
		return fmt.Errorf("read %s on node %s: %w", k.group, k.node, err)
	}
	e.Free = int(max(0, row.Capacity-row.Taken))
	return e
}
