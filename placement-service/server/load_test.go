package server_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/placement-service/server"
)

// A node whose processors are busier than the limit takes nothing, also when that is seen only when the place is taken,
// and takes what waits once they are not.
func TestLoad_ABusyNodeTakesNothing(t *testing.T) {
	t.Parallel()
	now := clock.NewFake(time.Now())
	s, e := start(t, one(), func(c *server.Config) { c.Clock = now })
	nodes, _, err := s.nomad.Nodes().List(nil)
	if err != nil || len(nodes) != 1 {
		t.Fatalf("nodes are %v, %v", nodes, err)
	}
	busy := func(pct float64) {
		e.SetStats(nodes[0].ID, &api.HostStats{CPU: []*api.HostCPUStats{{Idle: 100 - pct}}, Memory: &api.HostMemoryStats{}})
	}
	busy(93)
	s.register(share("before", 1, "10GiB"))
	s.runs("before", 1)
	plugin := s.call(http.MethodPut, "/api/v1/plugins/load", map[string]any{"enabled": true, "limits": map[string]any{"node_compute_pct": 80}}, http.StatusOK)
	if limits, _ := plugin["limits"].(map[string]any); limits["node_compute_pct"] != 80.0 || limits["card_celsius"] != 90.0 {
		t.Errorf("the plugin is %v", plugin)
	}
	s.register(share("waits", 1, "10GiB")) // nothing is known of the load, until the place is to be taken
	if reason := s.waitsWith("waits", "load"); !strings.Contains(reason, " are 93 % busy, limit 80 %") {
		t.Errorf("reason is %q", reason)
	}
	s.runs("before", 1)
	busy(12)
	now.Advance(10 * time.Second)
	s.runs("waits", 1)

	s.call(http.MethodPut, "/api/v1/plugins/binpack", map[string]any{"limits": map[string]any{"node_compute_pct": 80}}, http.StatusBadRequest)
	s.call(http.MethodPut, "/api/v1/plugins/load", map[string]any{"limits": map[string]any{"node_compute_pct": 180}}, http.StatusBadRequest)
}
