package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/embedded"
	"github.com/heteroflow/heteroflow/internal/testkit/postgres"
	"github.com/heteroflow/heteroflow/placement-service/rest"
	"github.com/heteroflow/heteroflow/placement-service/server"
)

func TestMain(m *testing.M) { os.Exit(postgres.Main(m)) }

const patience = 30 * time.Second

// eventually waits for a condition and says what was missing.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// logger writes warnings to the test's output when it fails and is verbose.
func logger(t testing.TB) hclog.Logger {
	if os.Getenv("HETEROFLOW_TEST_LOG") == "" {
		return hclog.NewNullLogger()
	}
	return hclog.New(&hclog.LoggerOptions{Name: t.Name(), Level: hclog.LevelFromString(os.Getenv("HETEROFLOW_TEST_LOG")), Output: os.Stderr})
}

// startEngine runs an embedded engine on a listener until the test ends, or until stop is called.
func startEngine(t testing.TB, listener net.Listener, dir string, nodes []embedded.SimNode) (e *embedded.Engine, stop func()) {
	t.Helper()
	e, err := embedded.New(embedded.Config{SimNodes: nodes, Listener: listener, DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("engine ended with %v", err)
			}
		})
	}
	t.Cleanup(stop)
	select {
	case <-e.Ready():
	case err := <-done:
		done <- err
		t.Fatalf("engine did not start: %v", err)
	}
	return e, stop
}

// service is a running placement service.
type service struct {
	t      testing.TB
	addr   string // http://127.0.0.1:port
	key    string // the first admin key
	stderr *bytes.Buffer
	stop   func()
	nomad  *api.Client // through the service
}

type option func(*server.Config)

func anonymous(role string) option { return func(c *server.Config) { c.Anonymous = role } }

func database(url string) option { return func(c *server.Config) { c.DatabaseURL = url } }

// startService runs a placement service in front of a Nomad until the test ends, or until stop is called.
func startService(t testing.TB, nomadAddr string, opts ...option) *service {
	t.Helper()
	s := &service{t: t, stderr: &bytes.Buffer{}}
	listening := make(chan string, 1)
	c := server.Config{
		Addr: "127.0.0.1:0", DatabaseURL: "sqlite://" + filepath.Join(t.TempDir(), "state.db"), NomadAddr: nomadAddr,
		Anonymous: "admin", Stderr: s.stderr, Log: logger(t), Listening: func(addr string) { listening <- addr },
	}
	for _, o := range opts {
		o(&c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx, c) }()
	var once sync.Once
	s.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("service ended with %v", err)
			}
		})
	}
	t.Cleanup(s.stop)
	select {
	case addr := <-listening:
		s.addr = "http://" + addr
	case err := <-done:
		done <- err
		t.Fatalf("service did not start: %v", err)
	}
	eventually(t, "the service opens its database", func() bool {
		status, _ := s.get("/api/v1/info")
		return status != http.StatusServiceUnavailable
	})
	if found := regexp.MustCompile(`hf-admin-\S+`).FindString(s.stderr.String()); found != "" {
		s.key = found
	}
	client, err := api.NewClient(&api.Config{Address: s.addr})
	if err != nil {
		t.Fatal(err)
	}
	s.nomad = client
	return s
}

// ready waits until the service knows the cluster.
func (s *service) ready(cards int) *service {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("the service sees %d cards", cards), func() bool {
		status, _ := s.get("/ready")
		return status == http.StatusOK && len(s.gpus()) == cards
	})
	return s
}

func (s *service) do(method, path, token string, body any) (int, http.Header, []byte) {
	s.t.Helper()
	var reader io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		reader = strings.NewReader(b)
	default:
		text, err := json.Marshal(b)
		if err != nil {
			s.t.Fatal(err)
		}
		reader = bytes.NewReader(text)
	}
	req, err := http.NewRequest(method, s.addr+path, reader)
	if err != nil {
		s.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if reader != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	if !strings.HasPrefix(path, "/v1/") {
		checkContract(s.t, req, resp, text)
	}
	return resp.StatusCode, resp.Header, text
}

func (s *service) get(path string) (int, []byte) {
	s.t.Helper()
	status, _, body := s.do(http.MethodGet, path, s.key, nil)
	return status, body
}

// contract finds the routes of openapi.yaml.
var contract = sync.OnceValues(func() (routers.Router, error) {
	doc, err := rest.Document()
	if err != nil {
		return nil, err
	}
	return gorillamux.NewRouter(doc)
})

// checkContract holds an answer against openapi.yaml.
func checkContract(t testing.TB, req *http.Request, resp *http.Response, body []byte) {
	t.Helper()
	router, err := contract()
	if err != nil {
		t.Fatal(err)
	}
	route, params, err := router.FindRoute(req)
	if err != nil || route.Operation.OperationID == "getOpenAPI" {
		return // not of the contract, which a test may ask for, or a text that the checker would read as an object
	}
	err = openapi3filter.ValidateResponse(context.Background(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: req, PathParams: params, Route: route},
		Status:                 resp.StatusCode, Header: resp.Header, Body: io.NopCloser(bytes.NewReader(body)),
		Options: &openapi3filter.Options{IncludeResponseStatus: true, AuthenticationFunc: openapi3filter.NoopAuthenticationFunc},
	})
	if err != nil {
		t.Errorf("%s %s does not keep the contract: %v", req.Method, req.URL.Path, err)
	}
}

// tree decodes a JSON answer of status 200.
func (s *service) tree(path string) map[string]any {
	s.t.Helper()
	status, body := s.get(path)
	if status != http.StatusOK {
		s.t.Fatalf("GET %s: %d %s", path, status, body)
	}
	var out map[string]any
	if err := json.Unmarshal(body, &out); err != nil {
		s.t.Fatalf("GET %s: %v in %s", path, err, body)
	}
	return out
}

func (s *service) items(path string) []map[string]any {
	s.t.Helper()
	list, _ := s.tree(path)["items"].([]any)
	out := make([]map[string]any, len(list))
	for i, item := range list {
		out[i] = item.(map[string]any)
	}
	return out
}

func (s *service) gpus() []map[string]any { return s.items("/api/v1/gpus") }

// usedUnits sums what the ledger and the allocations hold.
func (s *service) usedUnits() int {
	used := 0
	for _, n := range s.items("/api/v1/nodes") {
		for _, p := range n["pools"].([]any) {
			used += int(p.(map[string]any)["units"].(map[string]any)["used"].(float64))
		}
	}
	return used
}

// share is a job that asks for count cards with memory each, in n allocations.
func share(id string, n int, memory string, change ...func(*api.Job)) *api.Job {
	block := map[string]any{"count": 1}
	if memory != "" {
		block["memory"] = memory
	}
	task := api.NewTask("main", "heteroflow")
	task.Config = map[string]any{"image": "example/app:1", "accelerator": []any{block}}
	task.Resources = &api.Resources{CPU: new(100), MemoryMB: new(64)}
	job := api.NewServiceJob(id, id, "global", 50).AddDatacenter("dc1").AddTaskGroup(api.NewTaskGroup("g", n).AddTask(task))
	for _, c := range change {
		c(job)
	}
	return job
}

// plain is a job that asks for no accelerator.
func plain(id string) *api.Job {
	return share(id, 1, "", func(j *api.Job) { delete(j.TaskGroups[0].Tasks[0].Config, "accelerator") })
}

func (s *service) register(job *api.Job) *api.JobRegisterResponse {
	s.t.Helper()
	out, _, err := s.nomad.Jobs().Register(job, nil)
	if err != nil {
		s.t.Fatalf("register %s: %v", *job.ID, err)
	}
	return out
}

// running lists the running allocations of a job.
func (s *service) running(id string) []*api.AllocationListStub {
	s.t.Helper()
	stubs, _, err := s.nomad.Jobs().Allocations(id, false, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	var out []*api.AllocationListStub
	for _, a := range stubs {
		if a.ClientStatus == api.AllocClientStatusRunning && a.DesiredStatus == api.AllocDesiredStatusRun {
			out = append(out, a)
		}
	}
	return out
}

func (s *service) runs(id string, n int) {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("%d allocations of %s run", n, id), func() bool { return len(s.running(id)) == n })
}

// one is one node with one shared card of 80 GiB.
func one() []embedded.SimNode {
	return embedded.SimNodes(1, 1, accel.NVIDIA, "A100-SXM4-80GB", 81920, accel.Shared)
}

// start runs an engine and a service in front of it.
func start(t testing.TB, nodes []embedded.SimNode, opts ...option) (*service, *embedded.Engine) {
	t.Helper()
	cards := 0
	for _, n := range nodes {
		cards += len(n.Cards)
	}
	e, _ := startEngine(t, nil, "", nodes)
	return startService(t, e.Addr(), opts...).ready(cards), e
}
