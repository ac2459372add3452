package client

import (
	"context"
	"sync"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
)

// allocRunner runs the tasks of one allocation in their order and tells the server what became of them.
type allocRunner struct {
	client *Client
	id     string
	dir    allocDir
	log    hclog.Logger
	tasks  []*taskRunner
	done   *latch // every task is dead, or the engine went away
	gone   *latch // the allocation is to be removed from the node
	health *healthTracker

	mu       sync.Mutex
	alloc    *api.Allocation
	tg       *api.TaskGroup
	notify   chan struct{} // closed and replaced at every change
	stopped  bool
	services map[string]*serviceSet // by task name, "" for the group
	checks   sync.WaitGroup         // of the services in the engine's own registry
	ended    bool                   // no check begins any more
}

// newAllocRunner prepares an allocation, from scratch or from what an earlier engine left.
func newAllocRunner(c *Client, alloc *api.Allocation, st *allocState) (*allocRunner, error) {
	tg := alloc.GetTaskGroup()
	ar := &allocRunner{
		client: c, id: alloc.ID, dir: allocDir{c.allocRoot(alloc.ID)}, log: c.log.Named("alloc").With("alloc_id", alloc.ID),
		done: newLatch(), gone: newLatch(), alloc: alloc, tg: tg, notify: make(chan struct{}), services: map[string]*serviceSet{},
	}
	ar.health = newHealthTracker(ar)
	if st != nil {
		ar.health.restore(st.Healthy, st.HealthOf)
	}
	for _, task := range tg.Tasks {
		driver := c.drivers[task.Driver]
		if driver == nil {
			return nil, &missingDriverError{task: task.Name, driver: task.Driver}
		}
		role := roleOf(task)
		service := deref(alloc.Job.Type, api.JobTypeService) != api.JobTypeBatch && deref(alloc.Job.Type, "") != api.JobTypeSysbatch
		policy := task.RestartPolicy
		if policy == nil {
			policy = tg.RestartPolicy
		}
		tr := &taskRunner{
			alloc: ar, task: task, driver: driver, log: ar.log.With("task", task.Name),
			policy: newRestartPolicy(policy, (role == roleMain && service) || role == rolePrestartSidecar || role == rolePoststartSidecar),
			killed: newLatch(), restarts: make(chan restartAsk, 1), done: newLatch(),
			st: &taskState{State: &api.TaskState{State: taskPending}},
		}
		if st != nil && st.Tasks[task.Name] != nil && st.Tasks[task.Name].State != nil {
			tr.st = st.Tasks[task.Name]
		}
		if logs := task.LogConfig; logs == nil || !deref(logs.Disabled, false) {
			tr.logs = &collector{log: tr.log, spec: collectorSpec{Dir: ar.dir.logs(), Task: task.Name, MaxFiles: 10, MaxBytes: 10 << 20}}
			if logs != nil {
				tr.logs.spec.MaxFiles = deref(logs.MaxFiles, 10)
				tr.logs.spec.MaxBytes = int64(deref(logs.MaxFileSizeMB, 10)) << 20
			}
		}
		ar.tasks = append(ar.tasks, tr)
	}
	return ar, nil
}

// run takes the allocation through its life.
func (ar *allocRunner) run(ctx context.Context) {
	defer ar.done.open()
	if err := ar.dir.build(); err != nil {
		ar.log.Error("allocation folder not made", "error", err)
		for _, t := range ar.tasks {
			t.update(func(s *taskState) { s.State.State, s.State.Failed = taskDead, true }, eventSetupFailure(err))
		}
		return
	}
	ar.changed()
	defer ar.endChecks()
	health, stopHealth := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer stopHealth()
	watching.Go(func() { ar.health.run(health) })
	var wg sync.WaitGroup
	for _, t := range ar.tasks {
		wg.Go(func() { t.run(ctx) })
	}
	wg.Wait()
	if ctx.Err() == nil {
		ar.dropServices(ctx, "")
	}
}

// desired is the allocation as the server wants it.
func (ar *allocRunner) desired() (*api.Allocation, *api.TaskGroup) {
	ar.mu.Lock()
	defer ar.mu.Unlock()
	return ar.alloc, ar.tg
}

// update takes a newer version of the allocation: a stop, or a change that is made in place.
func (ar *allocRunner) update(alloc *api.Allocation) {
	ar.mu.Lock()
	sameJob := alloc.Job == nil || (ar.alloc.Job != nil && deref(alloc.Job.Version, 0) == deref(ar.alloc.Job.Version, 0))
	if alloc.Job == nil {
		copied := *alloc
		copied.Job = ar.alloc.Job
		alloc = &copied
	}
	moved := alloc.DeploymentID != ar.alloc.DeploymentID
	ar.alloc = alloc
	if tg := alloc.GetTaskGroup(); tg != nil {
		ar.tg = tg
	}
	ar.mu.Unlock()
	if alloc.DesiredStatus != api.AllocDesiredStatusRun {
		ar.stop()
		return
	}
	if !sameJob {
		ar.refreshServices()
	}
	if moved || !sameJob {
		ar.changed()
	}
}

// stop ends every task but those that run after the others.
func (ar *allocRunner) stop() {
	ar.mu.Lock()
	ar.stopped = true
	ar.mu.Unlock()
	for _, t := range ar.tasks {
		if roleOf(t.task) != rolePoststop {
			t.kill(nil)
		}
	}
	ar.wake()
}

// wake lets everyone who waits for a change look again.
func (ar *allocRunner) wake() {
	ar.mu.Lock()
	close(ar.notify)
	ar.notify = make(chan struct{})
	ar.mu.Unlock()
}

func (ar *allocRunner) changes() <-chan struct{} {
	ar.mu.Lock()
	defer ar.mu.Unlock()
	return ar.notify
}

// changed keeps the state, tells the server and wakes those who wait.
func (ar *allocRunner) changed() {
	ar.client.saveAndTell(ar)
	ar.wake()
}

// persisted is the state to keep.
func (ar *allocRunner) persisted() *allocState {
	alloc, _ := ar.desired()
	st := &allocState{Alloc: alloc, Tasks: map[string]*taskState{}}
	for _, t := range ar.tasks {
		st.Tasks[t.task.Name] = t.snapshot()
	}
	st.Healthy, st.HealthOf = ar.health.verdict()
	return st
}

// summary is what the server is told.
func (ar *allocRunner) summary() AllocUpdate {
	u := AllocUpdate{ID: ar.id, TaskStates: map[string]*api.TaskState{}}
	for _, t := range ar.tasks {
		u.TaskStates[t.task.Name] = t.snapshot().State
	}
	u.ClientStatus, u.ClientDescription = ar.status(u.TaskStates)
	alloc, _ := ar.desired()
	if healthy, of := ar.health.verdict(); of == alloc.DeploymentID {
		u.Healthy = healthy
	}
	return u
}

// status sums the tasks up. An allocation counts as failed only once none of its tasks runs any more, because its
// devices are free for others from then on.
func (ar *allocRunner) status(states map[string]*api.TaskState) (status, description string) {
	var running, pending, failed, dead bool
	for _, t := range ar.tasks {
		s := states[t.task.Name]
		waiting := s.State == taskPending
		switch {
		case s.State == taskDead:
			dead, failed = true, failed || s.Failed
		case waiting && roleOf(t.task) == rolePoststop:
			// It waits for the others and starts when they are dead.
			running = running || ar.othersDead(states)
		case waiting:
			pending = true
		default:
			running = true
		}
	}
	switch {
	case running || (pending && dead && !failed):
		return api.AllocClientStatusRunning, "Tasks are running"
	case failed && !pending:
		return api.AllocClientStatusFailed, "Failed tasks"
	case pending:
		return api.AllocClientStatusPending, "No tasks have started"
	default:
		return api.AllocClientStatusComplete, "All tasks have completed"
	}
}

func (ar *allocRunner) othersDead(states map[string]*api.TaskState) bool {
	for _, t := range ar.tasks {
		if roleOf(t.task) != rolePoststop && states[t.task.Name].State != taskDead {
			return false
		}
	}
	return true
}

func (ar *allocRunner) task(name string) *taskRunner {
	for _, t := range ar.tasks {
		if t.task.Name == name {
			return t
		}
	}
	return nil
}

// selected is the named task, or all of them when name is empty.
func (ar *allocRunner) selected(name string) ([]*taskRunner, error) {
	if name == "" {
		return ar.tasks, nil
	}
	if t := ar.task(name); t != nil {
		return []*taskRunner{t}, nil
	}
	return nil, &unknownTaskError{task: name, alloc: ar.id}
}
