package command

import (
	"net/http"
	"strings"
	"testing"
)

func TestJobMove(t *testing.T) {
	t.Parallel()
	const moves = `{"cards":0.5,"moves":[{"alloc_id":"12345678-9","namespace":"default","job_id":"llm","tenant":"research","from_node":"n1","to_node":"n2"}]}`
	f := newFake(t, map[string]any{
		"GET /api/v1/jobs/big/moves":   moves,
		"POST /api/v1/jobs/big/moves":  answer{http.StatusCreated, moves},
		"GET /api/v1/jobs/tiny/moves":  `{"cards":0,"moves":[],"refusal":"0 of 3 allocations may be moved"}`,
		"POST /api/v1/jobs/tiny/moves": answer{http.StatusBadRequest, `{"type":"about:blank","title":"Bad Request","status":400,"code":"no_moves","detail":"nothing is moved: 0 of 3 allocations may be moved"}`},
	})
	golden(t, "job_move", f.call(t, nil, "job", "move", "big"))
	if calls := f.calls(); len(calls) != 1 || calls[0] != "GET /api/v1/jobs/big/moves" {
		t.Errorf("without -apply it called %v", calls)
	}
	if r := f.call(t, nil, "job", "move", "-apply", "-verbose", "big"); r.code != 0 || !strings.Contains(r.out, "12345678-9") {
		t.Errorf("%+v", r)
	}
	f.last(t, "POST /api/v1/jobs/big/moves")
	if r := f.call(t, nil, "job", "move", "tiny"); r.code != 0 || r.out != "No moves would start it: 0 of 3 allocations may be moved.\n" {
		t.Errorf("%+v", r)
	}
	if r := f.call(t, nil, "job", "move", "-apply", "tiny"); r.code != 1 || !strings.Contains(r.errors, "nothing is moved: 0 of 3") {
		t.Errorf("%+v", r)
	}
}

func TestFragments(t *testing.T) {
	t.Parallel()
	f := newFake(t, map[string]any{"GET /api/v1/fragmentation": `{"as_of":"2026-01-01T00:00:00Z","free_cards":4.25,"unusable_cards":1.5,"nodes":[
{"node_id":"n1","node_name":"gpu-1","free_cards":3,"unusable_cards":0.75,"pools":[{"group":"nvidia/gpu/A100","model":"A100","form":"whole","free_cards":3,"unusable_cards":0.75}]},
{"node_id":"n2","node_name":"gpu-2","free_cards":1.25,"unusable_cards":0.75,"pools":[{"group":"nvidia/vgpu/A100-1","model":"A100","form":"shared","card_uuid":"GPU-1","free_cards":1.25,"unusable_cards":0.75}]}]}`})
	golden(t, "fragments", f.call(t, nil, "fragments"))
	golden(t, "fragments_verbose", f.call(t, nil, "fragments", "-verbose"))
	none := newFake(t, map[string]any{"GET /api/v1/fragmentation": `{"as_of":"2026-01-01T00:00:00Z","free_cards":1,"nodes":[]}`})
	if r := none.call(t, nil, "fragments"); r.code != 0 || !strings.Contains(r.out, "1.00  -") {
		t.Errorf("a demand that is not known is shown as %q", r.out)
	}
}
