package state

import (
	"cmp"
	"slices"

	"github.com/hashicorp/nomad/api"
)

// Reader reads the state, with the changes of its transaction when it has one.
type Reader struct {
	s  *Store
	tx *Tx
}

// changes is the transaction's overlay, empty outside of one.
func (r Reader) changes() *changes {
	if r.tx == nil {
		return &changes{}
	}
	return &r.tx.changes
}

// Index is the index of the last change, or of the one being made.
func (r Reader) Index() uint64 {
	if r.tx != nil {
		return r.tx.Index
	}
	return r.s.index
}

// TableIndex is the index of the last change to a table: jobs, evals, allocs, nodes, deployments, services. Given a
// key (see Touch keys in the tables' indexes) it is that of the rows below that key only. It is at least 1.
func (r Reader) TableIndex(table, key string) uint64 {
	name := table
	if key != "" {
		name += ":" + key
	}
	return max(1, r.s.touched[name])
}

// Job is a job, nil when there is none.
func (r Reader) Job(namespace, id string) *api.Job {
	return r.changes().jobs.get(r.s.jobs, JobKey(namespace, id))
}

// Jobs lists jobs of a namespace ("*" for all), by namespace and id.
func (r Reader) Jobs(namespace string) []*api.Job {
	rows := r.changes().jobs.all(r.s.jobs)
	rows = slices.DeleteFunc(rows, func(j *api.Job) bool { return namespace != "*" && *j.Namespace != namespace })
	slices.SortFunc(rows, byNamespaceAndID)
	return rows
}

// Periodic lists the periodic jobs of every namespace that are not stopped, by namespace and id. It does not put the
// other jobs, which are most, in order.
func (r Reader) Periodic() []*api.Job {
	rows := r.changes().jobs.all(r.s.jobs)
	rows = slices.DeleteFunc(rows, func(j *api.Job) bool { return !j.IsPeriodic() || *j.Stop })
	slices.SortFunc(rows, byNamespaceAndID)
	return rows
}

func byNamespaceAndID(a, b *api.Job) int {
	return cmp.Or(cmp.Compare(*a.Namespace, *b.Namespace), cmp.Compare(*a.ID, *b.ID))
}

// Children lists the jobs that a periodic or parameterized job has started.
func (r Reader) Children(namespace, id string) []*api.Job {
	rows := r.changes().jobs.find(r.s.jobs, "parent", JobKey(namespace, id))
	slices.SortFunc(rows, func(a, b *api.Job) int { return cmp.Compare(*a.ID, *b.ID) })
	return rows
}

// Versions lists the kept versions of a job that is registered now, newest first.
func (r Reader) Versions(namespace, id string) []*api.Job {
	current := r.Job(namespace, id)
	if current == nil {
		return nil
	}
	rows := r.changes().versions.find(r.s.versions, "job", JobKey(namespace, id))
	// Versions of a purged job of that name stay while allocations refer to them.
	rows = slices.DeleteFunc(rows, func(j *api.Job) bool { return *j.CreateIndex != *current.CreateIndex })
	slices.SortFunc(rows, func(a, b *api.Job) int { return cmp.Compare(*b.Version, *a.Version) })
	for i, v := range rows {
		if *v.Version == *current.Version {
			rows[i] = current
		}
	}
	return rows
}

// Submission is the source of one version of a job, nil when it was not sent.
func (r Reader) Submission(namespace, id string, version uint64) *api.JobSubmission {
	for _, row := range r.changes().submissions.find(r.s.submissions, "job", JobKey(namespace, id)) {
		if row.Version == version {
			return row.Submission
		}
	}
	return nil
}

// ScaleEvents lists the scaling history of a group, newest first.
func (r Reader) ScaleEvents(namespace, id, group string) []api.ScalingEvent {
	var events []api.ScalingEvent
	for _, row := range r.changes().scales.find(r.s.scales, "job", JobKey(namespace, id)) {
		if row.Group == group {
			events = append(events, row.Event)
		}
	}
	slices.SortFunc(events, func(a, b api.ScalingEvent) int { return cmp.Compare(b.CreateIndex, a.CreateIndex) })
	return events
}

// Eval is an evaluation, nil when there is none.
func (r Reader) Eval(id string) *api.Evaluation { return r.changes().evals.get(r.s.evals, id) }

// Evals lists every evaluation by id.
func (r Reader) Evals() []*api.Evaluation { return byEvalID(r.changes().evals.all(r.s.evals)) }

// EvalsByJob lists a job's evaluations, newest first.
func (r Reader) EvalsByJob(namespace, id string) []*api.Evaluation {
	rows := r.changes().evals.find(r.s.evals, "job", JobKey(namespace, id))
	slices.SortFunc(rows, func(a, b *api.Evaluation) int {
		return cmp.Or(cmp.Compare(b.CreateIndex, a.CreateIndex), cmp.Compare(a.ID, b.ID))
	})
	return rows
}

// EvalsByStatus lists the evaluations in one status, by priority and then by age.
func (r Reader) EvalsByStatus(status string) []*api.Evaluation {
	rows := r.changes().evals.find(r.s.evals, "status", status)
	slices.SortFunc(rows, func(a, b *api.Evaluation) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.CreateIndex, b.CreateIndex), cmp.Compare(a.ID, b.ID))
	})
	return rows
}

func byEvalID(rows []*api.Evaluation) []*api.Evaluation {
	slices.SortFunc(rows, func(a, b *api.Evaluation) int { return cmp.Compare(a.ID, b.ID) })
	return rows
}

// Alloc is an allocation with its job, nil when there is none.
func (r Reader) Alloc(id string) *api.Allocation { return r.changes().allocs.get(r.s.allocs, id) }

// Allocs lists every allocation by id.
func (r Reader) Allocs() []*api.Allocation { return byAllocID(r.changes().allocs.all(r.s.allocs)) }

// AllocsByJob lists a job's allocations by id.
func (r Reader) AllocsByJob(namespace, id string) []*api.Allocation {
	return byAllocID(r.changes().allocs.find(r.s.allocs, "job", JobKey(namespace, id)))
}

// AllocsByNode lists a node's allocations by id.
func (r Reader) AllocsByNode(id string) []*api.Allocation {
	return byAllocID(r.changes().allocs.find(r.s.allocs, "node", id))
}

// AllocsByEval lists the allocations an evaluation made, by id.
func (r Reader) AllocsByEval(id string) []*api.Allocation {
	return byAllocID(r.changes().allocs.find(r.s.allocs, "eval", id))
}

// AllocsByDeployment lists the allocations of a deployment, by id.
func (r Reader) AllocsByDeployment(id string) []*api.Allocation {
	return byAllocID(r.changes().allocs.find(r.s.allocs, "deployment", id))
}

func byAllocID(rows []*api.Allocation) []*api.Allocation {
	slices.SortFunc(rows, func(a, b *api.Allocation) int { return cmp.Compare(a.ID, b.ID) })
	return rows
}

// Node is a node, nil when there is none.
func (r Reader) Node(id string) *api.Node { return r.changes().nodes.get(r.s.nodes, id) }

// Nodes lists every node by id. The list is shared: it must not be changed.
func (r Reader) Nodes() []*api.Node {
	unchanged := len(r.changes().nodes) == 0
	if known := r.s.nodeList.Load(); known != nil && unchanged {
		return *known
	}
	rows := r.changes().nodes.all(r.s.nodes)
	slices.SortFunc(rows, func(a, b *api.Node) int { return cmp.Compare(a.ID, b.ID) })
	if unchanged {
		r.s.nodeList.Store(&rows)
	}
	return rows
}

// Deployment is a deployment, nil when there is none.
func (r Reader) Deployment(id string) *api.Deployment {
	return r.changes().deployments.get(r.s.deployments, id)
}

// Deployments lists every deployment by id.
func (r Reader) Deployments() []*api.Deployment {
	rows := r.changes().deployments.all(r.s.deployments)
	slices.SortFunc(rows, func(a, b *api.Deployment) int { return cmp.Compare(a.ID, b.ID) })
	return rows
}

// DeploymentsByStatus lists the deployments in one status, by id.
func (r Reader) DeploymentsByStatus(status string) []*api.Deployment {
	rows := r.changes().deployments.find(r.s.deployments, "status", status)
	slices.SortFunc(rows, func(a, b *api.Deployment) int { return cmp.Compare(a.ID, b.ID) })
	return rows
}

// AllVersions lists every kept version of every job, purged ones included, in no order.
func (r Reader) AllVersions() []*api.Job { return r.changes().versions.all(r.s.versions) }

// DeploymentsByJob lists a job's deployments, newest first.
func (r Reader) DeploymentsByJob(namespace, id string) []*api.Deployment {
	rows := r.changes().deployments.find(r.s.deployments, "job", JobKey(namespace, id))
	slices.SortFunc(rows, func(a, b *api.Deployment) int { return cmp.Compare(b.CreateIndex, a.CreateIndex) })
	return rows
}

// Services lists every registration by id.
func (r Reader) Services() []*api.ServiceRegistration {
	return byServiceID(r.changes().services.all(r.s.services))
}

// ServicesByName lists the registrations of one service, by id.
func (r Reader) ServicesByName(namespace, name string) []*api.ServiceRegistration {
	return byServiceID(r.changes().services.find(r.s.services, "name", JobKey(namespace, name)))
}

// ServicesByAlloc lists the registrations of one allocation, by id.
func (r Reader) ServicesByAlloc(id string) []*api.ServiceRegistration {
	return byServiceID(r.changes().services.find(r.s.services, "alloc", id))
}

func byServiceID(rows []*api.ServiceRegistration) []*api.ServiceRegistration {
	slices.SortFunc(rows, func(a, b *api.ServiceRegistration) int { return cmp.Compare(a.ID, b.ID) })
	return rows
}
