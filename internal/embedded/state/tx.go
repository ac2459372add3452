package state

import (
	"slices"

	"github.com/hashicorp/nomad/api"
)

// changes are the overlays of a transaction.
type changes struct {
	jobs        overlay[api.Job]
	versions    overlay[api.Job]
	submissions overlay[Submission]
	scales      overlay[ScaleEvent]
	evals       overlay[api.Evaluation]
	allocs      overlay[api.Allocation]
	nodes       overlay[api.Node]
	deployments overlay[api.Deployment]
	services    overlay[api.ServiceRegistration]
}

// Tx is one change of the state under one index. Rows given to it belong to it afterwards: it sets their indexes.
type Tx struct {
	Reader
	Index   uint64
	changes changes
	records []record       // what the journal keeps, in order
	apply   []func(*Store) // what the tables get, in order
	touched []string
	forget  []string // entries of the touched map of rows that are gone
	events  []Event
	jobs    map[string][2]string // jobs whose status may have changed: key → namespace, id
	change  Change
}

// Update runs f as one transaction: nothing of it is kept when f fails, all of it is durable when Update returns nil.
// Transactions run one after another; f may take its time, readers are not held up by it.
func (s *Store) Update(f func(*Tx) error) error {
	s.write.Lock()
	defer s.write.Unlock()
	tx := &Tx{Index: s.Index() + 1, jobs: map[string][2]string{}, changes: changes{
		jobs: overlay[api.Job]{}, versions: overlay[api.Job]{}, submissions: overlay[Submission]{}, scales: overlay[ScaleEvent]{},
		evals: overlay[api.Evaluation]{}, allocs: overlay[api.Allocation]{}, nodes: overlay[api.Node]{},
		deployments: overlay[api.Deployment]{}, services: overlay[api.ServiceRegistration]{},
	}}
	tx.Reader = Reader{s: s, tx: tx}
	// Only writers change rows and writers hold s.write, so the tables can be read here without s.mu.
	if err := f(tx); err != nil {
		return err
	}
	if len(tx.apply) == 0 {
		return nil
	}
	tx.settleStatus()
	if s.journal != nil {
		if err := s.journal.append(tx.Index, tx.records, s.dump); err != nil {
			return err
		}
	}
	s.commit(tx)
	return nil
}

func (s *Store) commit(tx *Tx) {
	s.mu.Lock()
	for _, f := range tx.apply {
		f(s)
	}
	s.index = tx.Index
	if len(tx.changes.nodes) > 0 {
		s.nodeList.Store(nil)
	}
	for _, name := range tx.touched {
		s.touched[name] = tx.Index
	}
	for _, name := range tx.forget {
		delete(s.touched, name)
	}
	close(s.changed)
	s.changed = make(chan struct{})
	s.mu.Unlock()
	if len(tx.events) > 0 {
		s.events.Append(tx.Index, tx.events)
	}
	tx.change.Index = tx.Index
	for _, f := range s.onCommit {
		f(tx.change)
	}
}

// set records one row of one table in the transaction.
func set[T any](tx *Tx, o overlay[T], pick func(*Store) *table[T], key string, row *T, keep bool) {
	o[key] = row
	name := pick(tx.Reader.s).name
	if keep {
		tx.records = append(tx.records, makeRecord(name, key, row))
	}
	tx.apply = append(tx.apply, func(s *Store) {
		if row == nil {
			pick(s).remove(key)
		} else {
			pick(s).put(key, row)
		}
	})
	tx.touched = append(tx.touched, name)
}

func (tx *Tx) touch(table string, keys ...string) {
	for _, k := range keys {
		if k != "" {
			tx.touched = append(tx.touched, table+":"+k)
		}
	}
}

func (tx *Tx) jobTouched(namespace, id string) {
	if id != "" {
		tx.jobs[JobKey(namespace, id)] = [2]string{namespace, id}
	}
}

func (tx *Tx) setJob(j *api.Job) {
	set(tx, tx.changes.jobs, func(s *Store) *table[api.Job] { return s.jobs }, jobKey(j), j, true)
	tx.touch("jobs", jobKey(j))
}

// RegisterJob puts a new version of a job. The caller has set its version and its create index when it is an update.
func (tx *Tx) RegisterJob(j *api.Job) {
	old := tx.Job(*j.Namespace, *j.ID)
	if old == nil {
		j.CreateIndex = new(tx.Index)
	} else {
		j.CreateIndex = old.CreateIndex
	}
	j.ModifyIndex, j.JobModifyIndex = new(tx.Index), new(tx.Index)
	tx.setJob(j)
	key := versionKey(*j.Namespace, *j.ID, tx.Index)
	set(tx, tx.changes.versions, func(s *Store) *table[api.Job] { return s.versions }, key, j, true)
	tx.jobTouched(*j.Namespace, *j.ID)
	tx.event("Job", "JobRegistered", *j.ID, *j.Namespace, nil, "Job", j)
}

// UpdateJob puts a job whose version stays: its stability or its stop mark.
func (tx *Tx) UpdateJob(j *api.Job, event string) {
	j.ModifyIndex = new(tx.Index)
	tx.setJob(j)
	tx.jobTouched(*j.Namespace, *j.ID)
	if event != "" {
		tx.event("Job", event, *j.ID, *j.Namespace, nil, "Job", j)
	}
}

// PurgeJob removes a job with its sources and history; versions that allocations refer to stay until those go.
func (tx *Tx) PurgeJob(j *api.Job) {
	key := jobKey(j)
	set(tx, tx.changes.jobs, func(s *Store) *table[api.Job] { return s.jobs }, key, nil, true)
	tx.touch("jobs", key)
	for id := range tx.Reader.s.submissions.index["job"][key] {
		set(tx, tx.changes.submissions, func(s *Store) *table[Submission] { return s.submissions }, id, nil, true)
	}
	for id := range tx.Reader.s.scales.index["job"][key] {
		set(tx, tx.changes.scales, func(s *Store) *table[ScaleEvent] { return s.scales }, id, nil, true)
	}
	tx.event("Job", "JobDeregistered", *j.ID, *j.Namespace, nil, "Job", j)
	tx.change.Freed = true
}

// DropVersion forgets one version of a job.
func (tx *Tx) DropVersion(j *api.Job) {
	key := versionKey(*j.Namespace, *j.ID, *j.JobModifyIndex)
	set(tx, tx.changes.versions, func(s *Store) *table[api.Job] { return s.versions }, key, nil, true)
}

// PutSubmission keeps the source of one version.
func (tx *Tx) PutSubmission(x *Submission) {
	key := versionKey(x.Namespace, x.JobID, x.Version)
	set(tx, tx.changes.submissions, func(s *Store) *table[Submission] { return s.submissions }, key, x, true)
}

// PutScaleEvent adds to the scaling history of a group.
func (tx *Tx) PutScaleEvent(x *ScaleEvent) {
	x.Event.CreateIndex = tx.Index
	key := versionKey(x.Namespace, x.JobID, tx.Index) + "\x00" + x.Group
	set(tx, tx.changes.scales, func(s *Store) *table[ScaleEvent] { return s.scales }, key, x, true)
}

// PutEval puts an evaluation.
func (tx *Tx) PutEval(e *api.Evaluation) {
	if e.CreateIndex == 0 {
		e.CreateIndex = tx.Index
	}
	e.ModifyIndex = tx.Index
	set(tx, tx.changes.evals, func(s *Store) *table[api.Evaluation] { return s.evals }, e.ID, e, true)
	tx.touch("evals", e.ID, JobKey(e.Namespace, e.JobID))
	tx.jobTouched(e.Namespace, e.JobID)
	tx.change.Evals = append(tx.change.Evals, e)
	tx.event("Evaluation", "EvaluationUpdated", e.ID, e.Namespace, []string{e.JobID, e.DeploymentID}, "Evaluation", e)
}

// Kinds of allocation events.
const (
	PlanResult        = "PlanResult"
	ClientUpdate      = "AllocationUpdated"
	DesiredTransition = "AllocationUpdateDesiredStatus"
)

// PutAlloc puts an allocation; event says who changed it. A change by the scheduler reaches the node.
func (tx *Tx) PutAlloc(a *api.Allocation, event string) {
	if a.CreateIndex == 0 {
		a.CreateIndex = tx.Index
	}
	a.ModifyIndex = tx.Index
	if event != ClientUpdate {
		a.AllocModifyIndex = tx.Index
	}
	tx.change.Nodes = append(tx.change.Nodes, a.NodeID)
	tx.change.Freed = tx.change.Freed || Ended(a)
	tx.change.Deploy = tx.change.Deploy || a.DeploymentID != ""
	tx.setAlloc(a)
	stub := *a
	stub.Job = nil
	tx.event("Allocation", event, a.ID, a.Namespace, []string{a.JobID, a.DeploymentID}, "Allocation", &stub)
}

func (tx *Tx) setAlloc(a *api.Allocation) {
	// Every allocation of a version shares the row of that version, not that of the job, which changes with its status.
	if v := tx.changes.versions.get(tx.Reader.s.versions, versionKey(a.Namespace, a.JobID, *a.Job.JobModifyIndex)); v != nil {
		a.Job = v
	}
	set(tx, tx.changes.allocs, func(s *Store) *table[api.Allocation] { return s.allocs }, a.ID, a, true)
	tx.touch("allocs", a.ID, JobKey(a.Namespace, a.JobID), a.NodeID, a.EvalID, a.DeploymentID)
	tx.jobTouched(a.Namespace, a.JobID)
}

// PutNode puts a node.
func (tx *Tx) PutNode(n *api.Node, event string) {
	if n.CreateIndex == 0 {
		n.CreateIndex = tx.Index
	}
	n.ModifyIndex = tx.Index
	set(tx, tx.changes.nodes, func(s *Store) *table[api.Node] { return s.nodes }, n.ID, n, !Volatile(n))
	tx.touch("nodes", n.ID)
	tx.change.Freed = true
	tx.event("Node", event, n.ID, "", nil, "Node", n)
}

// PutDeployment puts a deployment.
func (tx *Tx) PutDeployment(d *api.Deployment) {
	if d.CreateIndex == 0 {
		d.CreateIndex = tx.Index
	}
	d.ModifyIndex = tx.Index
	set(tx, tx.changes.deployments, func(s *Store) *table[api.Deployment] { return s.deployments }, d.ID, d, true)
	tx.touch("deployments", d.ID, JobKey(d.Namespace, d.JobID))
	tx.change.Deploy = true
	tx.event("Deployment", "DeploymentStatusUpdate", d.ID, d.Namespace, []string{d.JobID}, "Deployment", d)
}

// PutService puts a registration.
func (tx *Tx) PutService(r *api.ServiceRegistration) {
	if r.CreateIndex == 0 {
		r.CreateIndex = tx.Index
	}
	r.ModifyIndex = tx.Index
	set(tx, tx.changes.services, func(s *Store) *table[api.ServiceRegistration] { return s.services }, r.ID, r, true)
	tx.touch("services", JobKey(r.Namespace, r.ServiceName))
	tx.event("Service", "ServiceRegistration", r.ID, r.Namespace, []string{r.ServiceName, r.JobID}, "Service", r)
}

// DeleteService removes a registration.
func (tx *Tx) DeleteService(r *api.ServiceRegistration) {
	set(tx, tx.changes.services, func(s *Store) *table[api.ServiceRegistration] { return s.services }, r.ID, nil, true)
	tx.touch("services", JobKey(r.Namespace, r.ServiceName))
	tx.event("Service", "ServiceDeregistration", r.ID, r.Namespace, []string{r.ServiceName, r.JobID}, "Service", r)
}

// DeleteEval forgets an evaluation.
func (tx *Tx) DeleteEval(id string) {
	tx.forget = append(tx.forget, "evals:"+id, "allocs:"+id)
	set(tx, tx.changes.evals, func(s *Store) *table[api.Evaluation] { return s.evals }, id, nil, true)
}

// DeleteAlloc forgets an allocation; its node is told.
func (tx *Tx) DeleteAlloc(a *api.Allocation) {
	set(tx, tx.changes.allocs, func(s *Store) *table[api.Allocation] { return s.allocs }, a.ID, nil, true)
	tx.touch("allocs", JobKey(a.Namespace, a.JobID), a.NodeID)
	tx.forget = append(tx.forget, "allocs:"+a.ID)
	tx.change.Nodes = append(tx.change.Nodes, a.NodeID)
}

// DeleteDeployment forgets a deployment.
func (tx *Tx) DeleteDeployment(id string) {
	tx.forget = append(tx.forget, "deployments:"+id, "allocs:"+id)
	set(tx, tx.changes.deployments, func(s *Store) *table[api.Deployment] { return s.deployments }, id, nil, true)
}

func (tx *Tx) event(topic, kind, key, namespace string, filter []string, name string, payload any) {
	filter = slices.DeleteFunc(filter, func(k string) bool { return k == "" })
	tx.events = append(tx.events, Event{
		Topic: topic, Type: kind, Key: key, Namespace: namespace, FilterKeys: filter, Index: tx.Index,
		Payload: map[string]any{name: payload},
	})
}

// PutVersion puts a kept version of a job anew: its stability changed.
func (tx *Tx) PutVersion(j *api.Job) {
	key := versionKey(*j.Namespace, *j.ID, *j.JobModifyIndex)
	set(tx, tx.changes.versions, func(s *Store) *table[api.Job] { return s.versions }, key, j, true)
}

// StopJob puts a stopped job: a version of its own, as the mark is part of what a user states.
func (tx *Tx) StopJob(j *api.Job) {
	j.ModifyIndex, j.JobModifyIndex = new(tx.Index), new(tx.Index)
	tx.setJob(j)
	key := versionKey(*j.Namespace, *j.ID, tx.Index)
	set(tx, tx.changes.versions, func(s *Store) *table[api.Job] { return s.versions }, key, j, true)
	tx.jobTouched(*j.Namespace, *j.ID)
	tx.change.Freed = true
	tx.event("Job", "JobDeregistered", *j.ID, *j.Namespace, nil, "Job", j)
}
