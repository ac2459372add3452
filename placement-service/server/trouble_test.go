package server_test

import (
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/embedded"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/server"
)

// listen takes a port; again gives the same one after its server has ended.
func listen(t *testing.T) (listener net.Listener, again func() net.Listener) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := listener.Addr().String()
	return listener, func() net.Listener {
		var l net.Listener
		eventually(t, "the port is free again", func() bool {
			l, err = net.Listen("tcp", addr)
			return err == nil
		})
		return l
	}
}

func TestNomadDown_NothingIsLost(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	listener, again := listen(t)
	e, stop := startEngine(t, listener, dir, one())
	s := startService(t, e.Addr()).ready(1)
	s.register(share("before", 1, "20GiB"))
	s.runs("before", 1)
	if _, stale := s.tree("/api/v1/gpus")["stale"]; stale {
		t.Error("a list that is kept up to date is called stale")
	}
	stop()
	eventually(t, "the list says that it is not kept up to date", func() bool {
		return s.tree("/api/v1/gpus")["stale"] == "Nomad cannot be reached" && s.tree("/api/v1/nodes")["stale"] == "Nomad cannot be reached"
	})

	out := s.register(share("meanwhile", 1, "20GiB"))
	if !strings.Contains(out.Warnings, "Nomad cannot be reached: what is known of the cards is from") || out.EvalID == "" {
		t.Errorf("answer is %+v, want a warning and an evaluation", out)
	}
	if got := s.tree("/api/v1/jobs/meanwhile"); got["state"] != "waiting" || got["reason_code"] != "nomad_unreachable" || len(got["placements"].([]any)) > 0 {
		t.Errorf("a job sent by a view that is stale: %v, want it to wait without a card", got)
	}
	if now := s.tree("/api/v1/jobs/meanwhile/explain")["now"].(map[string]any); now["outcome"] != "waiting" || len(now["placements"].([]any)) > 0 {
		t.Errorf("explained as %v", now)
	}
	eval, _, err := s.nomad.Evaluations().Info(out.EvalID, nil)
	if err != nil || eval.BlockedEval == "" {
		t.Errorf("evaluation is %+v, %v", eval, err)
	}
	s.register(plain("simple"))
	if job, _, err := s.nomad.Jobs().Info("meanwhile", nil); err != nil || *job.Status != "pending" {
		t.Errorf("job is %+v, %v; want pending", job, err)
	}
	status, body := s.get("/ready")
	if status != http.StatusServiceUnavailable || !strings.Contains(string(body), `"nomad","ok":false`) || !strings.Contains(string(body), `"database","ok":true`) {
		t.Errorf("/ready is %d %s, want it to name nomad", status, body)
	}
	if status, _ := s.get("/health"); status != http.StatusOK {
		t.Errorf("/health is %d", status)
	}
	if status, body := s.get("/v1/nodes"); status != http.StatusBadGateway || !strings.Contains(string(body), "Nomad cannot be reached") {
		t.Errorf("/v1/nodes is %d %s", status, body)
	}
	if _, _, err := s.nomad.Jobs().Deregister("before", false, nil); err == nil || !strings.Contains(err.Error(), "cannot be reached") {
		t.Errorf("stop answers %v, want that Nomad cannot be reached", err)
	}

	s.register(plain("unwanted"))
	if _, _, err := s.nomad.Jobs().Deregister("unwanted", false, nil); err != nil {
		t.Errorf("stop of a job that was not sent answers %v", err)
	}
	if got := s.tree("/api/v1/jobs/unwanted"); got["reason_code"] != "stopping" {
		t.Errorf("job that is to be stopped: %v", got)
	}

	startEngine(t, again(), dir, one())
	eventually(t, "the unwanted job is stopped", func() bool { return s.tree("/api/v1/jobs/unwanted")["state"] == "stopped" })
	s.runs("meanwhile", 1)
	eventually(t, "the list is kept up to date again", func() bool { _, stale := s.tree("/api/v1/gpus")["stale"]; return !stale })
	s.runs("simple", 1)
	s.runs("before", 1)
	eventually(t, "the ledger holds 40 units", func() bool { return s.usedUnits() == 40 })
	if status, _ := s.get("/ready"); status != http.StatusOK {
		t.Errorf("/ready is %d", status)
	}
}

func TestService_StartsWithoutNomadAndSurvivesRestart(t *testing.T) {
	t.Parallel()
	listener, again := listen(t)
	addr := "http://" + listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	db := database("sqlite://" + t.TempDir() + "/state.db")
	s := startService(t, addr, db)
	first := s.key
	if first == "" {
		t.Fatal("no admin key was printed")
	}
	out := s.register(share("early", 1, "20GiB"))
	if !strings.Contains(out.Warnings, "not known yet") {
		t.Errorf("warnings are %q", out.Warnings)
	}
	s.stop()

	e, _ := startEngine(t, again(), "", one())
	s = startService(t, e.Addr(), db, anonymous(""))
	if s.key != "" {
		t.Error("a second start printed a key")
	}
	s.key = first
	s.ready(1)
	eventually(t, "the job that was sent before the restart runs", func() bool {
		return len(s.tree("/api/v1/jobs/early")["placements"].([]any)) == 1
	})
	eventually(t, "the ledger holds 20 units", func() bool { return s.usedUnits() == 20 })
}

func TestRoundTheService_IsAdopted(t *testing.T) {
	t.Parallel()
	s, e := start(t, one())
	direct, err := api.NewClient(&api.Config{Address: e.Addr()})
	if err != nil {
		t.Fatal(err)
	}
	job := share("sneaky", 1, "")
	task := job.TaskGroups[0].Tasks[0]
	delete(task.Config, "accelerator")
	task.Resources.Devices = []*api.RequestedDevice{{Name: "nvidia/vgpu", Count: new(uint64(30))}}
	if _, _, err := direct.Jobs().Register(job, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the ledger counts what it holds", func() bool { return s.usedUnits() == 30 })
	eventually(t, "the job is shown", func() bool {
		jobs := s.items("/api/v1/jobs")
		return len(jobs) == 1 && jobs[0]["id"] == "sneaky" && jobs[0]["reason_code"] == "adopted"
	})
	if out := s.register(share("big", 1, "60GiB")); !strings.Contains(out.Warnings, "waits") {
		t.Errorf("a job of 60 GiB is not held: %+v", out)
	}
	if _, _, err := direct.Jobs().Deregister("sneaky", true, nil); err != nil {
		t.Fatal(err)
	}
	s.runs("big", 1)
	eventually(t, "the job is shown as stopped", func() bool { return s.tree("/api/v1/jobs/sneaky")["state"] == "stopped" })
}

// The machine lost power between Nomad's answer and the disk: the row is gone, the job carries its grant.
func TestLostRow_JobIsFoundAgainWithItsTenant(t *testing.T) {
	t.Parallel()
	url := "sqlite://" + t.TempDir() + "/state.db"
	s, e := start(t, one(), database(url))
	s.register(share("llm", 1, "20GiB"))
	s.runs("llm", 1)
	want := s.tree("/api/v1/jobs/llm")["tenant"]
	s.stop()
	db, err := store.Open(t.Context(), url, logger(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{db.Release(t.Context(), "default", "llm"), db.DeleteJob(t.Context(), "default", "llm"), db.Close()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s = startService(t, e.Addr(), database(url))
	eventually(t, "the job is shown", func() bool { return len(s.items("/api/v1/jobs")) == 1 })
	if got := s.tree("/api/v1/jobs/llm")["tenant"]; got != want || want == nil || want == "" {
		t.Errorf("tenant %v, want %v", got, want)
	}
	eventually(t, "the ledger counts what it holds", func() bool { return s.usedUnits() == 20 })
	if out := s.register(share("llm", 1, "20GiB")); strings.Contains(out.Warnings, "waits") {
		t.Errorf("the same job again: %+v", out)
	}
	s.runs("llm", 1)
}

func TestLostNode_JobIsPlacedAnew(t *testing.T) {
	t.Parallel()
	nodes := embedded.SimNodes(2, 1, accel.NVIDIA, "A100-SXM4-80GB", 81920, accel.Shared)
	s, e := start(t, nodes)
	s.register(share("llm", 1, "20GiB"))
	s.runs("llm", 1)
	lost := s.running("llm")[0].NodeID
	if err := e.SetNodeDown(lost, true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it runs on the other node", func() bool {
		now := s.running("llm")
		return len(now) == 1 && now[0].NodeID != lost
	})
	eventually(t, "the ledger holds 20 units", func() bool { return s.usedUnits() == 20 })
}

func TestFormSwitch_ByIntent(t *testing.T) {
	t.Parallel()
	nodes := embedded.SimNodes(1, 1, accel.NVIDIA, "A100-SXM4-80GB", 81920, accel.Whole)
	nodes[0].Auto = true
	s, e := start(t, nodes)
	uuid := nodes[0].Cards[0].UUID
	out := s.register(share("llm", 1, "20GiB"))
	if !strings.Contains(out.Warnings, "for shares, which takes some seconds") {
		t.Errorf("warnings are %q, want that a card is opened for shares", out.Warnings)
	}
	s.key = s.nodeKey()
	var intent map[string]any
	eventually(t, "the node is told", func() bool {
		items := s.items("/api/v1/intents?wait=1s&card=" + uuid)
		if len(items) == 1 {
			intent = items[0]
		}
		return len(items) == 1
	})
	if intent["form"] != "shared" || intent["state"] != "wanted" || intent["card_uuid"] != uuid {
		t.Errorf("intent is %v", intent)
	}
	path := "/api/v1/intents/" + intent["id"].(string)
	if status, _, body := s.do(http.MethodPost, path+"/claim", s.key, map[string]any{"version": intent["version"]}); status != http.StatusOK {
		t.Fatalf("claim: %d %s", status, body)
	}
	if status, _, _ := s.do(http.MethodPost, path+"/claim", s.key, map[string]any{"version": intent["version"]}); status != http.StatusConflict {
		t.Errorf("second claim is %d, want 409", status)
	}
	if status, _, body := s.do(http.MethodPost, path+"/report", s.key, map[string]any{"state": "done"}); status != http.StatusOK {
		t.Fatalf("report: %d %s", status, body)
	}
	s.key = ""
	nodes[0].Cards[0].Form = accel.Shared
	if err := e.SetNode(nodes[0]); err != nil {
		t.Fatal(err)
	}
	s.runs("llm", 1)
}

// TestFormSwitch_NodeThatFetchesNoIntents: a node whose plugin has no server is named, and other cards are tried; once
// it fetches, it counts again.
func TestFormSwitch_NodeThatFetchesNoIntents(t *testing.T) {
	t.Parallel()
	nodes := embedded.SimNodes(2, 1, accel.NVIDIA, "A100-SXM4-80GB", 81920, accel.Whole)
	nodes[0].Auto, nodes[1].Auto = true, true
	now := clock.NewFake(time.Now())
	s, _ := start(t, nodes, func(c *server.Config) { c.Clock = now })
	reason := func() string { return s.tree("/api/v1/jobs/llm")["reason"].(string) }
	opening := func(i int) string { return "on node " + nodes[i].Name + " for shares" }
	deaf := func(i int) string {
		return "the device plugin on node " + nodes[i].Name + " does not fetch intents, so that its cards are neither opened nor closed for shares: set server and token in its config"
	}
	s.register(share("llm", 1, "20GiB"))
	first, second := 0, 1
	if strings.Contains(reason(), opening(second)) {
		first, second = second, first
	}
	if got := reason(); !strings.Contains(got, opening(first)) || strings.Contains(got, "intents") {
		t.Fatalf("the job waits for %q, want a card of %s", got, nodes[first].Name)
	}
	now.Advance(30 * time.Second)
	eventually(t, "the other node's card is tried", func() bool {
		return strings.Contains(reason(), opening(second)) && strings.Contains(reason(), deaf(first))
	})
	now.Advance(30 * time.Second)
	eventually(t, "both nodes are named", func() bool {
		got := reason()
		return !strings.Contains(got, "opening") && strings.Contains(got, nodes[first].Name+", "+nodes[second].Name+" do not fetch intents")
	})
	s.items("/api/v1/intents?card=" + nodes[first].Cards[0].UUID)
	eventually(t, "the first node counts again", func() bool {
		return strings.Contains(reason(), opening(first)) && !strings.Contains(reason(), "intents")
	})
}

// nodeKey makes a key for a device plugin.
func (s *service) nodeKey() string {
	s.t.Helper()
	_, _, body := s.do(http.MethodPost, "/api/v1/keys", s.key, map[string]any{"kind": "node", "name": "n1"})
	var made struct{ Plaintext string }
	if err := json.Unmarshal(body, &made); err != nil {
		s.t.Fatal(err)
	}
	return made.Plaintext
}

// failIntent answers the open intent of a card as a plugin does that cannot write its state_dir.
func (s *service) failIntent(key, card, reason string) {
	s.t.Helper()
	var list struct {
		Items []struct {
			ID      string
			Version int
		}
	}
	_, _, body := s.do(http.MethodGet, "/api/v1/intents?card="+card, key, nil)
	if err := json.Unmarshal(body, &list); err != nil || len(list.Items) != 1 {
		s.t.Fatalf("intents of %s: %s, %v", card, body, err)
	}
	path := "/api/v1/intents/" + list.Items[0].ID
	if status, _, body := s.do(http.MethodPost, path+"/claim", key, map[string]any{"version": list.Items[0].Version}); status != http.StatusOK {
		s.t.Fatalf("claim: %d %s", status, body)
	}
	if status, _, body := s.do(http.MethodPost, path+"/report", key, map[string]any{"state": "failed", "reason": reason}); status != http.StatusOK {
		s.t.Fatalf("report: %d %s", status, body)
	}
}

func (s *service) openIntents(key, card string) int {
	s.t.Helper()
	_, _, body := s.do(http.MethodGet, "/api/v1/intents?card="+card, key, nil)
	return strings.Count(string(body), `"id"`)
}

// TestFormSwitch_ThatFails: the reason is told, the next card is tried, and none is asked again at once.
func TestFormSwitch_ThatFails(t *testing.T) {
	t.Parallel()
	nodes := embedded.SimNodes(1, 2, accel.NVIDIA, "A100-SXM4-80GB", 81920, accel.Whole)
	nodes[0].Auto = true
	now := clock.NewFake(time.Now())
	s, _ := start(t, nodes, func(c *server.Config) { c.Clock = now })
	const why = "keep chosen form: mkdir /var/lib/heteroflow: read-only file system"
	key := s.nodeKey()
	reason := func() string { return s.tree("/api/v1/jobs/llm")["reason"].(string) }
	s.register(share("llm", 1, "20GiB"))
	cards := []string{nodes[0].Cards[0].UUID, nodes[0].Cards[1].UUID}
	if s.openIntents(key, cards[0]) == 0 {
		cards[0], cards[1] = cards[1], cards[0]
	}
	s.failIntent(key, cards[0], why)
	told := "card " + cards[0] + " on node " + nodes[0].Name + " could not be opened for shares: " + why + " (asked again at "
	eventually(t, "the other card is tried, and the reason of the first is told", func() bool {
		return strings.Contains(reason(), "takes some seconds") && strings.Contains(reason(), told) && s.openIntents(key, cards[1]) == 1
	})
	s.failIntent(key, cards[1], why)
	eventually(t, "the job waits for neither", func() bool {
		return !strings.Contains(reason(), "takes some seconds") && strings.Contains(reason(), told) && strings.Contains(reason(), cards[1])
	})
	if s.openIntents(key, cards[0])+s.openIntents(key, cards[1]) > 0 {
		t.Error("a card is asked again at once")
	}
	explained := s.tree("/api/v1/jobs/llm/explain")["now"].(map[string]any)
	if explained["outcome"] != "waiting" || !strings.Contains(explained["reason"].(string), told) {
		t.Errorf("explained as %v", explained)
	}
	failed := s.items("/api/v1/nodes")[0]["intents"].(map[string]any)["failed"].([]any)
	if len(failed) != 2 || failed[1].(map[string]any)["reason"] != why || failed[1].(map[string]any)["card_uuid"] != cards[0] {
		t.Errorf("the node's failures are %v", failed)
	}
	now.Advance(61 * time.Second)
	eventually(t, "a card is asked again after the pause", func() bool { return s.openIntents(key, cards[0])+s.openIntents(key, cards[1]) > 0 })
}

// TestIntents_NodeThatIsTurnedAway: the service says of a node why it does not fetch intents, before a job waits.
func TestIntents_NodeThatIsTurnedAway(t *testing.T) {
	t.Parallel()
	nodes := embedded.SimNodes(1, 1, accel.NVIDIA, "A100-SXM4-80GB", 81920, accel.Whole)
	nodes[0].Auto = true
	now := clock.NewFake(time.Now())
	s, _ := start(t, nodes, func(c *server.Config) { c.Clock = now })
	path := "/api/v1/intents?card=" + nodes[0].Cards[0].UUID
	intents := func() map[string]any { return s.items("/api/v1/nodes")[0]["intents"].(map[string]any) }
	if got := intents(); got["fetched"] != nil {
		t.Errorf("at first %v, want that it is not known", got)
	}
	if status, _, body := s.do(http.MethodGet, path, "hf-node-wrong", nil); status != http.StatusUnauthorized {
		t.Fatalf("a wrong token: %d %s", status, body)
	}
	if got := intents(); got["fetched"] != false || !strings.Contains(got["reason"].(string), "it is turned away: ") {
		t.Errorf("with a wrong token %v", got)
	}
	key := s.nodeKey()
	if status, _, body := s.do(http.MethodGet, path, key, nil); status != http.StatusOK {
		t.Fatalf("the right token: %d %s", status, body)
	}
	if got := intents(); got["fetched"] != true || got["reason"] != nil {
		t.Errorf("with the right token %v", got)
	}
	now.Advance(3 * time.Minute)
	if got := intents(); got["fetched"] != false || !strings.Contains(got["reason"].(string), "has not asked this service since") {
		t.Errorf("after a silence %v", got)
	}
}
