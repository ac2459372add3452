// Package state is what the embedded engine knows: jobs and their versions, evaluations, allocations, nodes,
// deployments and services, each with the index of its last change, kept on disk so that a killed process goes on
// where it was. It also keeps the events of the last changes. Why a change is made is decided elsewhere: nothing is
// scheduled, validated or served here.
package state

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
)

// Submission is a job's source as its user sent it, kept for one version.
type Submission struct {
	Namespace, JobID string
	Version          uint64
	Submission       *api.JobSubmission
}

// ScaleEvent is one line of a group's scaling history.
type ScaleEvent struct {
	Namespace, JobID, Group string
	Event                   api.ScalingEvent
}

// Store holds the state. All methods are safe for concurrent use; rows that are returned must not be changed.
type Store struct {
	write sync.Mutex   // one transaction at a time, held while it decides and while it is made durable
	mu    sync.RWMutex // guards everything below; held only while reading or swapping rows

	index       uint64
	jobs        *table[api.Job]
	versions    *table[api.Job]
	submissions *table[Submission]
	scales      *table[ScaleEvent]
	evals       *table[api.Evaluation]
	allocs      *table[api.Allocation]
	nodes       *table[api.Node]
	deployments *table[api.Deployment]
	services    *table[api.ServiceRegistration]
	touched     map[string]uint64           // table, or table:key → index of the last change
	changed     chan struct{}               // closed at the next change
	nodeList    atomic.Pointer[[]*api.Node] // every node by id, nil when it has to be made anew

	journal  *journal
	events   *Buffer
	log      hclog.Logger
	onCommit []func(Change)
}

// Change tells what a transaction has changed, for those who act on it.
type Change struct {
	Index  uint64
	Evals  []*api.Evaluation // new or changed
	Nodes  []string          // nodes whose desired allocations changed
	Freed  bool              // room may have become free: an allocation ended, a node changed, a job went
	Deploy bool              // an allocation's health or a deployment changed
}

// JobKey is the primary key of a job.
func JobKey(namespace, id string) string { return namespace + "\x00" + id }

func jobKey(j *api.Job) string { return JobKey(*j.Namespace, *j.ID) }

// versionKey names one registration of a job for good: purging starts the versions of a job anew, the index of its
// registration never comes again.
func versionKey(namespace, id string, jobModifyIndex uint64) string {
	return fmt.Sprintf("%s\x00%d", JobKey(namespace, id), jobModifyIndex)
}

// Open reads the state below dir, or starts a new one. An empty dir keeps everything in memory.
func Open(dir string, log hclog.Logger) (*Store, error) {
	if log == nil {
		log = hclog.NewNullLogger()
	}
	s := &Store{
		jobs: newTable("jobs", map[string]func(*api.Job) string{
			"parent": func(j *api.Job) string {
				if j.ParentID == nil || *j.ParentID == "" {
					return ""
				}
				return JobKey(*j.Namespace, *j.ParentID)
			},
		}),
		versions:    newTable("versions", map[string]func(*api.Job) string{"job": jobKey}),
		submissions: newTable("submissions", map[string]func(*Submission) string{"job": func(x *Submission) string { return JobKey(x.Namespace, x.JobID) }}),
		scales:      newTable("scales", map[string]func(*ScaleEvent) string{"job": func(x *ScaleEvent) string { return JobKey(x.Namespace, x.JobID) }}),
		evals: newTable("evals", map[string]func(*api.Evaluation) string{
			"job":    func(x *api.Evaluation) string { return JobKey(x.Namespace, x.JobID) },
			"status": func(x *api.Evaluation) string { return x.Status },
		}),
		allocs: newTable("allocs", map[string]func(*api.Allocation) string{
			"job":        func(x *api.Allocation) string { return JobKey(x.Namespace, x.JobID) },
			"node":       func(x *api.Allocation) string { return x.NodeID },
			"eval":       func(x *api.Allocation) string { return x.EvalID },
			"deployment": func(x *api.Allocation) string { return x.DeploymentID },
		}),
		nodes: newTable[api.Node]("nodes", nil),
		deployments: newTable("deployments", map[string]func(*api.Deployment) string{
			"job":    func(x *api.Deployment) string { return JobKey(x.Namespace, x.JobID) },
			"status": func(x *api.Deployment) string { return x.Status },
		}),
		services: newTable("services", map[string]func(*api.ServiceRegistration) string{
			"name":  func(x *api.ServiceRegistration) string { return JobKey(x.Namespace, x.ServiceName) },
			"alloc": func(x *api.ServiceRegistration) string { return x.AllocID },
		}),
		index:   1,
		touched: map[string]uint64{},
		changed: make(chan struct{}),
		events:  NewBuffer(1024),
		log:     log,
	}
	if dir == "" {
		return s, nil
	}
	j, err := openJournal(dir, s.replay)
	if err != nil {
		return nil, err
	}
	s.journal = j
	s.link()
	return s, nil
}

// Close ends the journal. Nothing may be written afterwards.
func (s *Store) Close() error {
	s.write.Lock()
	defer s.write.Unlock()
	if s.journal == nil {
		return nil
	}
	return s.journal.close()
}

// OnCommit has f called after every change, in order, from the writer's goroutine. Call it before the first change.
func (s *Store) OnCommit(f func(Change)) { s.onCommit = append(s.onCommit, f) }

// Events is the buffer of the last events.
func (s *Store) Events() *Buffer { return s.events }

// View reads under one lock, so that everything f reads belongs together. f must not call Update.
func (s *Store) View(f func(Reader)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	f(Reader{s: s})
}

// Changed is closed at the next change after the call.
func (s *Store) Changed() <-chan struct{} {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.changed
}

// Index is the index of the last change.
func (s *Store) Index() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.index
}
