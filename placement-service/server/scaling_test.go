package server_test

import (
	"net/http"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/scale"
	"github.com/heteroflow/heteroflow/placement-service/server"
)

// hasty has counts decided every few milliseconds.
type hasty struct{ clock.Clock }

func (h hasty) NewTicker(d time.Duration) clock.Ticker {
	if d == scale.Every {
		d = 20 * time.Millisecond
	}
	return h.Clock.NewTicker(d)
}

// scaled makes a job one that is scaled by its load.
func scaled(policy map[string]any) func(*api.Job) {
	return func(j *api.Job) {
		g := j.TaskGroups[0]
		g.Scaling = &api.ScalingPolicy{Min: new(int64(1)), Max: new(int64(8)), Enabled: new(true), Type: "horizontal", Policy: map[string]any{"heteroflow": []any{policy}}}
		g.Services = []*api.Service{{Name: "llm", Provider: "nomad"}}
	}
}

// A service grows with its load as far as there is room, through admission; what runs is left alone while more is tried.
func TestScaling_FollowsLoadAsFarAsThereIsRoom(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state.db")
	s, _ := start(t, one(), func(c *server.Config) { c.DatabaseURL, c.Clock = "sqlite://"+path, hasty{clock.System()} })
	db, err := store.Open(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	s.register(share("llm", 1, "20GiB", scaled(map[string]any{"requests": 10})))
	s.register(share("dry", 1, "1GiB", scaled(map[string]any{"requests": 10, "dry_run": true}), func(j *api.Job) { j.TaskGroups[0].Services[0].Name = "dry" }))
	s.register(share("wrong", 1, "1GiB", scaled(map[string]any{"target": 10}), func(j *api.Job) { j.TaskGroups[0].Services[0].Name = "wrong" }))
	s.runs("llm", 1)
	tell := func() {
		t.Helper()
		var list []store.Signal
		for _, name := range []string{"llm", "dry"} {
			list = append(list, store.Signal{Service: name, Gateway: "g", ToldAt: time.Now(), Backends: 1, InFlight: 75})
		}
		if err := db.TellSignals(t.Context(), list); err != nil {
			t.Fatal(err)
		}
	}
	ids := func() (out []string) {
		for _, a := range s.running("llm") {
			out = append(out, a.ID)
		}
		slices.Sort(out)
		return out
	}
	eventually(t, "it has what there is room for", func() bool { tell(); return len(s.running("llm")) >= 3 })
	view := func(job string) map[string]any {
		t.Helper()
		for _, g := range s.items("/api/v1/scaling") {
			if g["job_id"] == job {
				return g
			}
		}
		return nil
	}
	eventually(t, "it is told that there is no room for more", func() bool { tell(); g := view("llm"); return g != nil && g["problem"] == "there is no room for 8 now" })
	before := ids()
	for at, n := view("llm")["decided_at"], 0; n < 5; { // five more decisions
		tell()
		if now := view("llm")["decided_at"]; now != at {
			at = now
			n++
		}
	}
	after := ids()
	for _, id := range before {
		if !slices.Contains(after, id) {
			t.Errorf("what ran was started anew: %v, then %v", before, after)
		}
	}
	if g := view("llm"); g["wanted"] != 8.0 || g["needed"] != 8.0 || g["min"] != 1.0 || g["max"] != 8.0 || g["namespace"] != "default" || g["group"] != "g" || len(g["signals"].([]any)) != 1 {
		t.Errorf("%v", g)
	}
	if g := view("dry"); g["dry_run"] != true || g["count"] != 1.0 || g["wanted"] != 8.0 || len(s.running("dry")) != 1 {
		t.Errorf("%v", g)
	}
	if g := view("wrong"); g == nil || g["problem"] == nil || g["needed"] != nil {
		t.Errorf("%v", g)
	}
	other, _ := s.newKey(map[string]any{"kind": "tenant", "name": "eve", "tenant": "ops"})
	s.key = other
	if list := s.items("/api/v1/scaling"); len(list) != 0 {
		t.Errorf("another tenant sees %v", list)
	}
	s.call(http.MethodGet, "/api/v1/scaling", nil, http.StatusOK)
}
