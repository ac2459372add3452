package server

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/gateway/balance"
	"github.com/heteroflow/heteroflow/gateway/discover"
	"github.com/heteroflow/heteroflow/gateway/hold"
	"github.com/heteroflow/heteroflow/gateway/limit"
	"github.com/heteroflow/heteroflow/gateway/mockengine"
	"github.com/heteroflow/heteroflow/gateway/relay"
	"github.com/heteroflow/heteroflow/gateway/route"
	"github.com/heteroflow/heteroflow/internal/auth"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/store"
)

// patience bounds waits for what must come; a test that passes never waits for it.
const patience = 30 * time.Second

// bench is the gateway between a client and mock engines, with its rows of usage as they are recorded.
type bench struct {
	tb    testing.TB
	url   string
	addr  string
	rows  chan store.Usage
	h     *handler
	front front

	clock clock.Clock
}

// of is how a bench is set up.
type of struct {
	engines []*mockengine.Engine
	addrs   []string // of backends that are no mock engines
	tags    []string // of the service, besides the model "m"
	rules   relay.Rules
	clock   clock.Clock
	maxBody int64
	keys    identifier // calls without a key are served when there is none
	rows    []store.Endpoint
	queues  func(string, *balance.Pool) *hold.Queue
	// registry takes the place of one that has the engines and addresses.
	registry discover.Registry
	log      hclog.Logger
	limits   *limit.Limiter
}

type fixed struct {
	offers    map[string]discover.Offer
	instances []discover.Instance
}

func (f *fixed) Names(ctx context.Context, index uint64) (map[string]discover.Offer, uint64, error) {
	if index > 0 {
		<-ctx.Done()
	}
	return f.offers, 1, nil
}

func (f *fixed) Live(ctx context.Context, _ string, index uint64) ([]discover.Instance, uint64, error) {
	if index > 0 {
		<-ctx.Done()
	}
	return f.instances, 1, nil
}

type rows []store.Endpoint

func (r rows) ListEndpoints(context.Context, string, store.Page) ([]store.Endpoint, string, error) {
	return r, "", nil
}

type recorded chan store.Usage

func (r recorded) Record(u store.Usage) { r <- u }

func setUp(tb testing.TB, o of) *bench {
	tb.Helper()
	if o.clock == nil {
		o.clock = clock.System()
	}
	if o.maxBody == 0 {
		o.maxBody = defaultMaxBody
	}
	if o.log == nil {
		o.log = hclog.NewNullLogger()
	}
	offer := discover.Offer{Models: []string{"m"}}
	for _, tag := range o.tags {
		switch key, value, _ := strings.Cut(tag, "="); key + "=" {
		case discover.ServedTag:
			offer.Served = value
		case discover.PathTag:
			offer.Paths = append(offer.Paths, value)
		case discover.ModelTag:
			offer.Models = append(offer.Models, value)
		case discover.EngineTag:
			offer.Engine = value
		}
	}
	f := &fixed{offers: map[string]discover.Offer{"llm": offer}}
	for _, e := range o.engines {
		o.addrs = append(o.addrs, e.Addr)
	}
	for i, addr := range o.addrs {
		f.instances = append(f.instances, discover.Instance{ID: fmt.Sprintf("e%d", i), Addr: addr})
	}
	var registry discover.Registry = f
	if o.registry != nil {
		registry = o.registry
	}
	watcher := discover.NewWatcher(registry, hclog.NewNullLogger())
	table := route.NewTable(rows(o.rows), watcher, o.queues, o.clock, hclog.NewNullLogger())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- watcher.Run(ctx) }()
	go func() { ended <- table.Run(ctx) }()
	b := &bench{tb: tb, rows: make(chan store.Usage, 100_000), clock: o.clock}
	b.h = &handler{
		table: table, relay: relay.New("bench"), rules: o.rules, keys: o.keys, limits: o.limits, meter: recorded(b.rows), metrics: newMetrics(),
		log: o.log, maxBody: o.maxBody, anonymous: o.keys == nil, ready: func(context.Context) []string { return nil },
	}
	b.front, b.addr = serve(tb, b.h.routes())
	tb.Cleanup(func() {
		cancel()
		<-ended
		<-ended
	})
	b.url = "http://" + b.addr
	eventually2(tb, "the table has the engines", func() bool {
		services, _ := watcher.Services()
		_, ok := table.Lookup("m")
		if o.registry != nil {
			return ok
		}
		if !ok || len(services) == 0 {
			return false
		}
		return len(services[0].Instances) == len(f.instances)
	})
	return b
}

// standardFront has the suite run on net/http's server; otherwise it runs on our own.
var standardFront = os.Getenv("HETEROFLOW_GATEWAY_SERVER") == "net/http"

// serve answers connections until the test ends.
func serve(tb testing.TB, h http.Handler) (f front, addr string) {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	f = newFront(standardFront, h, hclog.NewNullLogger())
	ended := make(chan error, 1)
	go func() { ended <- f.Serve(l) }()
	tb.Cleanup(func() {
		if err := f.Close(); err != nil {
			tb.Errorf("close connections: %v", err)
		}
		late, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := f.Shutdown(late); err != nil {
			tb.Errorf("requests that do not end: %v", err)
		}
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			tb.Errorf("the end of serving: %v", err)
		}
	})
	return f, l.Addr().String()
}

// eventually2 is eventually for benchmarks too.
func eventually2(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			tb.Fatalf("never came true: %s", what)
		}
	}
}

// got is an answer as the client has it.
type got struct {
	status int
	header http.Header
	body   string
	err    error // of reading the body
}

func (b *bench) call(method, path, kind string, body io.Reader, header ...string) got {
	b.tb.Helper()
	req, err := http.NewRequest(method, b.url+path, body)
	if err != nil {
		b.tb.Fatal(err)
	}
	req.Header.Set("Content-Type", kind)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return got{err: err}
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	return got{resp.StatusCode, resp.Header, string(raw), err}
}

func (b *bench) post(path, body string, header ...string) got {
	b.tb.Helper()
	return b.call(http.MethodPost, path, "application/json", strings.NewReader(body), header...)
}

// row is the next row of usage.
func (b *bench) row() store.Usage {
	b.tb.Helper()
	return receive(b.tb, b.rows, "a row of usage")
}

func receive[T any](tb testing.TB, from <-chan T, what string) T {
	tb.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		tb.Fatalf("%s never came", what)
		panic("unreachable")
	}
}

const (
	chat     = "/v1/chat/completions"
	whole    = `{"model":"m","messages":[{"role":"user","content":"hi"}]}`
	streamed = `{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`
)

// dial opens a connection of its own and sends a call.
func (b *bench) dial(path, body string) *net.TCPConn {
	b.tb.Helper()
	c, err := net.Dial("tcp", b.addr)
	if err != nil {
		b.tb.Fatal(err)
	}
	b.tb.Cleanup(func() { c.Close() })
	if _, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body); err != nil {
		b.tb.Fatal(err)
	}
	return c.(*net.TCPConn) //nolint:forcetypeassert // of Dial
}

// answerOf reads an answer from a connection.
func (b *bench) answerOf(c net.Conn) got {
	b.tb.Helper()
	r := bufio.NewReader(c)
	for {
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return got{err: err}
		}
		if resp.StatusCode < http.StatusOK {
			continue // an interim response
		}
		raw, err := io.ReadAll(resp.Body)
		return got{resp.StatusCode, resp.Header, string(raw), err}
	}
}

// no identifies nobody.
type no struct{}

func (no) Identify(context.Context, string) (auth.Identity, error) {
	return auth.Identity{}, auth.ErrBadCredentials
}

// tokens are a count that is known.
func tokens(n *int64) int64 {
	if n == nil {
		return -1
	}
	return *n
}

// logged collects what is logged.
func logged() (hclog.Logger, *bytes.Buffer) {
	var out bytes.Buffer
	return hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, Output: &out}), &out
}

func backendAt(addr string) []balance.Backend { return []balance.Backend{{ID: "self", Addr: addr}} }
