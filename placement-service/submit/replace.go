package submit

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/heteroflow/heteroflow/internal/nomadapi"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/admission"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

// Replace looks for other nodes for a job that Nomad has and cannot place in full: its nodes were lost, drained or
// filled by others. Running allocations stay. done tells that there is nothing more to do for now.
func (s *Submitter) Replace(ctx context.Context, key watch.JobKey) (done bool, err error) {
	defer s.lock(key)()
	row, err := s.find(ctx, key)
	if err == nil && (row.Version == 0 || row.State == store.JobSubmitted) && len(row.Injection) == 0 {
		return s.openForms(ctx, key)
	}
	if err != nil || row.State != store.JobSubmitted {
		return true, err
	}
	sub, err := s.stored(row)
	if err != nil {
		return true, err
	}
	if sub.reading.Request.Loose != "" {
		return true, nil // its allocations are placed by Nomad alone
	}
	stored, err := s.Nomad.Job(ctx, key.Namespace, key.ID)
	if nomadapi.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, answerOf(err)
	}
	if !s.isSame(stored, sub.hash) {
		return true, nil // another version, of which its own registration takes care
	}
	older, err := runningInjection(row)
	if err != nil {
		return true, err
	}
	p, groups := sub.placing(row, older), allGroups(sub.reading)
	found, err := s.placeGroups(ctx, p, groups)
	if err != nil {
		return false, err
	}
	if found.job == nil {
		return s.takeBack(ctx, sub, row, stored, refusalOf(found))
	}
	if !differ(older, found.injection) {
		if sub.reading.Gang != nil {
			return s.takeBack(ctx, sub, row, stored, engine.Refusal{Code: codeContended, Sentence: "others hold what was found for the rest"})
		}
		return true, nil // Nomad has the right nodes; what it lacks is not ours to give
	}
	p.row = &row
	if found, err = s.placeGroups(ctx, p, groups); err != nil || found.job == nil {
		return false, err
	}
	// Only if nobody registered it since.
	sub.env["EnforceIndex"] = true
	sub.env["JobModifyIndex"], _ = stored["JobModifyIndex"].(json.Number)
	result, err := s.send(ctx, sub, row, found)
	result.finish()
	if errors.Is(err, store.ErrConflict) {
		return false, nil
	}
	if err == nil {
		s.partial.Delete(key)
		s.log.Info("job placed anew", "namespace", key.Namespace, "job_id", key.ID)
	}
	return err == nil, err
}

// differ reports whether the newer injection allows a node that the older did not, or other devices, or has another number
// of an elastic gang's members.
func differ(older, newer admission.Injection) bool {
	for _, g := range newer.Groups {
		old := groupOf(older, g.Group)
		if old == nil || g.Most > 0 && g.Count != old.Count {
			return true
		}
		for _, node := range g.Plan.Nodes {
			if !slices.Contains(old.Plan.Nodes, node) {
				return true
			}
		}
		if !slices.EqualFunc(old.Plan.Tasks, g.Plan.Tasks, sameShape) {
			return true
		}
	}
	return false
}

func sameShape(a, b engine.TaskShape) bool {
	return a.Task == b.Task && slices.EqualFunc(a.Blocks, b.Blocks, func(x, y engine.Block) bool {
		return x.Device == y.Device && x.Count == y.Count && slices.EqualFunc(x.Allow, y.Allow, func(v, w engine.Allow) bool {
			return v.Attribute == w.Attribute && slices.Equal(v.Values, w.Values)
		})
	})
}

// Adopt records a job that holds devices and never passed here, so that people see it.
func (s *Submitter) Adopt(ctx context.Context, key watch.JobKey) error {
	defer s.lock(key)()
	row, err := s.find(ctx, key)
	if err != nil || row.Version != 0 {
		return err
	}
	stored, err := s.Nomad.Job(ctx, key.Namespace, key.ID)
	if nomadapi.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	clean := withoutCounters(admission.Strip(stored))
	hash, err := admission.SpecHash(clean)
	if err != nil {
		return err
	}
	row.Spec, err = json.Marshal(Tree{"Job": clean})
	if err != nil {
		return err
	}
	row.SpecHash, row.State, row.Priority = hash, store.JobSubmitted, priorityOf(clean)
	row.Tenant, row.ReasonCode, row.Reason = admission.TenantOf(stored, s.Key), "adopted", "the job is not in the books of the service; what it holds is counted"
	if row.Tenant == "" {
		row.Tenant = s.tenantOfParent(ctx, key, stored)
	}
	if _, err = s.Store.PutJob(ctx, row); errors.Is(err, store.ErrConflict) {
		return nil
	}
	return err
}

// tenantOfParent is the tenant of the job that a dispatched or periodic job was made from.
func (s *Submitter) tenantOfParent(ctx context.Context, key watch.JobKey, job Tree) string {
	parent, _ := job["ParentID"].(string)
	if parent == "" {
		return ""
	}
	row, err := s.find(ctx, watch.JobKey{Namespace: key.Namespace, ID: parent})
	if err != nil {
		s.log.Debug("parent not read", "job_id", key.ID, "error", err)
	}
	return row.Tenant
}
