package server

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
)

func TestRun_AnswersWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	away := "postgres://nobody@" + nobody.Addr().String() + "/x?connect_timeout=2"
	nobody.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, Config{Listener: listener, DatabaseURL: away, NomadAddr: "http://127.0.0.1:1", Logger: hclog.NewNullLogger()})
	}()
	f := fixture{url: "http://" + listener.Addr().String()}
	for _, c := range []struct {
		method, path, want string
		status             int
	}{
		{http.MethodGet, "/health", "", http.StatusOK},
		{http.MethodGet, "/ready", "database", http.StatusServiceUnavailable},
		{http.MethodPost, "/v1/completions", "database_unavailable", http.StatusServiceUnavailable},
	} {
		if status, body := f.do(t, c.method, c.path, "", ""); status != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%s: %d %s, want %d with %q", c.path, status, body, c.status, c.want)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("end of the gateway: %v", err)
	}
}
