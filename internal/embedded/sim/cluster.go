package sim

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/embedded/client"
)

// Fault is what goes wrong on a node for as long as it is set.
type Fault struct {
	StartDelay time.Duration // before a task counts as started
	StopDelay  time.Duration // before a stopped task has ended
	StartError string        // every new task fails with it
	Silent     bool          // the node tells nothing any more
}

// Cluster pretends to run the tasks of every simulated node.
type Cluster struct {
	up    client.Uplink
	clock clock.Clock
	log   hclog.Logger
	wake  chan struct{}

	mu     sync.Mutex
	faults map[string]Fault
	stats  map[string]*api.HostStats // of nodes of which they were set
	allocs map[string]*alloc
	due    queue
	order  int
}

// alloc is one allocation that a node pretends to run.
type alloc struct {
	spec    *api.Allocation
	status  string
	states  map[string]*api.TaskState
	stop    bool
	waiting []*alloc // start once this one ended
}

// event is one thing that is to happen.
type event struct {
	at    time.Time
	order int
	do    func()
}

type queue []event

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return q[i].at.Before(q[j].at) || q[i].at.Equal(q[j].at) && q[i].order < q[j].order
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(event)) }
func (q *queue) Pop() any {
	old := *q
	last := old[len(old)-1]
	*q = old[:len(old)-1]
	return last
}

// NewCluster makes a cluster that tells up what happens.
func NewCluster(up client.Uplink, c clock.Clock, log hclog.Logger) *Cluster {
	return &Cluster{up: up, clock: c, log: log, wake: make(chan struct{}, 1), faults: map[string]Fault{}, stats: map[string]*api.HostStats{}, allocs: map[string]*alloc{}}
}

// SetFault sets what goes wrong on a node; the zero Fault is a node that works.
func (c *Cluster) SetFault(nodeID string, f Fault) {
	c.mu.Lock()
	was := c.faults[nodeID]
	c.faults[nodeID] = f
	c.mu.Unlock()
	if was.Silent && !f.Silent {
		c.retell(nodeID)
	}
}

// SetStats sets what a node measures of itself; it must not be changed afterwards.
func (c *Cluster) SetStats(nodeID string, s *api.HostStats) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats[nodeID] = s
}

// retell says again what a silent node did not tell.
func (c *Cluster) retell(nodeID string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.allocs {
		if a.spec.NodeID == nodeID {
			c.tell(a)
		}
	}
}

// Run lets time pass until ctx ends.
func (c *Cluster) Run(ctx context.Context) error {
	for {
		c.mu.Lock()
		now := c.clock.Now()
		for len(c.due) > 0 && !c.due[0].at.After(now) {
			heap.Pop(&c.due).(event).do()
		}
		var timer <-chan time.Time
		if len(c.due) > 0 {
			timer = c.clock.After(c.due[0].at.Sub(now))
		}
		c.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil
		case <-timer:
		case <-c.wake:
		}
	}
}

// later has something happen with the lock held.
func (c *Cluster) later(d time.Duration, do func()) {
	c.order++
	heap.Push(&c.due, event{at: c.clock.Now().Add(d), order: c.order, do: do})
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// setAllocs takes the allocations of one node.
func (c *Cluster) setAllocs(allocs []*api.Allocation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, spec := range allocs {
		a := c.allocs[spec.ID]
		if a == nil {
			if ended(spec.ClientStatus) {
				continue
			}
			a = &alloc{spec: spec, status: spec.ClientStatus, states: spec.TaskStates}
			c.allocs[spec.ID] = a
			c.begin(a)
			continue
		}
		newDeployment := spec.DeploymentID != a.spec.DeploymentID
		a.spec = spec
		if newDeployment && a.status == api.AllocClientStatusRunning {
			c.tell(a)
		}
		c.end(a)
	}
}

func ended(status string) bool {
	switch status {
	case api.AllocClientStatusComplete, api.AllocClientStatusFailed, api.AllocClientStatusLost:
		return true
	}
	return false
}

// begin starts an allocation, after the one that it replaces has ended.
func (c *Cluster) begin(a *alloc) {
	if a.status == api.AllocClientStatusRunning {
		c.running(a) // it ran before a restart of the engine
		c.end(a)
		return
	}
	if previous := c.allocs[a.spec.PreviousAllocation]; previous != nil && !ended(previous.status) {
		previous.waiting = append(previous.waiting, a)
		return
	}
	c.later(c.faults[a.spec.NodeID].StartDelay, func() { c.start(a) })
}

func (c *Cluster) start(a *alloc) {
	if a.status != api.AllocClientStatusPending {
		return
	}
	if a.spec.DesiredStatus != api.AllocDesiredStatusRun {
		c.finish(a, 0, "", false)
		return
	}
	p := program(a.spec)
	if f := c.faults[a.spec.NodeID]; f.StartError != "" {
		p.startError = f.StartError
	}
	if p.startError != "" {
		c.finish(a, 1, p.startError, true)
		return
	}
	now := c.clock.Now()
	a.status, a.states = api.AllocClientStatusRunning, map[string]*api.TaskState{}
	for _, t := range tasks(a.spec) {
		a.states[t.Name] = &api.TaskState{State: "running", StartedAt: now, Events: []*api.TaskEvent{
			taskEvent(api.TaskReceived, "Task received by client", now), taskEvent(api.TaskStarted, "Task started by client", now),
		}}
	}
	c.tell(a)
	c.up.UpdateServices(a.spec.ID, services(a.spec))
	c.running(a)
	c.end(a)
}

// running sets the end of a program that has one.
func (c *Cluster) running(a *alloc) {
	p := program(a.spec)
	if p.runFor <= 0 {
		return
	}
	left := p.runFor
	for _, s := range a.states {
		left = max(0, s.StartedAt.Add(p.runFor).Sub(c.clock.Now()))
	}
	c.later(left, func() { c.finish(a, p.exitCode, "", p.exitCode != 0) })
}

// end stops an allocation that is no longer wanted.
func (c *Cluster) end(a *alloc) {
	if a.spec.DesiredStatus == api.AllocDesiredStatusRun || a.stop || ended(a.status) {
		return
	}
	a.stop = true
	c.later(c.faults[a.spec.NodeID].StopDelay, func() { c.finish(a, 0, "", false) })
}

func (c *Cluster) finish(a *alloc, exitCode int, why string, failed bool) {
	if ended(a.status) {
		return
	}
	now := c.clock.Now()
	a.status = api.AllocClientStatusComplete
	if failed {
		a.status = api.AllocClientStatusFailed
	}
	states := map[string]*api.TaskState{}
	for _, t := range tasks(a.spec) {
		s := &api.TaskState{State: "dead", Failed: failed, FinishedAt: now}
		if old := a.states[t.Name]; old != nil {
			s.StartedAt, s.Events = old.StartedAt, append(s.Events, old.Events...)
		}
		switch {
		case why != "":
			s.Events = append(s.Events, taskEvent(api.TaskDriverFailure, why, now))
		case a.stop:
			s.Events = append(s.Events, taskEvent(api.TaskKilled, "Task successfully killed", now))
		default:
			e := taskEvent(api.TaskTerminated, "Exit Code: "+itoa(exitCode), now)
			e.Details, e.ExitCode = map[string]string{"exit_code": itoa(exitCode)}, exitCode
			s.Events = append(s.Events, e)
		}
		states[t.Name] = s
	}
	a.states = states
	c.tell(a)
	c.up.UpdateServices(a.spec.ID, nil)
	for _, next := range a.waiting {
		c.begin(next)
	}
	a.waiting = nil
	delete(c.allocs, a.spec.ID)
}

// tell says how an allocation is.
func (c *Cluster) tell(a *alloc) {
	if c.faults[a.spec.NodeID].Silent {
		return
	}
	u := client.AllocUpdate{ID: a.spec.ID, ClientStatus: a.status, TaskStates: a.states}
	if a.spec.DeploymentID != "" {
		switch {
		case a.status == api.AllocClientStatusRunning:
			u.Healthy = new(true)
		case a.status == api.AllocClientStatusFailed:
			u.Healthy = new(false)
		}
	}
	switch a.status {
	case api.AllocClientStatusRunning:
		u.ClientDescription = "Tasks are running"
	case api.AllocClientStatusComplete:
		u.ClientDescription = "All tasks have completed"
	case api.AllocClientStatusFailed:
		u.ClientDescription = "Failed tasks"
	}
	c.up.UpdateAlloc(u)
}

func taskEvent(kind, message string, at time.Time) *api.TaskEvent {
	return &api.TaskEvent{Type: kind, Time: at.UnixNano(), DisplayMessage: message, Message: message, Details: map[string]string{}}
}
