package nomadapi_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/heteroflow/heteroflow/internal/nomadapi"
)

func client(t *testing.T, handler http.HandlerFunc) *nomadapi.Client {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	c, err := nomadapi.New(nomadapi.Config{Addr: s.URL, Token: "tok"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestErrors_TellAnswersFromTrouble(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status                         int
		body                           string
		wantAnswer, wantGone, wantDeny bool
	}{
		"not found":       {404, "job not found", true, true, false},
		"denied":          {403, "Permission denied", true, false, true},
		"invalid job":     {500, "1 error occurred: Missing job datacenters", true, false, false},
		"no leader":       {500, "No cluster leader", false, false, false},
		"gateway":         {502, "bad gateway", false, false, false},
		"too many":        {429, "", false, false, false},
		"leader election": {500, "rpc error: leadership lost while committing log", false, false, false},
	} {
		_, err := client(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(c.status)
			fmt.Fprint(w, c.body)
		}).Job(t.Context(), "default", "a/b")
		if err == nil || nomadapi.IsAnswer(err) != c.wantAnswer || nomadapi.IsNotFound(err) != c.wantGone || nomadapi.IsDenied(err) != c.wantDeny {
			t.Errorf("%s: %v is answer %v, not found %v, denied %v", name, err, nomadapi.IsAnswer(err), nomadapi.IsNotFound(err), nomadapi.IsDenied(err))
		}
	}
	c, err := nomadapi.New(nomadapi.Config{Addr: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Ping(t.Context()); err == nil || nomadapi.IsAnswer(err) {
		t.Errorf("a Nomad that is away answers %v", err)
	}
}

func TestJob_KeepsIDAndNumbers(t *testing.T) {
	t.Parallel()
	job, err := client(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.EscapedPath() != "/v1/job/a%2Fb" || r.URL.Query().Get("namespace") != "ns" || r.Header.Get("X-Nomad-Token") != "tok" {
			t.Errorf("request is %s with %v", r.URL, r.Header)
		}
		fmt.Fprint(w, `{"SubmitTime":1764440000123456789}`)
	}).Job(t.Context(), "ns", "a/b")
	if err != nil || fmt.Sprint(job["SubmitTime"]) != "1764440000123456789" {
		t.Errorf("job is %v, %v", job, err)
	}
}

func TestEvents_HandlesEachLineAndTellsTheEnd(t *testing.T) {
	t.Parallel()
	c := client(t, func(w http.ResponseWriter, r *http.Request) {
		if got := r.URL.Query(); got.Get("index") != "7" || len(got["topic"]) != 2 || got.Get("namespace") != "*" {
			t.Errorf("query is %v", got)
		}
		fmt.Fprintln(w, `{}`)
		fmt.Fprintln(w, `{"Index":8,"Events":[{"Topic":"Allocation","Key":"a","Index":8,"Payload":{"Allocation":{"ID":"a","ClientStatus":"running"}}},{"Topic":"Job","Key":"j","Payload":{}}]}`)
	})
	var batches []nomadapi.Batch
	err := c.Events(t.Context(), 7, []string{"Allocation", "Job"}, func(b nomadapi.Batch) error {
		batches = append(batches, b)
		return nil
	})
	if !errors.Is(err, io.EOF) || len(batches) != 2 {
		t.Fatalf("got %v and %v", batches, err)
	}
	if a, err := batches[1].Events[0].Allocation(); err != nil || a.ClientStatus != "running" {
		t.Errorf("allocation is %+v, %v", a, err)
	}
	if _, err := batches[1].Events[1].Evaluation(); err == nil {
		t.Error("an event without evaluation gave one")
	}
}

func FuzzDecodeTree(f *testing.F) {
	f.Add([]byte(`{"a":1e9,"b":[null,{"c":12345678901234567890}]}`))
	f.Add([]byte(`{} {}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var tree nomadapi.Tree
		if err := nomadapi.DecodeTree(body, &tree); err == nil && len(body) == 0 {
			t.Fatal("nothing was decoded from nothing")
		}
	})
}
