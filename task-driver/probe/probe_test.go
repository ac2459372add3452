package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// fake is a task whose answers a test chooses.
type fake struct {
	mu   sync.Mutex
	addr string
	exec func(ctx context.Context) (int, error)
}

func (f *fake) Address(context.Context, string) (string, error) {
	if f.addr == "" {
		return "", errors.New("no such port")
	}
	return f.addr, nil
}

func (f *fake) Exec(ctx context.Context, _ []string) (int, error) {
	f.mu.Lock()
	do := f.exec
	f.mu.Unlock()
	return do(ctx)
}

func (f *fake) Health(context.Context) error {
	if f.addr == "" {
		return errors.New("unhealthy: said so")
	}
	return nil
}

func (f *fake) set(do func(ctx context.Context) (int, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.exec = do
}

func exits(code int) func(context.Context) (int, error) {
	return func(context.Context) (int, error) { return code, nil }
}

func hangs(ctx context.Context) (int, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

func check(kind string) *Check {
	return &Check{Type: kind, Port: "http", Path: "/health", Command: []string{"check"}, Interval: 10 * time.Second, Timeout: 5 * time.Second, Failures: 3}
}

// told collects what people are told.
type told struct {
	mu   sync.Mutex
	text []string
}

func (t *told) tell(text string, notes map[string]string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, fmt.Sprint(text, notes))
}

func (t *told) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(t.text, "\n")
}

func TestAsk(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/health":
		case "/loading":
			http.Error(w, `{"error":"Loading model"}`, http.StatusServiceUnavailable)
		case "/moved":
			http.Redirect(w, r, "/health", http.StatusFound)
		case "/endless":
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		case "/hangs":
			<-r.Context().Done()
		}
	}))
	t.Cleanup(s.Close)
	secure := httptest.NewTLSServer(s.Config.Handler)
	t.Cleanup(secure.Close)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	addr := s.Listener.Addr().String()
	for name, c := range map[string]struct {
		kind, path, addr string
		exec             func(context.Context) (int, error)
		want             string // empty: it passes
	}{
		"http":              {HTTP, "/health", addr, nil, ""},
		"http, loading":     {HTTP, "/loading", addr, nil, `/loading answers 503: {"error":"Loading model"}`},
		"http, redirect":    {HTTP, "/moved", addr, nil, "answers 302"},
		"http, endless":     {HTTP, "/endless", addr, nil, ""},
		"http, hangs":       {HTTP, "/hangs", addr, nil, "no answer within 200ms"},
		"http, closed":      {HTTP, "/health", closed.Addr().String(), nil, "refused"},
		"http, no port":     {HTTP, "/health", "", nil, "no such port"},
		"https, own certif": {HTTPS, "/health", secure.Listener.Addr().String(), nil, ""},
		"tcp":               {TCP, "", addr, nil, ""},
		"tcp, closed":       {TCP, "", closed.Addr().String(), nil, "refused"},
		"image":             {Image, "", addr, nil, ""},
		"image, sick":       {Image, "", "", nil, "unhealthy: said so"},
		"exec":              {Exec, "", "", exits(0), ""},
		"exec, fails":       {Exec, "", "", exits(3), "check exits with 3"},
		"exec, hangs":       {Exec, "", "", hangs, "no answer within 200ms"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := check(c.kind)
			k.Path, k.Timeout = c.path, 10*time.Second
			if strings.Contains(c.want, "200ms") {
				k.Timeout = 200 * time.Millisecond
			}
			err := k.ask(context.Background(), &fake{addr: c.addr, exec: c.exec})
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// run watches a fake task in a bubble of time of its own.
func run(t *testing.T, plan Plan, f *fake, script func(told *told, w *Watch)) (why, said string) {
	t.Helper()
	said1 := &told{}
	synctest.Test(t, func(*testing.T) {
		ctx, stop := context.WithCancel(context.Background())
		w := New(plan, time.Now(), f, said1.tell)
		ended := make(chan string)
		go func() { ended <- w.Run(ctx) }()
		script(said1, w)
		synctest.Wait()
		select {
		case why = <-ended:
		default:
			stop()
			why = <-ended
		}
		stop()
	})
	return why, said1.String()
}

func TestWatch_SlowLoadThenReadyThenHangs(t *testing.T) {
	t.Parallel()
	f := &fake{exec: exits(1)}
	why, said := run(t, Plan{Ready: check(Exec), Live: check(Exec), Grace: 30 * time.Minute}, f, func(_ *told, w *Watch) {
		time.Sleep(25 * time.Minute)
		if w.Ready() {
			t.Error("ready while it loads")
		}
		f.set(exits(0))
		time.Sleep(time.Minute)
		if !w.Ready() || w.Attributes()["ready"] != "true" {
			t.Error("not ready")
		}
		f.set(hangs)
		time.Sleep(time.Minute)
	})
	if !strings.HasPrefix(why, "not alive, 3 checks failed: no answer within 5s") {
		t.Errorf("ended for %q", why)
	}
	if !strings.Contains(said, "Ready after 25m0s") && !strings.Contains(said, "Ready after 25m10s") {
		t.Errorf("told:\n%s", said)
	}
}

func TestWatch_NeverReady(t *testing.T) {
	t.Parallel()
	f := &fake{exec: exits(1)}
	why, _ := run(t, Plan{Ready: check(Exec), Grace: 10 * time.Minute}, f, func(*told, *Watch) { time.Sleep(11 * time.Minute) })
	if why != "not ready 10m0s after its start: check exits with 1" {
		t.Errorf("ended for %q", why)
	}
}

func TestWatch_ComesAndGoes(t *testing.T) {
	t.Parallel()
	f := &fake{exec: exits(0)}
	why, said := run(t, Plan{Ready: check(Exec), Grace: time.Minute}, f, func(*told, *Watch) {
		time.Sleep(time.Minute)
		f.set(exits(1))
		time.Sleep(time.Hour)
		f.set(exits(0))
		time.Sleep(time.Minute)
	})
	if why != "" || !strings.Contains(said, "Ready after 0s") || !strings.Contains(said, "Not ready: check exits with 1") || !strings.Contains(said, "Ready again") || strings.Count(said, "\n") != 2 {
		t.Errorf("ended for %q, told:\n%s", why, said)
	}
}

func TestWatch_ReportOnly(t *testing.T) {
	t.Parallel()
	f := &fake{exec: exits(0)}
	why, said := run(t, Plan{Live: check(Exec), Grace: time.Minute, Report: true}, f, func(*told, *Watch) {
		time.Sleep(time.Minute)
		f.set(exits(1))
		time.Sleep(time.Hour)
	})
	if why != "" || strings.Count(said, "should be restarted") != 1 {
		t.Errorf("ended for %q, told:\n%s", why, said)
	}
}

func TestWatch_LivenessAloneHasItsGrace(t *testing.T) {
	t.Parallel()
	f := &fake{exec: exits(1)}
	why, said := run(t, Plan{Live: check(Exec), Grace: time.Hour}, f, func(*told, *Watch) {
		time.Sleep(50 * time.Minute)
		f.set(exits(0))
		time.Sleep(time.Minute)
		f.set(exits(1))
		time.Sleep(15 * time.Second) // fewer failures than it takes
		f.set(exits(0))
		time.Sleep(time.Minute)
	})
	if why != "" || !strings.Contains(said, "Alive after 50m") {
		t.Errorf("ended for %q, told:\n%s", why, said)
	}
}

func TestWatch_FindsTheEngine(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			fmt.Fprint(w, `{"data":[{"id":"qwen","owned_by":"vllm"}]}`)
		case "/version":
			fmt.Fprint(w, `{"version":"0.10.1"}`)
		}
	}))
	t.Cleanup(s.Close)
	said := &told{}
	w := New(Plan{Ready: check(HTTP), Grace: time.Minute}, time.Now(), &fake{addr: s.Listener.Addr().String()}, said.tell)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan string)
	go func() { ended <- w.Run(ctx) }()
	for deadline := time.Now().Add(20 * time.Second); w.Attributes()["engine"] == "" && time.Now().Before(deadline); {
		time.Sleep(5 * time.Millisecond)
	}
	stop()
	if why := <-ended; why != "" {
		t.Errorf("ended for %q", why)
	}
	if a := w.Attributes(); a["engine"] != "vllm" || a["engine_version"] != "0.10.1" || a["models"] != "qwen" || a["ready"] != "true" {
		t.Errorf("attributes are %v", a)
	}
	if !strings.Contains(said.String(), "Serving: vllm 0.10.1 with qwen") {
		t.Errorf("told:\n%s", said)
	}
}

// Whatever a task answers: it is never ended before so many failures one behind another, nor in the grace before it first
// answered, nor when only reports are wanted; and it is ended at last when it fails for good.
func TestMachine_Properties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		plan := Plan{Grace: time.Duration(rapid.IntRange(0, 20).Draw(t, "grace")) * time.Second, Report: rapid.Bool().Draw(t, "report")}
		failures := rapid.IntRange(1, 4).Draw(t, "failures")
		which := rapid.IntRange(1, 3).Draw(t, "checks")
		if which&1 > 0 {
			plan.Ready = &Check{Failures: failures}
		}
		if which&2 > 0 {
			plan.Live = &Check{Failures: failures}
		}
		start := time.Unix(1000, 0)
		m := machine{plan: plan, start: start}
		began, readyRow, liveRow := false, 0, 0
		answers := rapid.SliceOfN(rapid.IntRange(0, 3), 1, 60).Draw(t, "answers")
		for i, a := range append(answers, []int{3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3}...) {
			now := start.Add(time.Duration(i) * time.Second)
			say := func(bit int) error {
				if a&bit > 0 {
					return errors.New("no")
				}
				return nil
			}
			ended := func(s step, row int) bool {
				if s.end == "" {
					return false
				}
				if plan.Report || row < failures || !began && now.Sub(start) < plan.Grace {
					t.Fatalf("ended at %s after %d failures: %s (%+v)", now.Sub(start), row, s.end, plan)
				}
				return true
			}
			if plan.Ready != nil {
				err := say(1)
				if readyRow++; err == nil {
					readyRow = 0
				}
				s := m.answerReady(now, err)
				began = began || err == nil
				if s.ready != (s.event != "" && strings.HasPrefix(s.event, "Ready")) {
					t.Fatalf("%+v", s)
				}
				if ended(s, readyRow) {
					return
				}
			}
			if plan.Live != nil && m.asksLive() {
				err := say(2)
				if liveRow++; err == nil {
					liveRow = 0
				}
				s := m.answerLive(now, err)
				began = began || err == nil
				if ended(s, liveRow) {
					return
				}
			}
		}
		if !plan.Report && (plan.Live != nil && m.asksLive() || plan.Ready != nil && !began) {
			t.Fatalf("a task that fails for good was not ended (%+v)", plan)
		}
	})
}
