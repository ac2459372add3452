package submit

import (
	"context"
	"encoding/json"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/nomadapi"
	"github.com/heteroflow/heteroflow/placement-service/admission"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

// openForms is for a job that Nomad places by device blocks of its own and cannot: empty cards that are offered in
// another form than the job takes are switched, since nobody else would ask for it. done tells that there is nothing
// to wait for.
func (s *Submitter) openForms(ctx context.Context, key watch.JobKey) (done bool, err error) {
	if s.World.Stale(s.Clock.Now()) != "" {
		return false, nil
	}
	stored, err := s.Nomad.Job(ctx, key.Namespace, key.ID)
	if nomadapi.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, answerOf(err)
	}
	if stop, _ := stored["Stop"].(bool); stop {
		return true, nil
	}
	request, ok := admission.Plain(stored, s.missing(key, stored))
	if !ok {
		return true, nil
	}
	decision, err := s.decide(ctx, key, request, nil, false)
	if err != nil {
		return false, databaseError(err)
	}
	return false, s.want(ctx, key, append(decision.Switches, s.closings(decision)...))
}

// closings are the cards that the decision takes by all of their slices, as an accelerator block may: a device block
// for a whole card takes them only once they are offered whole.
func (s *Submitter) closings(d engine.Decision) []engine.Switch {
	var out []engine.Switch
	for _, c := range claimsOf(d) {
		pool, ok := s.World.Pool(c.NodeID, c.Group)
		if !ok || pool.Form != accel.Shared || !pool.Auto || c.Units < pool.Total {
			continue
		}
		for _, card := range pool.Cards {
			out = append(out, engine.Switch{NodeID: c.NodeID, CardUUID: card.UUID, To: accel.Whole})
		}
	}
	return out
}

// missing is how many allocations of each group do not live.
func (s *Submitter) missing(key watch.JobKey, stored Tree) map[string]int {
	out := map[string]int{}
	for _, g := range groupsOf(stored) {
		name, _ := g["Name"].(string)
		out[name] = 1 // Nomad's default
		if n, ok := g["Count"].(json.Number); ok {
			if count, err := n.Int64(); err == nil {
				out[name] = int(count)
			}
		}
	}
	for _, a := range s.World.LiveAllocs(key) {
		if a.Stays() {
			out[a.Group]--
		}
	}
	return out
}
