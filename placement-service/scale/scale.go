package scale

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/nomadapi"
	"github.com/heteroflow/heteroflow/internal/store"
)

const (
	// Every is between two decisions.
	Every = 30 * time.Second
	// fresh is how long ago a gateway may have been heard of for what it told to be believed.
	fresh = 45 * time.Second
)

// Nomad has the jobs.
type Nomad interface {
	Jobs(ctx context.Context) ([]*api.JobListStub, error)
	Job(ctx context.Context, namespace, id string) (nomadapi.Tree, error)
}

// Store has what gateways tell and what is remembered of groups.
type Store interface {
	ListSignals(ctx context.Context, page store.Page) ([]store.Signal, string, error)
	Job(ctx context.Context, namespace, id string) (store.Job, error)
	ScaleState(ctx context.Context, namespace, jobID, group string) (store.ScaleState, error)
	PutScaleState(ctx context.Context, s store.ScaleState) (won bool, err error)
}

var _ Store = (*store.Store)(nil)

// Change is a count that a group is to have.
type Change struct {
	Job     store.Job // its row; without a version when the service has none
	Group   string
	Count   int
	Message string
	Index   uint64 // the job's JobModifyIndex that was decided on
}

// Apply sets a count, with admission like any other change. waits says that there is no room for it now.
type Apply func(ctx context.Context, c Change) (waits bool, err error)

// Status is what was last decided of one group.
type Status struct {
	Namespace, JobID, Group string
	Tenant                  string // empty when the service has no row of the job
	Services                []string
	Count                   int // that it had
	Decision
	DryRun  bool
	Known   bool   // somebody tells of its load
	Problem string // why it is not scaled, as a sentence; empty when it is
	At      time.Time
}

// Scaler decides, every 30 seconds. Several may run: each decision is made by one of them.
type Scaler struct {
	nomad Nomad
	store Store
	apply Apply
	clock clock.Clock
	log   hclog.Logger

	changes  *prometheus.CounterVec
	failures prometheus.Counter

	known map[jobKey]known      // of Once alone
	heard map[[2]string]hearing // by gateway and service, the same

	mu     sync.Mutex
	status []Status
}

type jobKey struct{ namespace, id string }

// known is what a version of a job says.
type known struct {
	index  uint64
	groups []group
}

type group struct {
	name     string
	count    int
	services []string
	policy   *Policy
	problem  string
}

// hearing is when a gateway told something new, by its clock and by ours.
type hearing struct{ told, at time.Time }

// New makes a scaler; Run has it work.
func New(n Nomad, s Store, apply Apply, c clock.Clock, log hclog.Logger) *Scaler {
	return &Scaler{
		nomad: n, store: s, apply: apply, clock: c, log: log.Named("scale"), known: map[jobKey]known{}, heard: map[[2]string]hearing{},
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "heteroflow_scaling_changes_total", Help: "Groups whose count was set by their load or by the hours, by direction.",
		}, []string{"direction"}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "heteroflow_scaling_failures_total", Help: "Decisions on the count of a group that could not be made or carried out."}),
	}
}

// Collectors are the scaler's metrics.
func (s *Scaler) Collectors() []prometheus.Collector {
	return []prometheus.Collector{s.changes, s.failures}
}

// Run decides until the context ends.
func (s *Scaler) Run(ctx context.Context) error {
	tick := s.clock.NewTicker(Every)
	defer tick.Stop()
	failing := false
	for {
		err := s.Once(ctx)
		if err != nil && ctx.Err() == nil {
			s.failures.Inc()
			if !failing {
				s.log.Warn("counts of groups not decided", "error", err)
			}
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
		}
	}
}

// Status lists what was last decided, ordered by namespace, job and group.
func (s *Scaler) Status() []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.status)
}

// Once decides on every group that is to be scaled. One that fails leaves the others alone.
func (s *Scaler) Once(ctx context.Context) error {
	loads, err := s.loads(ctx)
	if err != nil {
		return err
	}
	jobs, err := s.jobs(ctx)
	if err != nil {
		return err
	}
	owners := map[string]int{} // groups that a service is scaled by
	for _, k := range jobs {
		for _, g := range k.groups {
			for _, name := range g.services {
				owners[name]++
			}
		}
	}
	var list []Status
	var failed []error
	for at, k := range jobs {
		for _, g := range k.groups {
			one, err := s.decide(ctx, at, k.index, g, loads, owners)
			if err != nil {
				failed = append(failed, fmt.Errorf("group %s of job %s/%s: %w", g.name, at.namespace, at.id, err))
				one.Problem = "it could not be decided: " + err.Error()
			}
			list = append(list, one)
		}
	}
	slices.SortFunc(list, func(a, b Status) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.JobID, b.JobID), cmp.Compare(a.Group, b.Group))
	})
	s.mu.Lock()
	s.status = list
	s.mu.Unlock()
	return errors.Join(failed...)
}

// loads adds up what gateways tell of each service. Whether one still tells is seen by whether its word changes, whatever
// its clock says.
func (s *Scaler) loads(ctx context.Context) (map[string]Load, error) {
	now := s.clock.Now()
	heard, loads := map[[2]string]hearing{}, map[string]Load{}
	page := store.Page{Limit: store.MaxPageLimit}
	for {
		list, next, err := s.store.ListSignals(ctx, page)
		if err != nil {
			return nil, err
		}
		for _, one := range list {
			key := [2]string{one.Gateway, one.Service}
			h, before := s.heard[key]
			switch {
			case !before:
				h.told = one.ToldAt // it may be old: whether it still tells is seen next time
			case !h.told.Equal(one.ToldAt):
				h = hearing{told: one.ToldAt, at: now}
			}
			heard[key] = h
			if !h.at.IsZero() && now.Sub(h.at) <= fresh {
				loads[one.Service] = loads[one.Service].with(one)
			}
		}
		if next == "" {
			s.heard = heard
			return loads, nil
		}
		page.Cursor = next
	}
}

// with adds what one gateway tells. What engines say is the same for all: the largest counts.
func (l Load) with(one store.Signal) Load {
	l.Known = true
	l.InFlight += one.InFlight
	l.Held += one.Held
	l.TokensPerMinute += one.TokensPerMinute
	l.Backends = max(l.Backends, one.Backends)
	if n := one.EngineWaiting; n != nil && (l.Waiting == nil || *n > *l.Waiting) {
		l.Waiting = n
	}
	if t := one.FirstToken; t != nil && (l.FirstToken == nil || *t > *l.FirstToken) {
		l.FirstToken = t
	}
	if k := one.KVPermille; k != nil {
		if use := float64(*k) / 1000; l.Cache == nil || use > *l.Cache {
			l.Cache = &use
		}
	}
	return l
}

// and adds another service of the same group.
func (l Load) and(o Load) Load {
	l.Known = l.Known && o.Known
	l.InFlight, l.Held, l.TokensPerMinute = l.InFlight+o.InFlight, l.Held+o.Held, l.TokensPerMinute+o.TokensPerMinute
	l.Backends = max(l.Backends, o.Backends)
	if o.Waiting != nil && (l.Waiting == nil || *o.Waiting > *l.Waiting) {
		l.Waiting = o.Waiting
	}
	if o.FirstToken != nil && (l.FirstToken == nil || *o.FirstToken > *l.FirstToken) {
		l.FirstToken = o.FirstToken
	}
	if o.Cache != nil && (l.Cache == nil || *o.Cache > *l.Cache) {
		l.Cache = o.Cache
	}
	return l
}

// jobs gives the groups to scale of every job; what has not changed is not read again.
func (s *Scaler) jobs(ctx context.Context) (map[jobKey]known, error) {
	stubs, err := s.nomad.Jobs(ctx)
	if err != nil {
		return nil, err
	}
	next := map[jobKey]known{}
	for _, stub := range stubs {
		if stub.Stop || stub.Periodic || stub.ParameterizedJob || stub.Type != api.JobTypeService {
			continue
		}
		at := jobKey{stub.Namespace, stub.ID}
		k, ok := s.known[at]
		if !ok || k.index != stub.JobModifyIndex {
			job, err := s.nomad.Job(ctx, stub.Namespace, stub.ID)
			if nomadapi.IsNotFound(err) {
				continue
			}
			if err != nil {
				return nil, err
			}
			if k, err = readJob(stub.ID, job); err != nil {
				return nil, err
			}
		}
		next[at] = k
	}
	s.known = next
	return next, nil
}

func readJob(id string, job Tree) (known, error) {
	index, _ := job["JobModifyIndex"].(json.Number)
	n, err := index.Int64()
	if err != nil {
		return known{}, fmt.Errorf("read job %s: it has no JobModifyIndex", id)
	}
	k := known{index: uint64(n)}
	list, _ := job["TaskGroups"].([]any)
	for _, one := range list {
		tree, _ := one.(Tree)
		policy, err := ReadPolicy(tree)
		if policy == nil && err == nil {
			continue
		}
		g := group{policy: policy, count: whole(tree["Count"], 1)}
		g.name, _ = tree["Name"].(string)
		if err != nil {
			g.problem = err.Error()
		}
		if g.services, err = servicesOf(id, tree); err != nil {
			return known{}, err
		}
		k.groups = append(k.groups, g)
	}
	return k, nil
}

// servicesOf lists what a group registers.
func servicesOf(job string, tree Tree) ([]string, error) {
	text, err := json.Marshal(Tree{"Name": tree["Name"], "Services": tree["Services"], "Tasks": tasksOf(tree)})
	if err != nil {
		return nil, fmt.Errorf("encode group of job %s: %w", job, err)
	}
	var typed api.TaskGroup
	if err := json.Unmarshal(text, &typed); err != nil {
		return nil, fmt.Errorf("read group of job %s: %w", job, err)
	}
	names := nomadapi.Registers(job, &typed)
	slices.Sort(names)
	return slices.Compact(names), nil
}

// tasksOf is what matters of a group's tasks here.
func tasksOf(tree Tree) (out []any) {
	list, _ := tree["Tasks"].([]any)
	for _, one := range list {
		task, _ := one.(Tree)
		out = append(out, Tree{"Name": task["Name"], "Services": task["Services"]})
	}
	return out
}

// decide decides on one group and carries it out.
func (s *Scaler) decide(ctx context.Context, at jobKey, index uint64, g group, loads map[string]Load, owners map[string]int) (Status, error) {
	now := s.clock.Now()
	out := Status{Namespace: at.namespace, JobID: at.id, Group: g.name, Services: g.services, Count: g.count, Decision: Decision{Count: g.count, Need: -1}, Problem: g.problem, At: now}
	row, err := s.store.Job(ctx, at.namespace, at.id)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return out, err
	}
	out.Tenant = row.Tenant
	row.Namespace, row.ID = at.namespace, at.id
	if out.Problem == "" {
		out.Problem = obstacle(row, g, owners)
	}
	if out.Problem != "" {
		return out, nil
	}
	out.DryRun = g.policy.DryRun
	load := loads[g.services[0]]
	for _, name := range g.services[1:] {
		load = load.and(loads[name])
	}
	out.Known = load.Known
	kept, err := s.store.ScaleState(ctx, at.namespace, at.id, g.name)
	if err != nil {
		return out, err
	}
	state := State{Count: g.count}
	if kept.Version > 0 {
		if err := json.Unmarshal(kept.State, &state); err != nil {
			state = State{Count: g.count} // of another version of this program
		}
	}
	d, next := Decide(g.policy, state, g.count, load, now)
	out.Decision = d
	if g.policy.DryRun {
		next.Count, next.Grown = g.count, state.Grown
	}
	if kept.State, err = json.Marshal(next); err != nil {
		return out, fmt.Errorf("encode state: %w", err)
	}
	won, err := s.store.PutScaleState(ctx, kept)
	if err != nil || !won || d.Count == g.count {
		return out, err
	}
	if g.policy.DryRun {
		s.log.Debug("would scale", "namespace", at.namespace, "job_id", at.id, "group", g.name, "from", g.count, "to", d.Count, "reason", d.Reason)
		return out, nil
	}
	got, err := s.set(ctx, Change{Job: row, Group: g.name, Count: d.Count, Message: d.Reason, Index: index}, g.count)
	if err != nil {
		return out, err
	}
	if got < d.Count {
		out.Problem = fmt.Sprintf("there is no room for %d now", d.Count)
	}
	if got != g.count {
		direction := "up"
		if got < g.count {
			direction = "down"
		}
		s.changes.WithLabelValues(direction).Inc()
		s.log.Info("scaled", "namespace", at.namespace, "job_id", at.id, "group", g.name, "from", g.count, "to", got, "reason", d.Reason)
	}
	return out, nil
}

// set sets a count, or, where there is no room for so many, as many as there is room for. It gives what was set. Where
// not even one more fits, the count is put back to what it was: a job that waits with a larger one could not follow its
// load any more.
func (s *Scaler) set(ctx context.Context, c Change, had int) (int, error) {
	for {
		waits, err := s.apply(ctx, c)
		if err != nil {
			return had, fmt.Errorf("set its count to %d: %w", c.Count, err)
		}
		if !waits || c.Count <= had {
			return c.Count, nil
		}
		c.Count = had + (c.Count-had)/2
	}
}

// obstacle says why a group cannot be scaled now; empty when it can.
func obstacle(row store.Job, g group, owners map[string]int) string {
	switch {
	case row.Version > 0 && row.State == store.JobWaiting:
		return "the job waits in the queue: " + row.Reason
	case row.Version > 0 && row.State != store.JobSubmitted:
		return fmt.Sprintf("the job is %s", row.State)
	case len(g.services) == 0:
		return "it registers no service, so that no gateway tells of its load: give it a service block"
	}
	for _, name := range g.services {
		if owners[name] > 1 {
			return fmt.Sprintf("the service %s is registered by several groups that are to be scaled: give each a service of its own (%s)", name, strings.Join(g.services, ", "))
		}
	}
	return ""
}
