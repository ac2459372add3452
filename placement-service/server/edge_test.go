package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/httpx"
)

// What waits or streams ends when the service begins to stop; what is being answered is answered to its end.
func TestEdge_EndsWhatLasts(t *testing.T) {
	t.Parallel()
	lasting := []string{
		"/api/v1/intents?card=x&wait=30s", "/v1/jobs?index=7", "/v1/event/stream?topic=Job", "/v1/agent/monitor", "/v1/client/fs/logs/a?follow=true",
	}
	const short = "/v1/job/x?follow=false"
	inside, release := make(chan string, len(lasting)+1), make(chan struct{})
	e := newEdge(hclog.NewNullLogger())
	e.set(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inside <- r.URL.Path
		select {
		case <-r.Context().Done():
			if !errors.Is(context.Cause(r.Context()), httpx.ErrStopping) {
				w.WriteHeader(http.StatusTeapot)
			}
		case <-release:
			w.WriteHeader(http.StatusAccepted)
		}
	}))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- e.serve(ctx, listener) }()
	type result struct {
		path   string
		status int
		err    error
	}
	results := make(chan result, len(lasting)+1)
	for _, path := range append(lasting, short) {
		go func() {
			resp, err := http.Get("http://" + listener.Addr().String() + path)
			if err != nil {
				results <- result{path: path, err: err}
				return
			}
			results <- result{path, resp.StatusCode, resp.Body.Close()}
		}()
	}
	for range len(lasting) + 1 {
		<-inside
	}
	stop()
	for range lasting {
		if got := <-results; got.err != nil || got.status != http.StatusOK || got.path == short {
			t.Errorf("%s: %d, %v", got.path, got.status, got.err)
		}
	}
	close(release)
	if got := <-results; got.path != short || got.err != nil || got.status != http.StatusAccepted {
		t.Errorf("%s: %d, %v", got.path, got.status, got.err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}
