package probe

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/gateway/balance"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/inference"
)

const patience = 30 * time.Second

// engines answers probes without a network.
type engines struct {
	mu      sync.Mutex
	status  map[string]int    // by address; 0 is silence until the probe is given up
	metrics map[string]string // by address
	asked   chan string       // address and path of what was answered
}

func newEngines() *engines {
	return &engines{status: map[string]int{}, metrics: map[string]string{}, asked: make(chan string, 10_000)}
}

func (e *engines) set(addr string, status int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.status[addr] = status
}

func (e *engines) RoundTrip(r *http.Request) (*http.Response, error) {
	e.mu.Lock()
	status, text := e.status[r.URL.Host], ""
	if strings.HasSuffix(r.URL.Path, "/metrics") {
		text = e.metrics[r.URL.Host]
		if text == "" {
			status = http.StatusNotFound
		}
	}
	e.mu.Unlock()
	defer func() { e.asked <- r.URL.Host + r.URL.Path }()
	if status == 0 {
		return nil, io.ErrUnexpectedEOF
	}
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(text)), Header: http.Header{}, Request: r}, nil
}

// bench is a prober on a clock that the test moves.
type bench struct {
	*Prober
	clock   *clock.Fake
	engines *engines
	pool    *balance.Pool

	mu   sync.Mutex
	list []Service
}

func setUp(t *testing.T, engine string, addrs ...string) *bench {
	t.Helper()
	b := &bench{clock: clock.NewFake(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)), engines: newEngines()}
	b.pool = balance.NewPool(b.clock)
	b.set(addrs...)
	b.list = []Service{{Name: "llm", Engine: engine, Pool: b.pool}}
	for _, a := range addrs {
		b.engines.set(a, http.StatusOK)
	}
	b.Prober = New(func() []Service {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.list
	}, Every, b.engines, b.clock)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	if err := b.clock.AwaitWaiters(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) set(addrs ...string) {
	var list []balance.Backend
	for _, a := range addrs {
		list = append(list, balance.Backend{ID: a, Addr: a})
	}
	b.pool.Set(list)
}

// step moves the clock by one look, and waits until what was due has been answered.
func (b *bench) step(t *testing.T) {
	t.Helper()
	b.clock.Advance(Every / steps)
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Microsecond) {
		b.Prober.mu.Lock()
		behind := b.looked.Before(b.clock.Now())
		for _, p := range b.probes {
			behind = behind || p.asking
		}
		b.Prober.mu.Unlock()
		if !behind {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("probes never ended")
		}
	}
}

// pass moves the clock by so much and counts the probes of readiness by address.
func (b *bench) pass(t *testing.T, d time.Duration) map[string]int {
	t.Helper()
	for range d / (Every / steps) {
		b.step(t)
	}
	got := map[string]int{}
	for {
		select {
		case asked := <-b.engines.asked:
			if addr, path, _ := strings.Cut(asked, "/"); !strings.HasSuffix(path, "metrics") {
				got[addr]++
			}
			continue
		default:
		}
		return got
	}
}

func (b *bench) missing(addr string) bool {
	for _, s := range b.pool.Status() {
		if s.Addr == addr {
			return s.Missing
		}
	}
	return false
}

func TestProber_OnceInTenSecondsEach(t *testing.T) {
	t.Parallel()
	var addrs []string
	for i := range 40 {
		addrs = append(addrs, fmt.Sprintf("10.0.0.%d:8000", i))
	}
	b := setUp(t, "", addrs...)
	most := 0
	got := map[string]int{}
	for range 200 { // 100 seconds
		n := 0
		for addr, times := range b.pass(t, Every/steps) {
			got[addr] += times
			n += times
		}
		most = max(most, n)
	}
	for _, addr := range addrs {
		if got[addr] < 9 || got[addr] > 13 { // an interval is 8 to 10 seconds
			t.Errorf("%s was probed %d times in 100 s", addr, got[addr])
		}
	}
	if most > 20 {
		t.Errorf("%d of 40 at one moment", most)
	}
}

// P43, P45 of the probes' part: three misses are needed, a backend is back within ten seconds of its first good answer, and
// the last one is used whatever probes say.
func TestP45_OutAfterThreeMissesAndBackWithinTenSeconds(t *testing.T) {
	t.Parallel()
	b := setUp(t, "", "a:1", "b:1")
	b.pass(t, 20*time.Second)
	b.engines.set("a:1", 0)
	out := 0
	for ; !b.missing("a:1"); out++ {
		if b.step(t); out > 100 {
			t.Fatal("a dead backend is never found out")
		}
	}
	if misses := b.pass(t, 0)["a:1"]; misses < missesOfPool {
		t.Errorf("out after %d misses", misses)
	}
	for range 50 {
		if l := b.pool.Take(balance.Ask{Policy: balance.RoundRobin}); l.ID != "b:1" {
			t.Fatal("a request was sent to a backend that is gone")
		}
	}
	b.engines.set("b:1", 0)
	b.pass(t, time.Minute)
	if l := b.pool.Take(balance.Ask{Policy: balance.RoundRobin}); l == nil {
		t.Error("probes alone have removed the last backend")
	}
	b.engines.set("a:1", http.StatusOK)
	back := time.Duration(0)
	for ; b.missing("a:1"); back += Every / steps {
		b.step(t)
	}
	if back > Every {
		t.Errorf("back after %v", back)
	}
}

const missesOfPool = 3

// P45: an engine that is busy with streams misses every probe and stays.
func TestP45_RunningStreamsAreLife(t *testing.T) {
	t.Parallel()
	b := setUp(t, "", "a:1", "b:1")
	var leases []*balance.Lease
	for range 64 {
		l := b.pool.Take(balance.Ask{Policy: balance.RoundRobin, Stream: true})
		l.FirstByte()
		leases = append(leases, l)
	}
	b.engines.set("a:1", 0)
	b.pass(t, 5*time.Minute)
	if b.missing("a:1") {
		t.Error("an engine that is sending answers was removed")
	}
	for _, l := range leases {
		l.Done(balance.Success)
	}
	b.pass(t, time.Minute)
	if !b.missing("a:1") {
		t.Error("a dead one was kept")
	}
}

// P46: what is not listed any more is not probed any more after one cycle, and what is new is.
func TestP46_TheListAsItIsNow(t *testing.T) {
	t.Parallel()
	b := setUp(t, "", "a:1", "b:1")
	b.pass(t, 30*time.Second)
	b.engines.set("c:1", http.StatusOK)
	b.set("b:1", "c:1")
	b.pass(t, Every)
	got := b.pass(t, Every)
	if got["a:1"] != 0 || got["b:1"] == 0 || got["c:1"] == 0 {
		t.Errorf("probed: %v", got)
	}
}

// PW03: one that loads answers 503 and gets nothing while there is another; it is not hammered.
func TestPW03_LoadingIsNotReady(t *testing.T) {
	t.Parallel()
	b := setUp(t, inference.LlamaCPP, "a:1", "b:1")
	b.engines.set("a:1", http.StatusServiceUnavailable)
	b.pass(t, 40*time.Second)
	if !b.missing("a:1") {
		t.Error("a backend that loads is taken for ready")
	}
	if n := b.pass(t, 90*time.Second)["a:1"]; n > 60 {
		t.Errorf("%d probes in 90 s", n)
	}
}

// contract is how each engine answers, written from its documentation, not recorded.
var contract = map[string]struct {
	ready, metricsAt, metrics string
	want                      inference.Reading
}{
	inference.VLLM: {"/health", "/metrics", `# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5
`, inference.Reading{Running: new(7), Waiting: new(2), KVUse: new(0.5)}},
	inference.SGLang: {"/health", "/metrics", `# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m"} 8.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{model_name="m"} 4.0
# TYPE sglang:token_usage gauge
sglang:token_usage{model_name="m"} 0.52
`, inference.Reading{Running: new(8), Waiting: new(4), KVUse: new(0.52)}},
	inference.LlamaCPP: {"/health", "/metrics", `# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 4
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 46
`, inference.Reading{Running: new(4), Waiting: new(46)}},
	inference.TensorRTLLM: {"/health", "/prometheus/metrics", `# TYPE trtllm_kv_cache_utilization gauge
trtllm_kv_cache_utilization{engine_type="trtllm",model_name="m"} 0.62
`, inference.Reading{KVUse: new(0.62)}},
	inference.MindIE: {"/v2/health/ready", "/metrics", `# TYPE num_requests_running gauge
num_requests_running{model_name="m"} 1
# TYPE num_requests_waiting gauge
num_requests_waiting{model_name="m"} 0
`, inference.Reading{Running: new(1), Waiting: new(0)}},
}

func TestEngines_Contract(t *testing.T) {
	t.Parallel()
	for kind, c := range contract {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := setUp(t, kind, "a:1")
			b.engines.mu.Lock()
			b.engines.metrics["a:1"] = c.metrics
			b.engines.mu.Unlock()
			for range 2 * steps {
				b.step(t)
			}
			asked := map[string]bool{}
			for len(b.engines.asked) > 0 {
				asked[<-b.engines.asked] = true
			}
			if len(asked) != 2 || !asked["a:1"+c.ready] || !asked["a:1"+c.metricsAt] {
				t.Errorf("asked %v", asked)
			}
			same(t, c.want, b.Reading("llm"))
			if b.missing("a:1") {
				t.Error("taken for gone")
			}
			b.engines.set("a:1", http.StatusServiceUnavailable)
			b.pass(t, time.Minute)
			if !b.missing("a:1") {
				t.Error("503 is taken for ready")
			}
			same(t, inference.Reading{}, b.Reading("llm")) // what is old is not told as if it were new
		})
	}
}

func same(t *testing.T, want, got inference.Reading) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// MindIE answers for its health and its load on ports of their own where it is so configured.
func TestPorts_BesideTheOneThatTakesRequests(t *testing.T) {
	t.Parallel()
	b := setUp(t, inference.MindIE, "a:1025")
	b.pool.Set([]balance.Backend{{ID: "a:1025", Addr: "a:1025", Ready: "a:1026", Metrics: "a:1027"}})
	b.engines.set("a:1026", http.StatusOK)
	b.engines.set("a:1027", http.StatusOK)
	b.engines.mu.Lock()
	b.engines.metrics["a:1027"] = contract[inference.MindIE].metrics
	b.engines.mu.Unlock()
	for range 2 * steps {
		b.step(t)
	}
	asked := map[string]bool{}
	for len(b.engines.asked) > 0 {
		asked[<-b.engines.asked] = true
	}
	if len(asked) != 2 || !asked["a:1026/v2/health/ready"] || !asked["a:1027/metrics"] {
		t.Errorf("asked %v", asked)
	}
	same(t, inference.Reading{Running: new(1), Waiting: new(0)}, b.Reading("llm"))
	b.engines.set("a:1026", http.StatusServiceUnavailable) // whatever the other ports say
	b.pass(t, time.Minute)
	if !b.missing("a:1025") {
		t.Error("503 on the port for health is taken for ready")
	}
}
