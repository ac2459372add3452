package rest

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/auth"
	"github.com/heteroflow/heteroflow/internal/httpx"
	"github.com/heteroflow/heteroflow/placement-service/identity"
)

// callers are one of each kind and role.
var callers = map[string]identity.Who{
	"operator":         {Identity: auth.Identity{Role: auth.RoleAdmin, Kind: auth.KindAdmin}},
	"tenant's admin":   {Identity: auth.Identity{Role: auth.RoleAdmin, Kind: auth.KindTenant, Tenant: "a"}},
	"member":           {Identity: auth.Identity{Role: auth.RoleMember, Kind: auth.KindTenant, Tenant: "a"}},
	"viewer":           {Identity: auth.Identity{Role: auth.RoleViewer, Kind: auth.KindTenant, Tenant: "a"}},
	"node":             {Identity: auth.Identity{Role: auth.RoleNode, Kind: auth.KindNode}},
	"endpoint":         {Identity: auth.Identity{Role: auth.RoleEndpoint, Kind: auth.KindEndpoint, Tenant: "a"}},
	"anonymous viewer": {Identity: auth.Identity{Role: auth.RoleViewer, Kind: identity.KindAnonymous}},
}

// The columns of the table of rights.
const (
	people   = "operator, tenant's admin, member, viewer, anonymous viewer"
	workers  = "operator, tenant's admin, member"
	admins   = "operator, tenant's admin"
	operator = "operator"
	everyone = people + ", node, endpoint"
)

// allowed is who may call each operation. It is written out so that a change of rights is a change of this table.
var allowed = map[string]string{
	"getHealth": everyone, "getReady": everyone, "getOpenAPI": everyone, "getInfo": everyone,
	"getMetrics": people, "listGPUs": people, "listNodes": people,
	"listJobs": people, "getJob": people, "explainJob": people, "listQueue": people, "listReservations": people, "stopJob": workers,
	"listMoves": operator, "makeMoves": operator, "getFragmentation": people,
	"listPlugins": operator, "updatePlugin": operator,
	"listPluginVersions":   operator,
	"restorePluginVersion": operator,
	"listKeys":             workers, "createKey": workers, "deleteKey": workers,
	"rotateKey": workers, "retireKey": workers,
	"listLimits": people, "setLimit": admins, "deleteLimit": admins,
	"listPrices": people, "setPrice": operator, "deletePrice": operator,
	"listAudit":     admins,
	"listEndpoints": people, "getEndpoint": people, "createEndpoint": workers, "updateEndpoint": workers, "deleteEndpoint": workers,
	"listUsage": people, "sumUsage": people, "listScaling": people,
	"listIntents": "operator, node", "claimIntent": "operator, node", "reportIntent": "operator, node", "meetGang": "operator, node",
}

type fixed struct{ who identity.Who }

func (f fixed) Of(*http.Request) (identity.Who, error) {
	if f.who.Role == "" {
		return f.who, httpx.NewProblem(http.StatusUnauthorized, "no_credentials", "no key given")
	}
	return f.who, nil
}

// TestRights_EveryRouteForEveryCaller asks every operation of the contract as every caller.
func TestRights_EveryRouteForEveryCaller(t *testing.T) {
	t.Parallel()
	doc, err := Document()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for path, item := range doc.Paths.Map() {
		for method, operation := range item.Operations() {
			seen++
			want, ok := allowed[operation.OperationID]
			if !ok {
				t.Errorf("%s is not in the table", operation.OperationID)
				continue
			}
			public := rights[operation.OperationID].public
			if status := ask(t, identity.Who{}, method, path); (status == http.StatusUnauthorized) == public {
				t.Errorf("%s without credentials answers %d", operation.OperationID, status)
			}
			for name, who := range callers {
				status := ask(t, who, method, path)
				refused := status == http.StatusForbidden || status == http.StatusUnauthorized
				if may := strings.Contains(", "+want+",", ", "+name+","); may == refused {
					t.Errorf("%s as %s answers %d, allowed: %v", operation.OperationID, name, status, may)
				}
			}
		}
	}
	if seen != len(allowed) || seen != len(rights) {
		t.Errorf("the contract has %d operations, the table %d, the rights %d", seen, len(allowed), len(rights))
	}
}

// ask sends a request through the gate alone. What it lets pass is 200; a broken body or parameter comes after the
// rights and is 400.
func ask(t *testing.T, who identity.Who, method, path string) int {
	t.Helper()
	g, err := newGate(fixed{who}, hclog.NewNullLogger(), func(string, *http.Request, error) {})
	if err != nil {
		t.Fatal(err)
	}
	path = strings.NewReplacer("{id}", "x", "{name}", "x").Replace(path)
	rec := httptest.NewRecorder()
	g.guard(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(rec, httptest.NewRequest(method, path, nil))
	return rec.Code
}

func TestGate_WrongBodies(t *testing.T) {
	t.Parallel()
	g, err := newGate(fixed{callers["operator"]}, hclog.NewNullLogger(), func(string, *http.Request, error) {})
	if err != nil {
		t.Fatal(err)
	}
	handler := g.guard(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	cases := map[string]struct {
		method, path, body, contentType string
		wantStatus                      int
		wantCode, wantPointer           string
	}{
		"empty":               {"POST", "/api/v1/keys", "", "", 400, "body_empty", ""},
		"truncated":           {"POST", "/api/v1/keys", `{"kind":"ten`, "", 400, "body_truncated", ""},
		"not JSON":            {"POST", "/api/v1/keys", `kind=tenant`, "", 400, "body_not_json", ""},
		"two values":          {"POST", "/api/v1/keys", `{"kind":"tenant","name":"x"} {}`, "", 400, "body_not_json", ""},
		"wrong type":          {"POST", "/api/v1/keys", `{"kind":"tenant","name":5}`, "", 400, "field_wrong_type", "/name"},
		"wrong type in list":  {"POST", "/api/v1/keys", `{"kind":"endpoint","name":"x","endpoints":["a",7]}`, "", 400, "field_wrong_type", "/endpoints/1"},
		"unknown field":       {"POST", "/api/v1/keys", `{"kind":"tenant","name":"x","colour":"red"}`, "", 400, "field_unknown", "/colour"},
		"missing field":       {"POST", "/api/v1/keys", `{"kind":"tenant"}`, "", 400, "bad_field", "/name"},
		"empty name":          {"POST", "/api/v1/keys", `{"kind":"tenant","name":""}`, "", 400, "bad_field", "/name"},
		"value not in list":   {"POST", "/api/v1/keys", `{"kind":"king","name":"x"}`, "", 400, "bad_field", "/kind"},
		"negative weight":     {"PUT", "/api/v1/plugins/binpack", `{"weight":-1}`, "", 400, "bad_field", "/weight"},
		"nothing to change":   {"PUT", "/api/v1/plugins/binpack", `{}`, "", 400, "bad_field", ""},
		"no If-Match":         {"PUT", "/api/v1/endpoints/x", `{"model":"m","service":"s"}`, "", 400, "bad_parameter", ""},
		"not JSON by type":    {"POST", "/api/v1/keys", `{"kind":"tenant","name":"x"}`, "text/html", 415, "unsupported_media_type", ""},
		"too large":           {"POST", "/api/v1/keys", `{"kind":"tenant","name":"` + strings.Repeat("x", bodyLimit) + `"}`, "", 413, "body_too_large", ""},
		"limit not a number":  {"GET", "/api/v1/jobs?limit=many", "", "", 400, "bad_parameter", ""},
		"limit too high":      {"GET", "/api/v1/jobs?limit=100000", "", "", 400, "bad_parameter", ""},
		"state unknown":       {"GET", "/api/v1/jobs?state=happy", "", "", 400, "bad_parameter", ""},
		"time not a time":     {"GET", "/api/v1/usage?from=yesterday", "", "", 400, "bad_parameter", ""},
		"wait not a time":     {"GET", "/api/v1/intents?card=a&wait=long", "", "", 400, "bad_parameter", ""},
		"no card":             {"GET", "/api/v1/intents", "", "", 400, "bad_parameter", ""},
		"no such path":        {"GET", "/api/v1/nothing", "", "", 404, "no_such_route", ""},
		"method of no use":    {"POST", "/api/v1/gpus", "", "", 405, "method_not_allowed", ""},
		"id with slash is ok": {"GET", "/api/v1/jobs/a%2Fb", "", "", 200, "", ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rec := httptest.NewRecorder()
			req := httptest.NewRequest(c.method, c.path, strings.NewReader(c.body))
			if c.contentType != "" {
				req.Header.Set("Content-Type", c.contentType)
			}
			handler.ServeHTTP(rec, req)
			body := rec.Body.String()
			if rec.Code != c.wantStatus || !strings.Contains(body, c.wantCode) || !strings.Contains(body, `"pointer":"`+c.wantPointer) && c.wantPointer != "" {
				t.Errorf("answer is %d %s, want %d %s at %q", rec.Code, body, c.wantStatus, c.wantCode, c.wantPointer)
			}
		})
	}
}
