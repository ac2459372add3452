//go:build linux

package main

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// watcher stands between the driver and a container engine and notes how long the engine takes for each call.
type watcher struct {
	Host string

	mu    sync.Mutex
	calls []call
}

// call is one answered request.
type call struct {
	line       string // "METHOD /path" without the API's version and without ids
	begun, end time.Time
}

var (
	apiVersion  = regexp.MustCompile(`^/v[0-9.]+`)
	containerID = regexp.MustCompile(`/[0-9a-f]{12,64}`)
)

// watchEngine puts a watcher before the engine at host (unix:///…).
func watchEngine(b *testing.B, engine string) *watcher {
	b.Helper()
	dir, err := os.MkdirTemp("", "hfw") // a benchmark's own folder may be longer than the path of a socket
	if err != nil {
		b.Fatal(err)
	}
	socket := filepath.Join(dir, "w.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		b.Fatal(err)
	}
	w := &watcher{Host: "unix://" + socket}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "engine"})
	proxy.FlushInterval = -1                    // output of containers is passed on as it comes
	proxy.ErrorLog = log.New(io.Discard, "", 0) // a stream that its reader leaves is no error
	proxy.Transport = &http.Transport{MaxIdleConnsPerHost: 100, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", strings.TrimPrefix(engine, "unix://"))
	}}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		c := call{line: r.Method + " " + containerID.ReplaceAllString(apiVersion.ReplaceAllString(r.URL.Path, ""), "/ID"), begun: time.Now()}
		defer func() { // also when the driver has gone, of which the proxy makes a panic
			c.end = time.Now()
			w.mu.Lock()
			defer w.mu.Unlock()
			w.calls = append(w.calls, c)
		}()
		proxy.ServeHTTP(rw, r)
	})}}
	server.Start()
	b.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		if err := os.RemoveAll(dir); err != nil {
			b.Error(err)
		}
	})
	return w
}

// within is how much of the time between two moments the engine was busy with calls of the given lines, those that were
// answered at the same time counted once. Streams that last as long as the container are left out.
func (w *watcher) within(from, to time.Time, lines ...string) (sum time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	slices.SortFunc(w.calls, func(x, y call) int { return x.begun.Compare(y.begun) })
	at := from
	for _, c := range w.calls {
		if c.end.After(to) || strings.HasSuffix(c.line, "/wait") || strings.HasSuffix(c.line, "/logs") || len(lines) > 0 && !slices.Contains(lines, c.line) {
			continue
		}
		if c.begun.After(at) {
			at = c.begun
		}
		if c.end.After(at) {
			sum += c.end.Sub(at)
			at = c.end
		}
	}
	return sum
}

// forget forgets the calls so far.
func (w *watcher) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = nil
}
