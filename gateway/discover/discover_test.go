package discover

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
)

// fakeRegistry holds services and answers the parts of Consul's and Nomad's API that discovery uses, blocking
// queries included.
type fakeRegistry struct {
	mu       sync.Mutex
	index    uint64
	changed  chan struct{}
	services map[string]fakeService
	down     bool
}

type fakeService struct {
	tags      []string
	instances map[string]string // id → host:port
}

func newFake() *fakeRegistry {
	return &fakeRegistry{index: 1, changed: make(chan struct{}), services: map[string]fakeService{}}
}

func (f *fakeRegistry) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	f.index++
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeRegistry) serve(w http.ResponseWriter, r *http.Request, answer func() any) {
	since, _ := strconv.ParseUint(r.URL.Query().Get("index"), 10, 64)
	wait, err := time.ParseDuration(r.URL.Query().Get("wait"))
	if err != nil {
		wait = time.Millisecond
	}
	f.mu.Lock()
	if since >= f.index && !f.down {
		changed := f.changed
		f.mu.Unlock()
		select {
		case <-changed:
		case <-time.After(wait):
		case <-r.Context().Done():
		}
		f.mu.Lock()
	}
	defer f.mu.Unlock()
	if f.down {
		http.Error(w, "no leader", http.StatusInternalServerError)
		return
	}
	w.Header().Set("X-Consul-Index", fmt.Sprint(f.index))
	w.Header().Set("X-Nomad-Index", fmt.Sprint(f.index))
	json.NewEncoder(w).Encode(answer()) //nolint:errcheck // a test server
}

func (f *fakeRegistry) consul() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/catalog/services", func(w http.ResponseWriter, r *http.Request) {
		f.serve(w, r, func() any {
			out := map[string][]string{}
			for name, s := range f.services {
				out[name] = s.tags
			}
			return out
		})
	})
	mux.HandleFunc("GET /v1/health/service/{name}", func(w http.ResponseWriter, r *http.Request) {
		if !r.URL.Query().Has("passing") {
			http.Error(w, "discovery must ask for passing instances", http.StatusBadRequest)
			return
		}
		f.serve(w, r, func() any {
			out := []any{}
			for id, addr := range f.services[r.PathValue("name")].instances {
				host, port, _ := net.SplitHostPort(addr)
				n, _ := strconv.Atoi(port)
				out = append(out, map[string]any{"Service": map[string]any{"ID": id, "Address": host, "Port": n}, "Node": map[string]any{"Address": "10.0.0.1"}})
			}
			return out
		})
	})
	return mux
}

func (f *fakeRegistry) nomad() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/services", func(w http.ResponseWriter, r *http.Request) {
		f.serve(w, r, func() any {
			list := []any{}
			for name, s := range f.services {
				list = append(list, map[string]any{"ServiceName": name, "Tags": s.tags})
			}
			return []any{map[string]any{"Namespace": "default", "Services": list}}
		})
	})
	mux.HandleFunc("GET /v1/service/{name}", func(w http.ResponseWriter, r *http.Request) {
		f.serve(w, r, func() any {
			out := []any{}
			if r.URL.Query().Get("namespace") == "*" {
				return out // Nomad lists instances of one namespace only
			}
			for id, addr := range f.services[r.PathValue("name")].instances {
				host, port, _ := net.SplitHostPort(addr)
				n, _ := strconv.Atoi(port)
				out = append(out, map[string]any{"ID": id, "Address": host, "Port": n})
			}
			return out
		})
	})
	return mux
}

// engine is a backend whose /health a test can switch.
func engine(t *testing.T, healthy *bool, mu *sync.Mutex) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if !*healthy {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func registries(t *testing.T, f *fakeRegistry) map[string]Registry {
	t.Helper()
	cs, ns := httptest.NewServer(f.consul()), httptest.NewServer(f.nomad())
	t.Cleanup(cs.Close)
	t.Cleanup(ns.Close)
	c, err := NewConsul(strings.TrimPrefix(cs.URL, "http://"), "")
	if err != nil {
		t.Fatal(err)
	}
	n, err := NewNomad(ns.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	return map[string]Registry{"consul": c, "nomad": n}
}

// await waits until the view is as wanted.
func await(t *testing.T, w *Watcher, want []Service) {
	t.Helper()
	timeout := time.After(20 * time.Second)
	for {
		got, changed := w.Services()
		diff := cmp.Diff(want, got)
		if diff == "" {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatalf("services (-want +got):\n%s", diff)
		}
	}
}

// The conformance suite of both registries.
func TestRegistry_WatcherFollows(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"consul", "nomad"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake()
			healthy, mu := true, sync.Mutex{}
			a, b := engine(t, &healthy, &mu), engine(t, &healthy, &mu)
			w := NewWatcher(registries(t, f)[name], hclog.NewNullLogger())
			w.backoff = time.Millisecond
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- w.Run(ctx) }()
			defer func() { cancel(); <-done }()

			f.set(func() {
				f.services["llm"] = fakeService{tags: []string{"x", PathTag + "/pooling", ModelTag + "sim-7b", ServedTag + "Qwen/Qwen3-8B", EngineTag + "vllm", PathTag}, instances: map[string]string{"a": a}}
				f.services["db"] = fakeService{instances: map[string]string{"d": a}}
			})
			llm := Service{Name: "llm", Offer: Offer{Models: []string{"sim-7b"}, Paths: []string{"/pooling"}, Served: "Qwen/Qwen3-8B", Engine: "vllm"}, Instances: []Instance{{ID: "a", Addr: a}}}
			await(t, w, []Service{llm})
			if err := w.Err(); err != nil {
				t.Errorf("in step: %v", err)
			}
			w.Want([]string{"db"})
			db := Service{Name: "db", Instances: []Instance{{ID: "d", Addr: a}}}
			await(t, w, []Service{db, llm})

			f.set(func() { f.services["llm"].instances["b"] = b })
			llm.Instances = append(llm.Instances, Instance{ID: "b", Addr: b})
			await(t, w, []Service{db, llm})

			f.set(func() { f.down = true })
			deadline := time.Now().Add(20 * time.Second)
			for w.Err() == nil {
				if time.Now().After(deadline) {
					t.Fatal("a registry that is away is not told of")
				}
				time.Sleep(time.Millisecond)
			}
			await(t, w, []Service{db, llm}) // the last view is kept
			f.set(func() { f.down = false; delete(f.services["llm"].instances, "a"); delete(f.services, "db") })
			llm.Instances = llm.Instances[1:]
			await(t, w, []Service{llm})
		})
	}
}

// Nomad's registry lists instances whatever their health; one that loads gets no traffic until it answers.
func TestNomad_InstanceThatLoadsIsNotLive(t *testing.T) {
	t.Parallel()
	f := newFake()
	healthy, mu := false, sync.Mutex{}
	addr := engine(t, &healthy, &mu)
	f.services["llm"] = fakeService{instances: map[string]string{"a": addr}}
	n := registries(t, f)["nomad"]
	ask := func() []Instance {
		t.Helper()
		live, _, err := n.Live(context.Background(), "llm", 0)
		if err != nil {
			t.Fatal(err)
		}
		return live
	}
	if live := ask(); len(live) != 0 {
		t.Errorf("loading: %v", live)
	}
	mu.Lock()
	healthy = true
	mu.Unlock()
	if live := ask(); len(live) != 1 {
		t.Errorf("loaded: %v", live)
	}
	mu.Lock()
	healthy = false
	mu.Unlock()
	for i := 1; i < maxMisses; i++ {
		if live := ask(); len(live) != 1 {
			t.Errorf("busy for %d probes: want it kept", i)
		}
	}
	if live := ask(); len(live) != 0 {
		t.Errorf("silent: %v", live)
	}
}

// Tags with limits of the service's own; one that makes no sense is left out and told of.
func TestOffer_Tags(t *testing.T) {
	t.Parallel()
	var got Offer
	got.add([]string{
		SlotsTag + "16", TriesTag + "1", HeadersTag + "90s", WholeTag + "1h", FirstTokenTag + "10m", IdleTag + "500ms",
		SlotsTag + "many", SlotsTag + "0", TriesTag + "6", IdleTag + "soon", WholeTag + "-1s", ModelTag + "m", ModelTag + "m",
	})
	got.add([]string{IdleTag + "soon"}) // of another instance
	want := Offer{
		Models: []string{"m"}, Slots: 16, Times: Times{Headers: 90 * time.Second, Whole: time.Hour, FirstToken: 10 * time.Minute, Idle: 500 * time.Millisecond, Tries: 1},
		Wrong: []string{
			`"heteroflow.idle_timeout=soon": write a time such as 90s or 10m`, `"heteroflow.slots=0": write a whole number from 1 to 1048576`,
			`"heteroflow.slots=many": write a whole number from 1 to 1048576`, `"heteroflow.tries=6": write a whole number from 1 to 5`,
			`"heteroflow.whole_timeout=-1s": write a time such as 90s or 10m`,
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// Ports that an instance names beside the one that takes requests are its own.
func TestInstance_PortsOfItsOwn(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		tags []string
		want Instance
	}{
		"none":                  {[]string{"heteroflow.model=m"}, Instance{}},
		"one for both":          {[]string{ReadyPortTag + "1026"}, Instance{Ready: "10.0.0.1:1026", Metrics: "10.0.0.1:1026"}},
		"one for each":          {[]string{MetricsPortTag + "1027", ReadyPortTag + "1026"}, Instance{Ready: "10.0.0.1:1026", Metrics: "10.0.0.1:1027"}},
		"metrics alone":         {[]string{MetricsPortTag + "1027"}, Instance{Metrics: "10.0.0.1:1027"}},
		"such as make no sense": {[]string{ReadyPortTag + "0", MetricsPortTag + "http", ReadyPortTag + "65536", ReadyPortTag}, Instance{}},
	} {
		c.want.ID, c.want.Addr = "a", "10.0.0.1:8000"
		if diff := cmp.Diff(c.want, newInstance("a", "10.0.0.1", 8000, c.tags)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}
	if got := newInstance("a", "fd00::1", 8000, []string{ReadyPortTag + "1026"}); got.Addr != "[fd00::1]:8000" || got.Ready != "[fd00::1]:1026" {
		t.Errorf("%+v", got)
	}
	var o Offer
	o.add([]string{ReadyPortTag + "1026", MetricsPortTag + "http"})
	if len(o.Wrong) != 1 || !strings.Contains(o.Wrong[0], "heteroflow.metrics_port=http") {
		t.Errorf("%q", o.Wrong)
	}
}
