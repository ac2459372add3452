package proxy

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/auth"
	"github.com/heteroflow/heteroflow/internal/nomadapi"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/identity"
	"github.com/heteroflow/heteroflow/placement-service/ledger"
	"github.com/heteroflow/heteroflow/placement-service/submit"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

type fixed struct{ who identity.Who }

func (f fixed) Of(*http.Request) (identity.Who, error) { return f.who, nil }

var operator = identity.Who{Identity: auth.Identity{Role: auth.RoleAdmin, Kind: auth.KindAdmin, User: "op"}}

// front runs a proxy in front of a Nomad that is a test's own handler.
func front(t testing.TB, who identity.Who, nomad http.HandlerFunc) (addr string, db *store.Store) {
	t.Helper()
	behind := httptest.NewServer(nomad)
	t.Cleanup(behind.Close)
	client, err := nomadapi.New(nomadapi.Config{Addr: behind.URL, Token: "service-token"})
	if err != nil {
		t.Fatal(err)
	}
	db, err = store.Open(t.Context(), filepath.Join(t.TempDir(), "state.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	world := watch.NewWorld()
	sub := submit.New(submit.Config{
		Nomad: client, Store: db, World: world, Ledger: ledger.New(db), Log: hclog.NewNullLogger(),
		Engine: func() *engine.Engine { return engine.New(engine.Config{}) },
	})
	p, err := New(Config{Nomad: client, Store: db, Submit: sub, World: world, Who: fixed{who}, Log: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	return server.URL, db
}

func TestPass_FlushesEachLineAndUsesTheServicesToken(t *testing.T) {
	t.Parallel()
	next := make(chan struct{})
	addr, _ := front(t, operator, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Nomad-Token") != "service-token" || r.Header.Get("Authorization") != "" {
			t.Errorf("Nomad got the headers %v, want the service's token alone", r.Header)
		}
		if r.URL.RawQuery != "topic=Job&index=5" {
			t.Errorf("query is %q", r.URL.RawQuery)
		}
		for i := range 3 {
			fmt.Fprintf(w, "{\"Index\":%d}\n", i)
			w.(http.Flusher).Flush()
			<-next
		}
	})
	req, err := http.NewRequest(http.MethodGet, addr+"/v1/event/stream?topic=Job&index=5", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer hf-admin-secret")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for i := range 3 { // each line arrives before the next is written
		if !lines.Scan() || lines.Text() != fmt.Sprintf(`{"Index":%d}`, i) {
			t.Fatalf("line %d is %q, %v", i, lines.Text(), lines.Err())
		}
		next <- struct{}{}
	}
}

func TestPass_Upgrade(t *testing.T) {
	t.Parallel()
	var host string
	addr, _ := front(t, operator, func(w http.ResponseWriter, r *http.Request) {
		host = r.Host
		if r.Header.Get("Origin") != "http://"+r.Host {
			t.Errorf("Origin is %q and Host %q: Nomad refuses that", r.Header.Get("Origin"), r.Host)
		}
		conn, buf, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		line, err := buf.ReadString('\n')
		fmt.Fprint(conn, "got "+line)
		if err != nil {
			t.Error(err)
		}
	})
	conn, err := net.Dial("tcp", strings.TrimPrefix(addr, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET /v1/client/allocation/abc/exec?task=t HTTP/1.1\r\nHost: proxy.example\r\nOrigin: https://proxy.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("answer is %v, %v; want 101", resp, err)
	}
	fmt.Fprint(conn, "hello\n")
	if line, err := in.ReadString('\n'); err != nil || line != "got hello\n" {
		t.Errorf("over the upgraded connection came %q, %v", line, err)
	}
	if strings.HasPrefix(host, "proxy") {
		t.Errorf("Nomad got host %q, want its own", host)
	}
}

func TestList_PackedAnswersAreMerged(t *testing.T) {
	t.Parallel()
	addr, db := front(t, operator, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("X-Nomad-Index", "7")
		packed := gzip.NewWriter(w)
		fmt.Fprint(packed, `[{"ID":"runs","Namespace":"default","NewField":12345678901234567890}]`)
		if err := packed.Close(); err != nil {
			t.Error(err)
		}
	})
	_, err := db.PutJob(t.Context(), store.Job{
		Tenant: "default", Namespace: "default", ID: "waits", State: store.JobWaiting, Reason: "no room", Priority: 50,
		EvalID: "0", Spec: []byte(`{"Job":{"ID":"waits","Type":"batch","TaskGroups":[{"Name":"g","Count":3}]}}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodGet, addr+"/v1/jobs", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept-Encoding", "gzip")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	text := string(body)
	for _, want := range []string{`"runs"`, `12345678901234567890`, `"waits"`, `"pending"`, `"no room"`, `"Queued":3`} {
		if !strings.Contains(text, want) {
			t.Errorf("list has no %s: %s", want, text)
		}
	}
	if resp.Header.Get("X-Nomad-Index") != "7" || resp.Header.Get("Content-Encoding") != "" {
		t.Errorf("headers are %v", resp.Header)
	}
}

func TestPass_EncodedPathsDoNotGoRoundAdmission(t *testing.T) {
	t.Parallel()
	addr, _ := front(t, operator, func(_ http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			t.Errorf("%s %s reached Nomad unadmitted", r.Method, r.URL.EscapedPath())
		}
	})
	for _, path := range []string{"/v1/jobs", "/v1/job%73", "/v1/job/x", "/v1/jo%62/x", "/v1/job/a%2Fb", "/v1/job/x/%70lan"} {
		resp, err := http.Post(addr+path, "application/json", strings.NewReader(`{}`))
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%s is answered with %d, want 400", path, resp.StatusCode)
		}
	}
}

// TestRegister_RefusesIDsThatCannotBeReached: real Nomads run such a job and have no path to it.
func TestRegister_RefusesIDsThatCannotBeReached(t *testing.T) {
	t.Parallel()
	addr, _ := front(t, operator, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("%s %s reached Nomad", r.Method, r.URL.Path) })
	for _, id := range []string{"x/plan", "x/scale", "x/dispatch", "x/evaluations", "x/versions", ".", ".."} {
		if status, text := send(t, "PUT /v1/jobs", fmt.Sprintf(`{"Job":{"ID":%q,"TaskGroups":[]}}`, id), addr); status != http.StatusBadRequest || !strings.Contains(text, "choose another ID") {
			t.Errorf("id %s is answered with %d %s", id, status, text)
		}
	}
	for _, id := range []string{"plan", "a/b", "x/planned", "..x"} {
		if err := reachable(submit.Tree{"Job": submit.Tree{"ID": id}}); err != nil {
			t.Errorf("id %s: %v", id, err)
		}
	}
}

// TestPass_ClientThatLeaves: a client that closed its side of the connection is not told that all went well.
func TestPass_ClientThatLeaves(t *testing.T) {
	t.Parallel()
	addr, _ := front(t, operator, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	conn, err := net.Dial("tcp", strings.TrimPrefix(addr, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET /v1/nodes?index=7 HTTP/1.1\r\nHost: x\r\n\r\n")
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if out, err := io.ReadAll(conn); len(out) > 0 {
		t.Errorf("the answer is %q, %v", out, err)
	}
}

// TestOrigin_OtherPagesNeedAKey: where no credentials are asked for, a page that a user of the machine reads must not
// work with jobs, and no page's upgrade gets the origin of Nomad itself.
func TestOrigin_OtherPagesNeedAKey(t *testing.T) {
	t.Parallel()
	anonymous := identity.Who{Identity: auth.Identity{Role: auth.RoleAdmin, Kind: identity.KindAnonymous, User: "anonymous"}}
	for name, tc := range map[string]struct {
		who     identity.Who
		request string
		headers map[string]string
		status  int
		origin  string
	}{
		"a page's write":      {anonymous, "POST /v1/job/x/evaluate", map[string]string{"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, 403, ""},
		"a page's exec":       {anonymous, "GET /v1/client/allocation/a/exec", map[string]string{"Origin": "https://evil.example", "Upgrade": "websocket", "Connection": "Upgrade"}, 403, ""},
		"own page's write":    {anonymous, "POST /v1/job/x/evaluate", map[string]string{"Origin": "http://SELF", "Sec-Fetch-Site": "same-origin"}, 200, "http://NOMAD"},
		"no page":             {anonymous, "POST /v1/job/x/evaluate", nil, 200, ""},
		"a page that reads":   {anonymous, "GET /v1/nodes", map[string]string{"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, 200, "https://evil.example"},
		"a page with its key": {operator, "POST /v1/job/x/evaluate", map[string]string{"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, 200, "https://evil.example"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := ""
			addr, _ := front(t, tc.who, func(_ http.ResponseWriter, r *http.Request) {
				got = strings.ReplaceAll(r.Header.Get("Origin"), r.Host, "NOMAD")
			})
			method, path, _ := strings.Cut(tc.request, " ")
			req, err := http.NewRequest(method, addr+path, strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			for k, v := range tc.headers {
				req.Header.Set(k, strings.ReplaceAll(v, "SELF", strings.TrimPrefix(addr, "http://")))
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if resp.Body.Close(); resp.StatusCode != tc.status || got != tc.origin {
				t.Errorf("status %d, origin %q; want %d, %q", resp.StatusCode, got, tc.status, tc.origin)
			}
		})
	}
}

// TestNullEntries_AreRefused: real Nomads break the connection off on some of them, which would read as Nomad being
// away, and have the job tried again for ever.
func TestNullEntries_AreRefused(t *testing.T) {
	t.Parallel()
	addr, _ := front(t, operator, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("%s reached Nomad", r.URL.Path) })
	for job, path := range map[string]string{
		`"Constraints":[null]`:                             "/Job/Constraints/0",
		`"TaskGroups":[null]`:                              "/Job/TaskGroups/0",
		`"TaskGroups":[{"Networks":[{},null]}]`:            "/Job/TaskGroups/0/Networks/1",
		`"TaskGroups":[{"Tasks":[null]}]`:                  "/Job/TaskGroups/0/Tasks/0",
		`"TaskGroups":[{"tasks":[{"affinities":[null]}]}]`: "/Job/TaskGroups/0/Tasks/0/Affinities/0",
		`"TaskGroups":[{"Tasks":[{"Resources":{"Devices":[{"Constraints":[null]}]}}]}]`: "/Job/TaskGroups/0/Tasks/0/Resources/Devices/0/Constraints/0",
	} {
		for _, request := range []string{"PUT /v1/jobs", "PUT /v1/job/x/plan", "PUT /v1/validate/job"} {
			if status, text := send(t, request, `{"Job":{"ID":"x",`+job+`}}`, addr); status != http.StatusBadRequest || !strings.HasPrefix(text, path+" is null") {
				t.Errorf("%s of %s is answered with %d %s", request, job, status, text)
			}
		}
	}
}

func TestNeed(t *testing.T) {
	t.Parallel()
	for request, want := range map[string]string{
		"GET /v1/jobs": "read jobs", "PUT /v1/jobs": "write jobs", "POST /v1/jobs/parse": "read jobs", "DELETE /v1/job/x": "write jobs",
		"POST /v1/validate/job": "write jobs", "PUT /v1/allocation/x/stop": "write jobs", "GET /v1/client/fs/logs/x": "read jobs",
		"GET /v1/client/allocation/x/exec": "write jobs", "PUT /v1/client/allocation/x/restart": "write jobs", "GET /v1/job/x/action": "write jobs",
		"GET /v1/nodes": "read nodes", "PUT /v1/node/x/drain": "write settings", "GET /v1/acl/tokens": "read settings", "GET /v1/var/a": "read settings",
		"PUT /v1/operator/scheduler/configuration": "write settings", "GET /v1/operator/snapshot": "read settings", "PUT /v1/system/gc": "write settings",
		"GET /v1/agent/self": "read nodes", "GET /v1/agent/monitor": "read settings", "POST /v1/namespaces": "write settings", "POST /v1/search": "read jobs",
		"GET /v1/something/new": "read settings", "DELETE /v1/evaluations": "write settings",
	} {
		method, path, _ := strings.Cut(request, " ")
		verb, object := need(httptest.NewRequest(method, path, nil))
		if got := verb + " " + object; got != want {
			t.Errorf("%s needs %q, want %q", request, got, want)
		}
	}
}

func TestWarnings_AreAdded(t *testing.T) {
	t.Parallel()
	if got := submit.Warnings("1 warning:\n\n* old", "new"); !strings.Contains(got, "old") || !strings.Contains(got, "* new") {
		t.Errorf("warnings are %q", got)
	}
	if got, want := submit.Warnings("2 warning(s):\n\n* a\n* b", "c"), "3 warning(s):\n\n* a\n* b\n* c"; got != want {
		t.Errorf("warnings are %q, want %q", got, want)
	}
}

// FuzzReadTree: whatever the body, the answer is a tree or a 4xx with a sentence, and every known key has its own
// case afterwards.
func FuzzReadTree(f *testing.F) {
	for _, seed := range []string{
		`{"Job":{"ID":"x","TaskGroups":[{"Name":"g","Count":1,"Tasks":[{"Config":{"accelerator":[{"memory":"1GiB"}]}}]}]}}`,
		`{"job":{"id":"x","taskgroups":[{"tasks":[{"DRIVER":"docker"}]}]},"JOB":null}`, `{"Job":5}`, `[]`, `null`, `{"Job":{"ID":"x"`, `{"Job":{"Meta":{"a":1e400}}}`, "\xff",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		r := httptest.NewRequest(http.MethodPut, "/v1/jobs", bytes.NewReader(body))
		w := httptest.NewRecorder()
		tree, err := readTree(w, r, &api.JobRegisterRequest{})
		if err != nil {
			fail(w, r, err)
			if w.Code < 400 || w.Code > 499 || strings.TrimSpace(w.Body.String()) == "" {
				t.Fatalf("answer is %d %q for %v", w.Code, w.Body, err)
			}
			return
		}
		for key := range tree {
			if key != "Job" && strings.EqualFold(key, "Job") {
				t.Fatalf("key %q was left beside Job", key)
			}
		}
	})
}
