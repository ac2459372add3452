//go:build unix

package scale

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/nomadapi"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/internal/store/storetest"
)

// cluster is a Nomad with one job of some groups, and admission with room for so many instances.
type cluster struct {
	mu      sync.Mutex
	index   uint64
	counts  map[string]int
	policy  map[string]string // by group; empty is none
	service map[string]string // by group
	room    int
	reads   int
	applied []string
	broken  error
}

func (c *cluster) Jobs(context.Context) ([]*api.JobListStub, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return []*api.JobListStub{
		{Namespace: "default", ID: "llm", Type: api.JobTypeService, JobModifyIndex: c.index},
		{Namespace: "default", ID: "off", Type: api.JobTypeService, Stop: true},
		{Namespace: "default", ID: "train", Type: api.JobTypeBatch},
	}, c.broken
}

func (c *cluster) Job(_ context.Context, _, id string) (nomadapi.Tree, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads++
	if id != "llm" {
		return nil, fmt.Errorf("job %s was read", id)
	}
	var groups []string
	for name, count := range c.counts {
		policy := c.policy[name]
		if policy == "" {
			policy = "null"
		}
		groups = append(groups, fmt.Sprintf(`{"Name":%q,"Count":%d,"Services":[{"Name":%q}],"Tasks":[{"Name":"t","Services":null}],"Scaling":{"Min":0,"Max":8,"Policy":%s}}`, name, count, c.service[name], policy))
	}
	var tree nomadapi.Tree
	err := nomadapi.DecodeTree(fmt.Appendf(nil, `{"ID":"llm","JobModifyIndex":%d,"TaskGroups":[%s]}`, c.index, strings.Join(groups, ",")), &tree)
	return tree, err
}

func (c *cluster) apply(_ context.Context, change Change) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken != nil {
		return false, c.broken
	}
	if change.Index != c.index {
		return false, errors.New("another version came in between")
	}
	c.applied = append(c.applied, fmt.Sprintf("%s %d", change.Group, change.Count))
	if c.room > 0 && change.Count > c.room {
		return true, nil
	}
	c.counts[change.Group] = change.Count
	c.index++
	return false, nil
}

// world is a scaler on a real store, whose clock the test moves.
type world struct {
	*cluster
	t   *testing.T
	db  *store.Store
	now *clock.Fake
	s   *Scaler
}

const auto = `{"heteroflow":[{"requests":10}]}`

func newWorld(t *testing.T, c *cluster) *world {
	t.Helper()
	now := clock.NewFake(monday)
	db := storetest.SQLite(t, store.WithClock(now))
	if c.service == nil {
		c.service = map[string]string{"serve": "llm"}
	}
	c.index = 7
	return &world{cluster: c, t: t, db: db, now: now, s: New(c, db, c.apply, now, hclog.NewNullLogger())}
}

// tick has gateways tell so many requests in flight, half a minute later, and the scaler decide.
func (w *world) tick(inFlight ...int) {
	w.t.Helper()
	w.now.Advance(Every)
	var list []store.Signal
	for i, n := range inFlight {
		list = append(list, store.Signal{Service: "llm", Gateway: fmt.Sprint("g", i), ToldAt: w.now.Now().Add(time.Duration(i) * time.Hour), Backends: w.counts["serve"], InFlight: n})
	}
	if err := w.db.TellSignals(w.t.Context(), list); err != nil {
		w.t.Fatal(err)
	}
	if err := w.s.Once(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) status() Status {
	w.t.Helper()
	list := w.s.Status()
	if len(list) != 1 {
		w.t.Fatalf("%+v", list)
	}
	return list[0]
}

func (w *world) did(want ...string) {
	w.t.Helper()
	if fmt.Sprint(w.applied) != fmt.Sprint(want) {
		w.t.Errorf("done %q, want %q", w.applied, want)
	}
	w.applied = nil
}

func TestScaler_FollowsWhatGatewaysTell(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &cluster{counts: map[string]int{"serve": 1, "db": 1}, policy: map[string]string{"serve": auto}, service: map[string]string{"serve": "llm", "db": "db"}})
	w.tick(25, 10) // they are heard of for the first time: it may be long ago
	w.did()
	if s := w.status(); s.Known || s.Need != -1 || !strings.Contains(s.Reason, "no gateway tells") {
		t.Errorf("%+v", s)
	}
	w.tick(25, 10)
	w.did("serve 4")
	if s := w.status(); s.Count != 1 || s.Decision.Count != 4 || s.Need != 4 || !s.Known || s.Services[0] != "llm" || len(s.Signals) != 1 {
		t.Errorf("%+v", s)
	}
	for range 10 { // up to five minutes
		w.tick(5, 0)
	}
	w.did()
	w.tick(5, 0)
	w.did("serve 1")
	reads := w.reads
	for range 40 {
		w.tick(0, 0)
	}
	w.did("serve 0")
	if w.reads > reads+2 {
		t.Errorf("a job that has not changed was read %d times", w.reads-reads)
	}
	if up, down := told(t, w.s.changes.WithLabelValues("up")), told(t, w.s.changes.WithLabelValues("down")); up != 1 || down != 2 {
		t.Errorf("%v up, %v down", up, down)
	}
}

// A gateway that is gone is not believed for long, whatever its clock says.
func TestScaler_SilentGateways(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &cluster{counts: map[string]int{"serve": 2}, policy: map[string]string{"serve": auto}})
	w.tick(5, 15)
	w.tick(5, 15)
	if s := w.status(); s.Need != 2 {
		t.Errorf("%+v", s)
	}
	for range 3 {
		w.tick(5)
	}
	if s := w.status(); s.Need != 1 || !s.Known {
		t.Errorf("one of two is gone: %+v", s)
	}
	for range 3 {
		w.tick()
	}
	if s := w.status(); s.Known {
		t.Errorf("both are gone: %+v", s)
	}
	for range 100 {
		w.tick()
	}
	w.did()
}

// Two instances of the service: each change is made by one of them.
func TestScaler_TwoInstances(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &cluster{counts: map[string]int{"serve": 1}, policy: map[string]string{"serve": auto}})
	other := New(w.cluster, w.db, w.apply, w.now, hclog.NewNullLogger())
	both := func(n int) {
		t.Helper()
		w.tick(n)
		if err := other.Once(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	both(75)
	both(75)
	both(75)
	w.did("serve 8")
	for range 11 {
		both(20)
	}
	w.did("serve 3")
}

func TestScaler_DryRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &cluster{counts: map[string]int{"serve": 1}, policy: map[string]string{"serve": `{"heteroflow":[{"requests":10,"dry_run":true}]}`}})
	for range 30 {
		w.tick(35)
	}
	w.did()
	if s := w.status(); !s.DryRun || s.Count != 1 || s.Decision.Count != 4 {
		t.Errorf("%+v", s)
	}
}

// Where there is no room for all, as many start as there is room for, and the next decision tries again.
func TestScaler_NoRoom(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &cluster{counts: map[string]int{"serve": 2}, room: 4, policy: map[string]string{"serve": auto}})
	w.tick(75)
	w.tick(75)
	w.did("serve 8", "serve 5", "serve 3")
	if s := w.status(); s.Problem != "there is no room for 8 now" {
		t.Errorf("%+v", s)
	}
	w.tick(75)
	w.did("serve 8", "serve 5", "serve 4")
	w.tick(75)
	w.did("serve 8", "serve 6", "serve 5", "serve 4")
	if w.counts["serve"] != 4 {
		t.Errorf("%d", w.counts["serve"])
	}
}

func TestScaler_Obstacles(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cluster *cluster
		state   string
		says    string
	}{
		"a wrong policy":           {&cluster{policy: map[string]string{"serve": `{"heteroflow":[{"target":1}]}`}}, "", "it is not known: write requests"},
		"the job waits":            {&cluster{policy: map[string]string{"serve": auto}}, store.JobWaiting, "waits in the queue: no card"},
		"the job is on its way":    {&cluster{policy: map[string]string{"serve": auto}}, store.JobSubmitting, "the job is submitting"},
		"a service without a name": {&cluster{policy: map[string]string{"serve": auto}, service: map[string]string{"serve": ""}}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.cluster.counts = map[string]int{"serve": 1}
			w := newWorld(t, c.cluster)
			if c.state != "" {
				if _, err := w.db.PutJob(t.Context(), store.Job{Namespace: "default", ID: "llm", Tenant: "research", State: c.state, Reason: "no card", Spec: json.RawMessage("{}")}); err != nil {
					t.Fatal(err)
				}
			}
			w.tick(75)
			w.tick(75)
			if c.says == "" { // the name that Nomad gives to one without
				if s := w.status(); s.Services[0] != "llm-serve" || s.Known {
					t.Errorf("%+v", s)
				}
				return
			}
			w.did()
			if s := w.status(); !strings.Contains(s.Problem, c.says) {
				t.Errorf("%+v", s)
			}
		})
	}
	w := newWorld(t, &cluster{counts: map[string]int{"a": 1, "b": 1}, policy: map[string]string{"a": auto, "b": auto}, service: map[string]string{"a": "llm", "b": "llm"}})
	w.tick(75)
	w.tick(75)
	w.did()
	for _, s := range w.s.Status() {
		if !strings.Contains(s.Problem, "registered by several groups") {
			t.Errorf("%+v", s)
		}
	}
}

// What fails is tried again: nothing is remembered that was not done.
func TestScaler_Trouble(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &cluster{counts: map[string]int{"serve": 1}, policy: map[string]string{"serve": auto}})
	w.tick(35)
	w.s.apply = func(context.Context, Change) (bool, error) { return false, errors.New("no leader") }
	w.now.Advance(Every)
	if err := w.db.TellSignals(t.Context(), []store.Signal{{Service: "llm", Gateway: "g0", ToldAt: w.now.Now(), Backends: 1, InFlight: 35}}); err != nil {
		t.Fatal(err)
	}
	if err := w.s.Once(t.Context()); err == nil || !strings.Contains(err.Error(), "group serve of job default/llm: set its count to 4: no leader") {
		t.Errorf("%v", err)
	}
	if s := w.status(); !strings.Contains(s.Problem, "no leader") {
		t.Errorf("%+v", s)
	}
	w.s.apply = w.apply
	w.tick(35)
	w.did("serve 4")
	w.broken = errors.New("nobody there")
	if err := w.s.Once(t.Context()); !errors.Is(err, w.broken) {
		t.Errorf("%v", err)
	}
}

func TestScaler_Run(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &cluster{counts: map[string]int{"serve": 1}, policy: map[string]string{"serve": auto}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.s.Run(ctx) }()
	if err := w.now.AwaitWaiters(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// told is what a metric tells, all of its labels together.
func told(t *testing.T, c prometheus.Collector) (sum float64) {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(c)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum
}
