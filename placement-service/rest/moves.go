package rest

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/api"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/engine/defrag"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

// ListMoves says which allocations would have to move for a waiting job. Nothing is done.
func (s *server) ListMoves(ctx context.Context, r api.ListMovesRequestObject) (api.ListMovesResponseObject, error) {
	job, err := s.findJob(ctx, r.Params.Namespace, r.ID)
	if err != nil {
		return nil, err
	}
	plan, asked, err := s.Submit.Moves(ctx, job)
	if err != nil {
		return nil, err
	}
	if !asked {
		plan.Refusal = "the job does not wait for room, or no job that runs says that it may be moved"
	}
	return api.ListMoves200JSONResponse(s.movesView(plan)), nil
}

// MakeMoves has them made.
func (s *server) MakeMoves(ctx context.Context, r api.MakeMovesRequestObject) (api.MakeMovesResponseObject, error) {
	if _, err := s.findJob(ctx, r.Params.Namespace, r.ID); err != nil {
		return nil, err
	}
	key := watch.JobKey{Namespace: cmp.Or(val(r.Params.Namespace), "default"), ID: r.ID}
	plan, err := s.Submit.Move(ctx, whoOf(ctx).Caller(), key)
	if err != nil {
		return nil, err
	}
	s.log.Info("moves wanted", "namespace", key.Namespace, "job_id", key.ID, "moves", len(plan.Moves), "by", whoOf(ctx).User)
	return api.MakeMoves201JSONResponse(s.movesView(plan)), nil
}

func (s *server) movesView(plan defrag.Plan) api.Moves {
	out := api.Moves{Moves: []api.Move{}, Cards: plan.Cards, Refusal: ref(plan.Refusal)}
	for _, m := range plan.Moves {
		namespace, id, _ := strings.Cut(m.Job, "/")
		out.Moves = append(out.Moves, api.Move{
			AllocID: m.ID, Namespace: namespace, JobID: id, Tenant: m.Tenant, FromNode: s.World.NodeName(m.From), ToNode: s.World.NodeName(m.To.NodeID),
		})
	}
	return out
}

// GetFragmentation says how much of what is free the usual demand cannot use.
func (s *server) GetFragmentation(ctx context.Context, _ api.GetFragmentationRequestObject) (api.GetFragmentationResponseObject, error) {
	taken, err := s.Ledger.Read(ctx)
	if err != nil {
		return nil, err
	}
	var demand []engine.Asked
	learnt, _ := s.Tuning.Engine().Learnt()
	if d := learnt.Demand(); d != nil {
		demand = d.Asked
	}
	snapshot := s.World.Snapshot(taken)
	return api.GetFragmentation200JSONResponse(fragmentationOf(snapshot, defrag.Measure(snapshot, defrag.Typical(demand)), len(demand) > 0, s.World)), nil
}

func fragmentationOf(snapshot engine.Snapshot, report defrag.Report, known bool, world *watch.World) api.Fragmentation {
	lost := func(r defrag.Room) *float64 {
		if !known {
			return nil
		}
		return &r.LostCards
	}
	out := api.Fragmentation{AsOf: world.AsOf(), FreeCards: report.FreeCards, UnusableCards: lost(report.Room), Nodes: []api.NodeFragmentation{}}
	for i, n := range report.Nodes {
		node := api.NodeFragmentation{
			NodeID: n.NodeID, NodeName: snapshot.Nodes[i].Name, FreeCards: n.FreeCards, UnusableCards: lost(n.Room), Pools: []api.PoolFragmentation{},
		}
		for j, p := range n.Pools {
			of := &snapshot.Nodes[i].Pools[j]
			pool := api.PoolFragmentation{Group: p.Group, Model: of.Model, Form: string(of.Form), FreeCards: p.FreeCards, UnusableCards: lost(p.Room)}
			if len(of.Cards) == 1 {
				pool.CardUUID = ref(of.Cards[0].UUID)
			}
			node.Pools = append(node.Pools, pool)
		}
		out.Nodes = append(out.Nodes, node)
	}
	slices.SortFunc(out.Nodes, func(a, b api.NodeFragmentation) int {
		return cmp.Or(cmp.Compare(a.NodeName, b.NodeName), cmp.Compare(a.NodeID, b.NodeID))
	})
	return out
}
