package server_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// key makes a key and gives its text and id.
func (s *service) newKey(body map[string]any) (plaintext, id string) {
	s.t.Helper()
	made := s.call(http.MethodPost, "/api/v1/keys", body, http.StatusCreated)
	return made["plaintext"].(string), made["key"].(map[string]any)["id"].(string)
}

func TestAPI_KeysRotate(t *testing.T) {
	t.Parallel()
	s, _ := start(t, one(), anonymous(""))
	operator := s.key
	old, id := s.newKey(map[string]any{"kind": "tenant", "name": "ann", "tenant": "research", "role": "admin"})
	opens := func(token string, want int) {
		t.Helper()
		if status, _, body := s.do(http.MethodGet, "/api/v1/gpus", token, nil); status != want {
			t.Errorf("%d %s, want %d", status, body, want)
		}
	}
	rotated := s.call(http.MethodPost, "/api/v1/keys/"+id+"/rotate", map[string]any{}, http.StatusCreated)
	fresh := rotated["plaintext"].(string)
	if view := rotated["key"].(map[string]any); view["id"] != id || view["prior_until"] == nil || !strings.HasPrefix(fresh, view["prefix"].(string)) {
		t.Errorf("%v", view)
	}
	opens(old, http.StatusOK)
	opens(fresh, http.StatusOK)
	if two := s.call(http.MethodPost, "/api/v1/keys/"+id+"/rotate", map[string]any{}, http.StatusConflict); two["code"] != "two_live" {
		t.Errorf("%v", two)
	}
	if now := s.call(http.MethodPost, "/api/v1/keys/"+id+"/retire", nil, http.StatusOK); now["prior_until"] != nil {
		t.Errorf("%v", now)
	}
	eventually(t, "the earlier text is refused", func() bool {
		status, _, _ := s.do(http.MethodGet, "/api/v1/gpus", old, nil)
		return status == http.StatusUnauthorized
	})
	opens(fresh, http.StatusOK)
	s.call(http.MethodPost, "/api/v1/keys/"+id+"/retire", nil, http.StatusNotFound)
	s.call(http.MethodPost, "/api/v1/keys/"+id+"/rotate", map[string]any{"overlap_s": -1}, http.StatusBadRequest)

	// A member rotates endpoint keys alone, and those of their own tenant.
	member, _ := s.newKey(map[string]any{"kind": "tenant", "name": "bob", "tenant": "research"})
	_, foreign := s.newKey(map[string]any{"kind": "endpoint", "name": "app", "tenant": "ops"})
	s.key = member
	_, own := s.newKey(map[string]any{"kind": "endpoint", "name": "app"})
	s.call(http.MethodPost, "/api/v1/keys/"+own+"/rotate", map[string]any{"overlap_s": 0}, http.StatusCreated)
	s.call(http.MethodPost, "/api/v1/keys/"+foreign+"/rotate", map[string]any{}, http.StatusNotFound)
	s.call(http.MethodPost, "/api/v1/keys/"+id+"/rotate", map[string]any{}, http.StatusForbidden)

	// A key acts for its maker; only admins make them for others.
	s.call(http.MethodPost, "/api/v1/keys", map[string]any{"kind": "endpoint", "name": "x", "member": "eve"}, http.StatusForbidden)
	members := map[string]any{}
	s.key = operator
	s.newKey(map[string]any{"kind": "endpoint", "name": "for eve", "tenant": "research", "member": "eve"})
	for _, k := range s.items("/api/v1/keys") {
		members[k["name"].(string)+" of "+k["tenant"].(string)] = k["member"]
	}
	if members["app of research"] != "bob" || members["for eve of research"] != "eve" || members["app of ops"] != "app" {
		t.Errorf("%v", members)
	}
	for _, text := range []string{old, fresh, member} {
		if _, body := s.get("/api/v1/audit"); strings.Contains(string(body), text[len(text)-20:]) {
			t.Error("the audit holds a key")
		}
	}
}

func TestAPI_LimitsPricesAudit(t *testing.T) {
	t.Parallel()
	s, _ := start(t, one(), anonymous(""))
	operator := s.key
	admin, _ := s.newKey(map[string]any{"kind": "tenant", "name": "ann", "tenant": "research", "role": "admin"})
	member, _ := s.newKey(map[string]any{"kind": "tenant", "name": "bob", "tenant": "research"})
	_, foreign := s.newKey(map[string]any{"kind": "endpoint", "name": "app", "tenant": "ops"})

	set := func(body map[string]any, want int) map[string]any {
		t.Helper()
		return s.call(http.MethodPut, "/api/v1/limits", body, want)
	}
	whole := set(map[string]any{"scope": "tenant", "subject": "research", "tokens_per_month": 1000, "money_per_month": 2.5}, http.StatusOK)
	if whole["tenant"] != "research" || whole["money_per_month"] != 2.5 || whole["requests_per_minute"] != nil || whole["model"] != nil {
		t.Errorf("%v", whole)
	}
	s.key = admin
	_, app := s.newKey(map[string]any{"kind": "endpoint", "name": "app"})
	key := set(map[string]any{"scope": "key", "subject": app, "requests_per_minute": 60, "model": "m"}, http.StatusOK)
	set(map[string]any{"scope": "member", "subject": "bob", "concurrency": 0}, http.StatusOK)
	served := s.call(http.MethodPost, "/api/v1/endpoints", map[string]any{"model": "m", "service": "llm"}, http.StatusCreated)["id"].(string)
	if of := set(map[string]any{"scope": "endpoint", "subject": served, "tokens_per_minute": 1000}, http.StatusOK); of["tenant"] != "research" || of["scope"] != "endpoint" {
		t.Errorf("%v", of)
	}
	for what, c := range map[string]struct {
		body map[string]any
		want int
		says string
	}{
		"its own limit":    {map[string]any{"scope": "tenant", "subject": "research", "concurrency": 9}, http.StatusForbidden, "set by the operator"},
		"a foreign key":    {map[string]any{"scope": "key", "subject": foreign, "concurrency": 9}, http.StatusBadRequest, "no key " + foreign},
		"a foreign member": {map[string]any{"scope": "member", "subject": "x", "tenant": "ops", "concurrency": 9}, http.StatusForbidden, "own tenant"},
		"no endpoint":      {map[string]any{"scope": "endpoint", "subject": foreign, "concurrency": 9}, http.StatusBadRequest, "no endpoint " + foreign},
		"of two models":    {map[string]any{"scope": "endpoint", "subject": served, "model": "m", "concurrency": 9}, http.StatusBadRequest, "an endpoint has one model"},
		"nothing":          {map[string]any{"scope": "member", "subject": "x"}, http.StatusBadRequest, "limits nothing"},
		"less than none":   {map[string]any{"scope": "member", "subject": "x", "concurrency": -1}, http.StatusBadRequest, "concurrency"},
	} {
		if got, err := json.Marshal(set(c.body, c.want)); err != nil || !strings.Contains(string(got), c.says) {
			t.Errorf("%s: %s", what, got)
		}
	}
	s.call(http.MethodDelete, "/api/v1/limits/"+whole["id"].(string), nil, http.StatusForbidden)
	s.call(http.MethodPut, "/api/v1/prices", map[string]any{"model": "m", "prompt": 1}, http.StatusForbidden)
	s.key = member
	if got := s.items("/api/v1/limits"); len(got) != 4 {
		t.Errorf("a member sees %v", got)
	}
	set(map[string]any{"scope": "member", "subject": "bob", "concurrency": 9}, http.StatusForbidden)
	s.call(http.MethodGet, "/api/v1/audit", nil, http.StatusForbidden)

	s.key = operator
	set(map[string]any{"scope": "tenant", "subject": "research", "tenant": "ops", "concurrency": 9}, http.StatusBadRequest)
	price := s.call(http.MethodPut, "/api/v1/prices", map[string]any{"model": "a/b", "prompt": 2.5, "completion": 10, "request": 0.01}, http.StatusOK)
	if price["cached"] != 2.5 || price["completion"] != 10.0 || price["request"] != 0.01 {
		t.Errorf("%v", price)
	}
	s.call(http.MethodPut, "/api/v1/prices", map[string]any{"model": "m", "prompt": 0.0001}, http.StatusBadRequest)
	s.call(http.MethodDelete, "/api/v1/prices?model=a%2Fb", nil, http.StatusNoContent)
	s.call(http.MethodDelete, "/api/v1/prices?model=a%2Fb", nil, http.StatusNotFound)
	s.call(http.MethodDelete, "/api/v1/limits/"+key["id"].(string), nil, http.StatusNoContent)
	s.key = admin
	s.call(http.MethodDelete, "/api/v1/keys/"+app, nil, http.StatusNoContent)

	var told []string
	for _, e := range s.items("/api/v1/audit") {
		told = append(told, e["actor"].(string)+" "+e["action"].(string))
	}
	slices.Reverse(told)
	want := []string{"bootstrap key.create", "bootstrap key.create", "bootstrap limit.set", "ann key.create", "ann limit.set", "ann limit.set", "ann limit.set", "bootstrap limit.delete", "ann key.delete"}
	if !slices.Equal(told, want) {
		t.Errorf("the tenant's admin sees %q, want %q", told, want)
	}
	s.key = operator
	if n := len(s.items("/api/v1/audit")); n != len(want)+3 { // a key of another tenant, and two changes of prices
		t.Errorf("the operator sees %d changes", n)
	}
}
