package server

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/heteroflow/heteroflow/gateway/mockengine"
	"github.com/heteroflow/heteroflow/gateway/relay"
	"github.com/heteroflow/heteroflow/internal/store"
)

// long reports whether tests take their long form: `make nightly`.
func long() bool { return os.Getenv("HETEROFLOW_GATEWAY_LONG") != "" }

// TestP84_StreamsEndWellWhenTheGatewayIsToldTo: 500 streams run when it is told to end, as by SIGTERM. Nobody gets in any
// more, every stream is passed on whole, and every row is written.
func TestP84_StreamsEndWellWhenTheGatewayIsToldTo(t *testing.T) {
	t.Parallel()
	const streams = 500
	gate := make(chan bool)
	e := mockengine.New(t, mockengine.Behaviour{TokenGate: gate})
	url := "sqlite://" + filepath.Join(t.TempDir(), "test.db")
	db, err := store.Open(t.Context(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	ctx, end := context.WithCancel(context.Background())
	defer end()
	listening, done := make(chan string, 1), make(chan error, 1)
	go func() {
		done <- Run(ctx, Config{
			Addr: "127.0.0.1:0", DatabaseURL: url, NomadAddr: registry(t, "m", &httptest.Server{URL: "http://" + e.Addr}), Anonymous: true,
			Rules: relay.Rules{FirstToken: patience}, Probe: -1, Logger: hclog.NewNullLogger(), Listening: func(addr string) { listening <- addr },
		})
	}()
	addr := receive(t, listening, "the address")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answers := make(chan got, streams)
	ask := func() {
		resp, err := client.Post("http://"+addr+chat, "application/json", strings.NewReader(streamed))
		if err != nil {
			answers <- got{err: err}
			return
		}
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		answers <- got{status: resp.StatusCode, body: string(raw), err: err}
	}
	arrived := func() bool {
		select {
		case <-e.Arrived():
			return true
		case a := <-answers:
			t.Logf("answered before the engine may: %d %s %v", a.status, a.body, a.err)
		case <-time.After(patience):
			t.Log("a call never came")
		}
		return false
	}
	eventually(t, "the model is served", func() bool { // known a moment before its backend is
		go ask()
		return arrived()
	})
	for range streams - 1 {
		go ask()
	}
	for range streams - 1 {
		if !arrived() {
			t.FailNow()
		}
	}
	end()
	eventually(t, "nobody gets in any more", func() bool {
		resp, err := client.Get("http://" + addr + "/health")
		if err == nil {
			resp.Body.Close()
		}
		return err != nil
	})
	select {
	case err := <-done:
		t.Fatalf("it has ended before its streams: %v", err)
	default:
	}
	close(gate)
	for range streams {
		if why := well(receive(t, answers, "an answer"), 60); why != "" {
			t.Error(why)
		}
	}
	if err := receive(t, done, "the end"); err != nil {
		t.Error(err)
	}
	rows, page := 0, store.Page{Limit: store.MaxPageLimit}
	list, _, err := db.ListUsage(t.Context(), "", time.Time{}, time.Time{}, page)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range list {
		if u.Stream && u.End == store.EndDone && tokens(u.CompletionTokens) == 60 {
			rows++
		}
	}
	if rows != streams {
		t.Errorf("%d rows of %d streams, %d in all", rows, streams, len(list))
	}
}

// endless answers whole calls at once, and begins streams that it does not end before their client leaves.
func endless(t *testing.T) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, err := io.ReadAll(r.Body)
		if err != nil || r.Method == http.MethodGet {
			return
		}
		if !strings.Contains(string(raw), `"stream":true`) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"model":"m","choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":3,"completion_tokens":2}}`) //nolint:errcheck // a test server
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for range 2 {
			fmt.Fprint(w, "data: {\"model\":\"m\",\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n") //nolint:errcheck // a test server
			w.(http.Flusher).Flush()                                                                    //nolint:forcetypeassert // of net/http
		}
		<-r.Context().Done()
	}))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// TestP86_ManyRequestsLeaveNothingBehind: of many requests one in ten is a stream whose client leaves in the middle. No
// goroutine, no counter, no place at a limit and no memory is left of them. The long form has a million.
func TestP86_ManyRequestsLeaveNothingBehind(t *testing.T) { // not parallel: it counts goroutines and memory
	requests := 3000
	if long() {
		requests = 1_000_000
	}
	// A place at the limit that is not given back would be missed soon: more are at work than could be lost.
	const workers = 16
	b, _ := limited(t, store.ScopeKey, store.Caps{Concurrency: n(2 * workers), TokensPerMonth: n(1 << 50)}, of{addrs: []string{strings.TrimPrefix(endless(t).URL, "http://")}})
	transport := &http.Transport{MaxIdleConnsPerHost: workers}
	client := &http.Client{Transport: transport}
	one := func(leaves bool) error {
		ctx, leave := context.WithCancel(context.Background())
		defer leave()
		body := whole
		if leaves {
			body = streamed
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.url+chat, strings.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+secret)
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d", resp.StatusCode)
		}
		if leaves {
			_, err = bufio.NewReader(resp.Body).ReadString('\n')
			return err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
	// run sends so many requests, and waits for all of their rows.
	run := func(count int) {
		t.Helper()
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				for i := w; i < count; i += workers {
					if err := one(i%10 == 0); err != nil {
						t.Errorf("request %d: %v", i, err)
						return
					}
				}
			})
		}
		done, gone := 0, 0
		for range count {
			switch row := b.row(); row.End {
			case store.EndDone:
				done++
			case store.EndClientGone:
				gone++
			default:
				t.Fatalf("%+v", row)
			}
		}
		wg.Wait()
		if gone > (count+9)/10 || gone < count/20 { // one that leaves while its last event is on its way has had all
			t.Errorf("%d of %d clients left", gone, count)
		}
	}
	// rest waits until what ends on its own has ended, and gives the goroutines and the memory that are left.
	rest := func() (goroutines int, bytes uint64) {
		t.Helper()
		transport.CloseIdleConnections()
		eventually(t, "nothing is in flight", func() bool {
			if told(t, b.h.metrics.inFlight) != 0 {
				return false
			}
			for _, s := range b.h.table.Services() {
				for _, backend := range s.Pool.Status() {
					if backend.InFlight != 0 || backend.Outstanding != 0 {
						return false
					}
				}
			}
			return true
		})
		least := runtime.NumGoroutine()
		for range 100 { // until it falls no further
			runtime.Gosched()
			time.Sleep(2 * time.Millisecond)
			least = min(least, runtime.NumGoroutine())
		}
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return least, m.HeapAlloc
	}
	run(max(500, requests/20))
	goroutines, bytes := rest()
	run(requests)
	after, bytesAfter := rest()
	t.Logf("%d requests: %d goroutines before, %d after; %d KiB before, %d KiB after", requests, goroutines, after, bytes>>10, bytesAfter>>10)
	// Connections to engines that wait to be used again are as many as were ever at work at the same time.
	if after > goroutines+2*workers {
		t.Errorf("%d goroutines after %d requests, %d before", after, requests, goroutines)
	}
	if grown := int64(bytesAfter) - int64(bytes); grown > 4<<20 {
		t.Errorf("%d bytes more after %d requests", grown, requests)
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
