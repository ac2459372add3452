package server_test

import (
	"net/http"
	"testing"

	"github.com/hashicorp/nomad/api"
)

// TestTenants_ACardHasOneAtATime: a job of another tenant waits although there is room, says why, and starts when the card
// is empty.
func TestTenants_ACardHasOneAtATime(t *testing.T) {
	t.Parallel()
	s, _ := start(t, one(), anonymous(""))
	as := func(tenant string) *api.Client {
		key := s.call(http.MethodPost, "/api/v1/keys", map[string]any{"kind": "tenant", "name": tenant, "tenant": tenant}, http.StatusCreated)
		c, err := api.NewClient(&api.Config{Address: s.addr, SecretID: key["plaintext"].(string)})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	send := func(c *api.Client, job *api.Job) {
		t.Helper()
		if _, _, err := c.Jobs().Register(job, nil); err != nil {
			t.Fatal(err)
		}
	}
	red, blue := as("red"), as("blue")
	send(red, share("first", 1, "10GiB"))
	send(blue, share("second", 1, "10GiB"))
	send(red, share("third", 1, "10GiB"))
	if state, code, reason := s.reasonOf("second"); state != "waiting" || code != "share_tenant" {
		t.Errorf("second is %s: %s, %s", state, code, reason)
	}
	if state, _, reason := s.reasonOf("third"); state == "waiting" {
		t.Errorf("third is beside its own tenant and waits: %s", reason)
	}
	for _, id := range []string{"first", "third"} {
		if _, _, err := red.Jobs().Deregister(id, true, nil); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "second starts on the empty card", func() bool {
		state, _, _ := s.reasonOf("second")
		return state == "submitted"
	})
	s.call(http.MethodPut, "/api/v1/plugins/share_tenant", map[string]any{"enabled": false}, http.StatusOK)
	send(red, share("fourth", 1, "10GiB"))
	eventually(t, "fourth may be beside it, with the plugin off", func() bool {
		state, _, _ := s.reasonOf("fourth")
		return state == "submitted"
	})
}
