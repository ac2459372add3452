package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/task-driver/docker"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/supervisor"
)

// newManager makes the manager of shares of a checked config.
func (d *Driver) newManager(s settings) (*share.Manager, error) {
	h := share.Host{Tool: d.tool, Root: hostRoot, Dir: s.sharesDir(), Log: d.log.Named("share")}
	backends := newBackends(h, s)
	if d.backends != nil {
		backends = d.backends(h)
	}
	registry := share.NewRegistry(backends...)
	if err := s.order.Check(registry); err != nil {
		return nil, err
	}
	return share.NewManager(share.Options{
		Registry: registry, Order: s.order, Dir: s.sharesDir(), Log: h.Log,
		Alive: d.runs, Maker: d.maker, MakerRuns: makerRuns,
	}), nil
}

// makerOf names a process of the driver; it tells the process from a later one with its pid.
func makerOf(p supervisor.Proc) string { return fmt.Sprintf("%d %d %s", p.PID, p.Start, p.Boot) }

// makerRuns reports whether another process of the driver runs still.
func makerRuns(maker string) bool {
	var p supervisor.Proc
	if _, err := fmt.Sscanf(maker, "%d %d %s", &p.PID, &p.Start, &p.Boot); err != nil {
		return false
	}
	return p.Alive()
}

// self is this process; the zero value where that cannot be told.
func self() supervisor.Proc {
	p, err := supervisor.ProcOf(os.Getpid())
	if err != nil {
		return supervisor.Proc{}
	}
	return p
}

// shares is the manager at this moment.
func (d *Driver) shares() *share.Manager {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.manager
}

// runs reports whether a task runs or is being started, by all that this process and the state folder know.
func (d *Driver) runs(id string) bool {
	d.mu.Lock()
	t, starting := d.tasks[id], d.starting[id] != nil
	s := d.settings
	d.mu.Unlock()
	if starting || t != nil {
		return starting || !t.hasEnded()
	}
	return leftRunning(s, id)
}

// leftRunning reports whether a task that this process does not know may run, by its state folder. One whose state cannot be
// read may.
func leftRunning(s settings, id string) bool {
	status, err := supervisor.ReadStatus(supervisor.Dir(s.tasksDir(), id))
	if err != nil {
		return !errors.Is(err, supervisor.ErrNoState)
	}
	return mayRun(status)
}

// mayRun reports whether a task that nobody has brought back may run: its supervisor does, or its workload, or it is a
// container, which does not depend on either.
func mayRun(s supervisor.Status) bool {
	if s.Phase == supervisor.Exited {
		return false
	}
	return s.Supervisor.Alive() || s.Task.Alive() || s.Ref != "" && s.Supervisor.ThisBoot()
}

// liveShares is what the driver knows of tasks, for the reconciler.
func (d *Driver) liveShares(ctx context.Context) (share.Live, error) {
	live, _, err := d.liveTasks(ctx)
	return live, err
}

// liveTasks is liveShares. seen is false when there may be containers that it does not know of.
func (d *Driver) liveTasks(ctx context.Context) (live share.Live, seen bool, err error) {
	s, runtimes := d.current()
	states, err := supervisor.List(s.tasksDir())
	if err != nil {
		return share.Live{}, false, err
	}
	leases, leaseErr := grant.Leases(s.leasesDir()) // they name the tasks whose states cannot be read, which are not listed
	live, seen = share.Live{Tasks: map[string]bool{}, Complete: leaseErr == nil}, true
	found := func(id string, running bool) {
		if running && !d.known(id) {
			live.Tasks[id], live.Complete = true, false
		}
	}
	if r, ok := runtimes[runtimeDocker].(*dockerRuntime); ok {
		ctx, cancel := context.WithTimeout(ctx, lookTimeout)
		containers, err := r.engine.List(ctx, docker.LabelState, r.stateDir)
		cancel()
		seen = err == nil
		if err == nil {
			d.dockerSeen.Store(true)
		} else if d.dockerSeen.Load() || time.Since(d.began) < max(s.orphanAfter, share.ReconcileEvery) {
			live.Complete = false // what runs has its supervisor's state; what has lost that may run as well
		}
		for _, c := range containers {
			found(c.TaskID, c.Running)
		}
	}
	for _, st := range states {
		found(st.TaskID, mayRun(st))
	}
	for _, l := range leases {
		found(l.TaskID, leftRunning(s, l.TaskID))
	}
	// Tasks of this process last: one that was being brought back meanwhile is in one of the two.
	d.mu.Lock()
	defer d.mu.Unlock()
	for id := range d.starting {
		live.Tasks[id] = true
	}
	for id, t := range d.tasks {
		if !t.hasEnded() {
			live.Tasks[id] = true
			live.Held = append(live.Held, t.record.Shares...)
		}
	}
	return live, seen, nil
}

// reconcileShares removes leftovers of shares, and then leases that nobody has, at once and then time and again, until ctx ends.
func (d *Driver) reconcileShares(ctx context.Context) {
	s, _ := d.current()
	ticker := time.NewTicker(s.reconcileEvery)
	defer ticker.Stop()
	for {
		if err := d.shares().Reconcile(ctx, d.liveShares); err != nil && ctx.Err() == nil {
			d.log.Warn("shares not all reconciled, it is tried again", "error", err)
		}
		if err := d.dropDeadLeases(ctx); err != nil && ctx.Err() == nil {
			d.log.Warn("leases of tasks that do not run are not all removed, it is tried again", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// keepShares runs what goes on while shares are held, until ctx ends.
func (d *Driver) keepShares(ctx context.Context) {
	if err := d.shares().Keep(ctx, shareTasks{d}); err != nil {
		d.log.Error("shares are not looked after", "error", err)
	}
}

// shareTasks lets backends speak to and about tasks.
type shareTasks struct{ d *Driver }

var _ share.Tasks = shareTasks{}

// Tell shows a text to the job's owner.
func (s shareTasks) Tell(id, text string) {
	if t, err := s.d.get(id); err == nil {
		s.d.events.emit(t.cfg, text, nil)
	}
}

// overuseTimeout is how long a task that is stopped for what it took may take to end.
const overuseTimeout = 5 * time.Second

// Stop ends the task; what it exits with is its restart policy's.
func (s shareTasks) Stop(id, text string) {
	s.Tell(id, text)
	s.d.log.Warn("task is stopped", "task_id", id, "reason", text)
	go func() {
		if err := s.d.Stop(s.d.done, id, overuseTimeout, ""); err != nil && s.d.done.Err() == nil {
			s.d.log.Error("task not stopped", "task_id", id, "error", err)
		}
	}()
}

// PIDs are the processes of the task on the host.
func (s shareTasks) PIDs(ctx context.Context, id string) ([]int, error) {
	t, err := s.d.get(id)
	if err != nil {
		return nil, err
	}
	switch r := t.runtime.(type) {
	case *dockerRuntime:
		return r.engine.PIDs(ctx, t.record.Container)
	case *processRuntime:
		var pids []int
		for _, s := range r.sessions.Of(t.supervised().Task) {
			pids = append(pids, s.PID)
		}
		return pids, nil
	}
	return nil, fmt.Errorf("processes of runtime %q cannot be told", t.record.Runtime)
}

// shareLook is what the node tells of its backends: one for each that is usable, and for each brand the usable ones
// in the order in which they are tried. What is not usable is sent empty.
type shareLook struct {
	at      time.Time
	attrs   map[string]string
	reasons map[string]string // of those not usable, by attribute

	looking sync.Mutex // held during a look
	mu      sync.Mutex
	tested  map[string]string // results of self-tests by attribute; empty while one runs
}

// probeEvery is how often backends are asked whether they are usable, for the node's attributes.
const probeEvery = time.Minute

// lookAtShares asks the backends, at most once a minute.
func (d *Driver) lookAtShares(ctx context.Context) map[string]string {
	l := &d.shareLook
	l.looking.Lock()
	defer l.looking.Unlock()
	if time.Since(l.at) < probeEvery {
		return l.attrs
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	attrs, byBrand, reasons := map[string]string{"shares": "told"}, map[accel.Vendor][]string{}, map[string]string{}
	for _, u := range d.shares().Usable(ctx) {
		v := u.Backend.Vendor()
		if v == "" {
			continue // usable everywhere: it says nothing of the node
		}
		name := fmt.Sprintf("share.%s.%s", v, u.Backend.Name())
		for _, attr := range []string{name, name + ".isolation", name + ".test", "share." + string(v)} {
			attrs[attr] = ""
		}
		if u.Missing != nil {
			reasons[name] = u.Missing.Error()
			continue
		}
		attrs[name] = "1"
		i := u.Backend.Describe()
		attrs[name+".isolation"] = fmt.Sprintf("qos=%s,memory=%s,compute=%s,faults=%s,sight=%s", i.QoS, i.Memory, i.Compute, i.Faults, i.Sight)
		byBrand[v] = append(byBrand[v], u.Backend.Name())
		if result := d.selfTest(u.Backend, name); result != "" {
			attrs[name+".test"] = result
		}
	}
	for v, names := range byBrand {
		attrs["share."+string(v)] = strings.Join(d.inOrder(v, names), ",")
	}
	for name, reason := range reasons {
		if l.reasons[name] != reason {
			d.log.Info("no shares of this kind on the node", "kind", strings.TrimPrefix(name, "share."), "reason", reason)
		}
	}
	l.at, l.attrs, l.reasons = time.Now(), attrs, reasons
	return attrs
}

// selfTestTimeout bounds a self-test.
const selfTestTimeout = 2 * time.Minute

// selfTest starts a backend's self-test the first time, and tells its result once there is one: "passed", or why not.
func (d *Driver) selfTest(b share.Backend, name string) string {
	l := &d.shareLook
	l.mu.Lock()
	defer l.mu.Unlock()
	if result, begun := l.tested[name]; begun {
		return result
	}
	if _, ok := b.(share.SelfTester); !ok {
		return ""
	}
	if l.tested == nil {
		l.tested = map[string]string{}
	}
	l.tested[name] = ""
	go func() {
		ctx, cancel := context.WithTimeout(d.done, selfTestTimeout)
		defer cancel()
		result := "passed"
		if err := d.shares().SelfTest(ctx, b); err != nil {
			result = "failed: " + err.Error()
			d.log.Warn("a self-test of shares failed", "kind", strings.TrimPrefix(name, "share."), "error", err)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.tested[name] = result
	}()
	return ""
}

// inOrder puts backends of a brand into the order of the plugin's config; those that it leaves out come last.
func (d *Driver) inOrder(v accel.Vendor, names []string) []string {
	s, _ := d.current()
	order := s.order[v]
	at := func(name string) int {
		if i := slices.Index(order, name); i >= 0 {
			return i
		}
		return len(order)
	}
	slices.SortStableFunc(names, func(a, b string) int { return at(a) - at(b) })
	return names
}

// giveBack releases the shares of a task. It is repeated by whoever repeats the destroy.
func (d *Driver) giveBack(ctx context.Context, id string, held ...share.Held) error {
	if err := d.shares().Release(ctx, id, held...); err != nil {
		return errors.Join(errSharesStay, err)
	}
	return nil
}

var errSharesStay = errors.New("the task's shares are not all given back")
