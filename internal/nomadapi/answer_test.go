package nomadapi_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/heteroflow/heteroflow/internal/nomadapi"
)

// TestIsAnswer_TellsTheRequestFromTheCluster: what is about the request ends it, what is about the cluster is tried
// again. A job that had waited is given up only for the first.
func TestIsAnswer_TellsTheRequestFromTheCluster(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		status int
		text   string
		want   bool
	}{
		{400, "Job ID contains a space", true},
		{403, "Permission denied", true},
		{404, "job not found", true},
		{500, "1 error occurred:\n\t* Task group g validation failed", true},
		{500, "total count was greater than configured job_max_count", true},
		{500, "No cluster leader", false},
		{500, "write change 6: write /var/lib/agent/state.log: no space left on device", false},
		{500, "open /var/lib/nomad/raft.db: read-only file system", false},
		{500, "accept: too many open files", false},
		{502, "bad gateway", false},
		{503, "try again", false},
		{429, "slow down", false},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, tc.text, tc.status) }))
		client, err := nomadapi.New(nomadapi.Config{Addr: server.URL})
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.Register(t.Context(), "default", json.RawMessage(`{}`))
		if got := nomadapi.IsAnswer(err); err == nil || got != tc.want {
			t.Errorf("%d %s: %v, want %v", tc.status, tc.text, got, tc.want)
		}
		server.Close()
	}
}
