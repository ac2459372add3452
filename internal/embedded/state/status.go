package state

import "github.com/hashicorp/nomad/api"

// Ended reports whether an allocation holds nothing on its node any more.
func Ended(a *api.Allocation) bool {
	switch a.ClientStatus {
	case api.AllocClientStatusComplete, api.AllocClientStatusFailed, api.AllocClientStatusLost:
		return true
	}
	return false
}

// settleStatus brings the status of every job the transaction touched in line with its allocations and evaluations.
func (tx *Tx) settleStatus() {
	for _, id := range tx.jobs {
		j := tx.Job(id[0], id[1])
		if j == nil {
			continue
		}
		status := tx.jobStatus(j)
		if j.Status != nil && *j.Status == status {
			continue
		}
		next := *j
		next.Status, next.ModifyIndex = &status, new(tx.Index)
		tx.setJob(&next)
		if j != tx.Reader.s.jobs.rows[jobKey(j)] {
			continue // the transaction has an event of the job already
		}
		tx.event("Job", "EvaluationUpdated", id[1], id[0], nil, "Job", &next)
	}
}

func (tx *Tx) jobStatus(j *api.Job) string {
	stopped := j.Stop != nil && *j.Stop
	for _, a := range tx.changes.allocs.find(tx.Reader.s.allocs, "job", jobKey(j)) {
		if !Ended(a) {
			return "running"
		}
	}
	for _, e := range tx.changes.evals.find(tx.Reader.s.evals, "job", jobKey(j)) {
		if e.Status == api.EvalStatusPending || e.Status == api.EvalStatusBlocked {
			return "pending"
		}
	}
	switch {
	case stopped:
		return "dead"
	case j.IsPeriodic(), j.IsParameterized(), *j.Type == api.JobTypeSystem:
		return "running"
	case len(tx.changes.evals.find(tx.Reader.s.evals, "job", jobKey(j))) == 0:
		return "pending"
	}
	return "dead"
}
