package rest

import (
	"context"

	"github.com/heteroflow/heteroflow/api"
)

// ListScaling says of each group that is scaled by its load what was last decided, and why.
func (s *server) ListScaling(ctx context.Context, _ api.ListScalingRequestObject) (api.ListScalingResponseObject, error) {
	tenant := whoOf(ctx).Tenant
	out := api.ListScaling200JSONResponse{Items: []api.ScaledGroup{}}
	for _, one := range s.Scaling() {
		if tenant != "" && one.Tenant != tenant {
			continue
		}
		g := api.ScaledGroup{
			Namespace: one.Namespace, JobID: one.JobID, Group: one.Group, Services: one.Services, Count: one.Count, Wanted: one.Decision.Count,
			Min: one.Min, Max: one.Max, Reason: one.Reason, Signals: one.Signals, DryRun: one.DryRun, Problem: ref(one.Problem), DecidedAt: one.At,
		}
		if one.Need >= 0 {
			g.Needed = &one.Need
		}
		if g.Services == nil {
			g.Services = []string{}
		}
		if g.Signals == nil {
			g.Signals = []string{}
		}
		out.Items = append(out.Items, g)
	}
	return out, nil
}
