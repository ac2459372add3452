package discover

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/clock"
)

// allocations is what runs.
type allocations struct {
	mu    sync.Mutex
	runs  map[string]bool
	err   error
	asked int
}

func (a *allocations) Runs(_ context.Context, id string) (bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked++
	return a.runs[id], a.err
}

func (a *allocations) set(id string, runs bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.runs[id], a.err = runs, err
}

// listed is a registry whose list a test changes.
type listed struct {
	mu        sync.Mutex
	instances []Instance
	index     uint64
	changed   chan struct{}
}

func (l *listed) Names(context.Context, uint64) (map[string]Offer, uint64, error) {
	return nil, 1, nil
}

func (l *listed) Live(ctx context.Context, _ string, index uint64) ([]Instance, uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if index >= l.index {
		changed := l.changed
		l.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		l.mu.Lock()
		if ctx.Err() != nil {
			return nil, 0, ctx.Err()
		}
	}
	return slices.Clone(l.instances), l.index, nil
}

func (l *listed) set(instances ...Instance) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.instances = instances
	l.index++
	close(l.changed)
	l.changed = make(chan struct{})
}

const (
	alive = "11111111-2222-3333-4444-555555555555"
	dead  = "66666666-7777-8888-9999-aaaaaaaaaaaa"
)

func instance(alloc string) Instance {
	return Instance{ID: "_nomad-task-" + alloc + "-group-serve-llm-http", Addr: "10.0.0.1:8000"}
}

// PW25: an entry whose allocation is gone gets no traffic, also when it comes back after it was removed, and is told of.
func TestPW25_StaleEntriesGetNoTraffic(t *testing.T) {
	t.Parallel()
	l, a := &listed{changed: make(chan struct{})}, &allocations{runs: map[string]bool{alive: true}}
	now := clock.NewFake(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	c := NewChecked(l, a, now, hclog.NewNullLogger())
	other := Instance{ID: "by-hand", Addr: "10.0.0.9:8000"}
	var index uint64
	live := func(want ...Instance) {
		t.Helper()
		got, next, err := c.Live(t.Context(), "llm", index)
		if err != nil {
			t.Fatal(err)
		}
		index = next
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
	l.set(instance(alive), instance(dead), other)
	live(instance(alive), other) // what Nomad did not register is the registry's alone to judge
	l.set(instance(alive), other)
	live(instance(alive), other)
	l.set(instance(alive), instance(dead), other)
	live(instance(alive), other)
	if diff := cmp.Diff(map[string]int{"llm": 1}, c.Stale()); diff != "" {
		t.Errorf("stale (-want +got)\n%s", diff)
	}

	// One that ends while its entry stays is found though the registry says nothing.
	a.set(alive, false, nil)
	done := make(chan []Instance, 1)
	go func() {
		got, _, err := c.Live(context.Background(), "llm", index)
		if err != nil {
			t.Error(err)
		}
		done <- got
	}()
	if err := now.AwaitWaiters(t.Context(), 3); err != nil { // with those of the two calls before, which nobody waits for
		t.Fatal(err)
	}
	now.Advance(askAgain)
	select {
	case got := <-done:
		if diff := cmp.Diff([]Instance{other}, got); diff != "" {
			t.Errorf("after its end (-want +got)\n%s", diff)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("never looked again")
	}
}

// While Nomad does not answer, what it said last holds, and of what it has not spoken the registry is believed.
func TestChecked_NomadAway(t *testing.T) {
	t.Parallel()
	l, a := &listed{changed: make(chan struct{})}, &allocations{runs: map[string]bool{alive: true}}
	now := clock.NewFake(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	c := NewChecked(l, a, now, hclog.NewNullLogger())
	l.set(instance(dead))
	if got, _, _ := c.Live(t.Context(), "llm", 0); len(got) != 0 {
		t.Fatal("a stale one is live")
	}
	a.set(alive, true, errors.New("no leader"))
	now.Advance(time.Minute)
	l.set(instance(dead), instance(alive))
	got, _, err := c.Live(t.Context(), "llm", 0)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Instance{instance(alive)}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestNomadAllocations(t *testing.T) {
	t.Parallel()
	states := map[string][2]string{
		"running": {"run", "running"}, "pending": {"run", "pending"}, "unknown": {"run", "unknown"}, "stopping": {"stop", "running"},
		"evicted": {"evict", "running"}, "failed": {"run", "failed"}, "lost": {"run", "lost"}, "complete": {"run", "complete"},
	}
	shown := []any{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/allocations" {
			json.NewEncoder(w).Encode(shown) //nolint:errcheck // a test server
			return
		}
		id := strings.TrimPrefix(r.URL.Path, "/v1/allocation/")
		state, ok := states[id]
		switch {
		case id == "broken":
			http.Error(w, "No cluster leader", http.StatusInternalServerError)
		case !ok:
			http.Error(w, "alloc not found", http.StatusNotFound)
		default:
			json.NewEncoder(w).Encode(map[string]string{"ID": id, "DesiredStatus": state[0], "ClientStatus": state[1]}) //nolint:errcheck // a test server
		}
	}))
	defer s.Close()
	n, err := NewNomadAllocations(s.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	for id := range states {
		want := id == "running" || id == "pending" || id == "unknown"
		if runs, err := n.Runs(t.Context(), id); err != nil || runs != want {
			t.Errorf("%s: %v, %v", id, runs, err)
		}
	}
	if _, err := n.Runs(t.Context(), "gone"); err == nil {
		t.Error("with a token that sees nothing, what is not shown is taken for gone")
	}
	shown = append(shown, map[string]string{"ID": "running"})
	if runs, err := n.Runs(t.Context(), "gone"); err != nil || runs {
		t.Errorf("one that is not known: %v, %v", runs, err)
	}
	if _, err := n.Runs(t.Context(), "broken"); err == nil {
		t.Error("a failure is taken for an answer")
	}
}

// slow tells of a service at once, and of its instances when the gate is opened.
type slow struct{ gate chan bool }

func (slow) Names(ctx context.Context, index uint64) (map[string]Offer, uint64, error) {
	if index > 0 {
		<-ctx.Done()
	}
	return map[string]Offer{"llm": {Models: []string{"m"}}}, 1, ctx.Err()
}

func (s slow) Live(ctx context.Context, _ string, index uint64) ([]Instance, uint64, error) {
	if index > 0 {
		<-ctx.Done()
		return nil, 0, ctx.Err()
	}
	select {
	case <-s.gate:
	case <-ctx.Done():
	}
	return []Instance{instance(alive)}, 1, ctx.Err()
}

// A gateway that has just started is not ready while it knows a model and not yet who serves it.
func TestWatcher_NotReadyBeforeTheInstancesAreKnown(t *testing.T) {
	t.Parallel()
	r := slow{make(chan bool)}
	w := NewWatcher(r, hclog.NewNullLogger())
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	defer func() {
		end()
		<-ended
	}()
	view := func(instances int) {
		t.Helper()
		for {
			list, changed := w.Services()
			if len(list) == 1 && len(list[0].Instances) == instances {
				return
			}
			select {
			case <-changed:
			case <-time.After(30 * time.Second):
				t.Fatalf("services %+v", list)
			}
		}
	}
	view(0)
	if err := w.Err(); !errors.Is(err, errNotYet) {
		t.Errorf("before: %v", err)
	}
	close(r.gate)
	view(1)
	if err := w.Err(); err != nil {
		t.Errorf("after: %v", err)
	}
}
