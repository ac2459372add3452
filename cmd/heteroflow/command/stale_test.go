package command

import (
	"strings"
	"testing"
)

// The parts of one card have its number, a dead card gives nothing, and a list that nobody keeps up to date says so.
func TestGPUs_PartsDeadAndStale(t *testing.T) {
	t.Parallel()
	card := func(more string) string {
		return `{"vendor":"nvidia","model":"A30","index":0,"node_id":"n1","node_name":"gpu-1","group":"g","switchable":false,"units":{"total":1,"used":0,"free":0},"modes":[],"jobs":[],` + more + `}`
	}
	f := newFake(t, map[string]any{"GET /api/v1/gpus": `{"as_of":"2026-01-01T00:00:00Z","stale":"Nomad cannot be reached","items":[` + strings.Join([]string{
		card(`"uuid":"MIG-1","parent":"GPU-1","form":"partition","healthy":true,"memory":{"total_mib":6144,"used_mib":0,"free_mib":6144}`),
		card(`"uuid":"MIG-2","parent":"GPU-1","form":"partition","healthy":true,"memory":{"total_mib":6144,"used_mib":0,"free_mib":6144}`),
		card(`"uuid":"GPU-9","form":"whole","healthy":false,"health_reason":"Xid 79","memory":{"total_mib":46080,"used_mib":0,"free_mib":0}`),
	}, ",") + `]}`})
	golden(t, "gpus_parts_dead_stale", f.call(t, nil, "gpus"))
	none := newFake(t, map[string]any{"GET /api/v1/gpus": `{"as_of":"0001-01-01T00:00:00Z","stale":"Nomad's nodes and allocations are not read yet","items":[]}`}).call(t, nil, "gpus")
	if none.out != "" || none.errors != "The cards are not known yet: Nomad's nodes and allocations are not read yet.\n" {
		t.Errorf("%+v", none)
	}
}

func TestDoctor_Intents(t *testing.T) {
	t.Parallel()
	node := func(name, intents string) string {
		return `{"id":"` + name + `","name":"` + name + `","datacenter":"d","node_pool":"p","ready":true,"driver_ready":true,"cpu_mhz":{"total":1,"used":0},"memory":{"total_mib":1,"used_mib":0,"free_mib":1},"pools":[]` + intents + `}`
	}
	f := newFake(t, map[string]any{"GET /api/v1/nodes": `{"as_of":"2026-01-01T00:00:00Z","items":[` + strings.Join([]string{
		node("fixed", ""), node("well", `,"intents":{"fetched":true,"failed":[]}`), node("new", `,"intents":{"failed":[]}`),
		node("wrong", `,"intents":{"fetched":false,"reason":"it is turned away: the token is not known","failed":[]}`),
		node("full", `,"intents":{"fetched":true,"failed":[{"card_uuid":"GPU-1","form":"shared","reason":"keep chosen form: read-only file system","failed_at":"2026-01-01T00:00:00Z","retry_at":"2026-01-01T00:04:00Z"}]}`),
	}, ",") + `]}`})
	r := f.call(t, nil, "doctor", "-bin-dir", "/nowhere", "-state-dir", t.TempDir())
	for _, want := range []string{
		"does not fetch intents, so that cards are neither opened nor closed for shares: it is turned away: the token is not known\n",
		"card GPU-1 could not change its form to shared at 2026-01-01T00:00:00Z: keep chosen form: read-only file system\n",
		"the card is asked again at 2026-01-01T00:04:00Z\n",
	} {
		if !strings.Contains(r.out, want) {
			t.Errorf("want %q in\n%s", want, r.out)
		}
	}
	if strings.Contains(r.out, "node fixed") || strings.Contains(r.out, "node well") || strings.Contains(r.out, "node new") {
		t.Errorf("what is well, or not known yet, is warned of:\n%s", r.out)
	}
}
