package submit

import (
	"context"
	"errors"
	"time"

	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/engine/defrag"
)

const (
	// metaMovable is the key of a job's meta that says that its allocations may be started again elsewhere.
	metaMovable = "heteroflow_movable"
	// moveRest is how long a job that was moved or evicted is left where it is.
	moveRest = time.Hour
	// mostMoves is how many moves a plan may have.
	mostMoves = 16
)

// Moves says which running allocations would have to move for a waiting job to start, for people: nothing is done.
// asked is false when the job does not wait, and when no job says that it may be moved.
func (s *Submitter) Moves(ctx context.Context, row store.Job) (plan defrag.Plan, asked bool, err error) {
	if row.State != store.JobWaiting || isPreempting(row) || s.World.Stale(s.Clock.Now()) != "" {
		return defrag.Plan{}, false, nil
	}
	sub, err := s.stored(row)
	if err != nil || !sub.reading.Asks() || sub.reading.Request.Loose != "" {
		return defrag.Plan{}, false, err
	}
	older, err := runningInjection(row)
	if err != nil {
		return defrag.Plan{}, false, err
	}
	open, err := s.Store.ReservationOf(ctx, sub.key.Namespace, sub.key.ID)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return defrag.Plan{}, false, databaseError(err)
	}
	request, _, given := s.ask(sub.placing(row, older), allGroups(sub.reading), open)
	running, err := s.movable(ctx)
	if err != nil || len(running) == 0 {
		return defrag.Plan{}, false, err
	}
	snapshot, err := s.snapshotFor(ctx, sub.key, row.Tenant, given)
	if err != nil {
		return defrag.Plan{}, false, err
	}
	return defrag.Find(defrag.Question{
		Engine: s.Engine(), Snapshot: snapshot, Request: request, Running: running,
		Rest: int64(moveRest / time.Second), Now: s.Clock.Now().Unix(), Most: mostMoves,
	}), true, nil
}

// movable lists the running allocations of jobs that may be moved.
func (s *Submitter) movable(ctx context.Context) ([]defrag.Allocation, error) {
	rows, err := s.submittedRows(ctx)
	if err != nil {
		return nil, err
	}
	evictions, err := s.Store.EvictionsSince(ctx, s.Clock.Now().Add(-moveRest))
	if err != nil {
		return nil, databaseError(err)
	}
	past := pastOf(evictions)
	var out []defrag.Allocation
	for _, key := range s.World.JobsWithDevices() {
		row, submitted := rows[key]
		if !submitted {
			continue
		}
		facts := s.factsOf(row)
		if !facts.movable || facts.pinned {
			continue
		}
		for _, a := range s.World.LiveAllocs(key) {
			again, known := facts.groups[a.Group]
			if !known || a.Desired != "run" {
				continue
			}
			out = append(out, defrag.Allocation{
				Allocation: allocationOf(a, row, facts, s.Clock.Now()), Movable: true, MovedAt: past.evicted(key),
				Again: engine.Request{JobID: row.ID, Namespace: row.Namespace, Tenant: row.Tenant, Datacenters: facts.datacenters, NodePool: facts.nodePool, Groups: []engine.GroupAsk{again}},
			})
		}
	}
	return out, nil
}

// groupsAgain are the groups of a request by name, each for one allocation that starts anew.
func groupsAgain(r engine.Request) map[string]engine.GroupAsk {
	out := make(map[string]engine.GroupAsk, len(r.Groups))
	for _, g := range r.Groups {
		g.Count, g.Keep = 1, nil
		out[g.Name] = g
	}
	return out
}
