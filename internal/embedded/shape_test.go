package embedded_test

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// absent are keys of Nomad's answers that the engine leaves out. The API client does not
// know them either, or they belong to parts the engine does not have.
var absent = []string{
	"CSIPluginConfig", "ComputedClass", "EvalPriority", "AutoPromote", "IdentitySigningKeyID", "SigningKeyID", "SecretID", "SharedResources",
	"LastAllocUpdateIndex", "LastMissedHeartbeatIndex", "NodeNetworks", "Processors", "TaskLifecycles", "Paused", "Multiregion",
	"ReservedCpuCores", "revision", "id", "ConsulConfiguration", "VaultConfiguration", "Hash", "OptionalExtraClaims", "RequiredExtraClaims",
	"NodesAvailable", "[].DesiredTransition", "[].NodePool", "[].HostVolumes", "NetworkStatus", "Identity",
}

// isAbsent looks for a left-out key anywhere in a path; one that starts with a list is a whole path.
func isAbsent(path string) bool {
	if slices.Contains(absent, path) {
		return true
	}
	if slices.ContainsFunc(absent, func(a string) bool { return strings.HasPrefix(path, a+".") }) {
		return true
	}
	return slices.ContainsFunc(strings.Split(path, "."), func(key string) bool {
		return slices.Contains(absent, strings.TrimSuffix(key, "[]"))
	})
}

// keyPaths lists the keys of a decoded answer, of lists those of the first item.
func keyPaths(v any, prefix string, out map[string]bool) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			path := strings.TrimPrefix(prefix+"."+k, ".")
			out[path] = true
			keyPaths(x, path, out)
		}
	case []any:
		if len(v) > 0 {
			keyPaths(v[0], prefix+"[]", out)
		}
	}
}

// TestHTTP_ShapesAreNomads compares the keys of answers with those recorded from a real server.
func TestHTTP_ShapesAreNomads(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/nomad-2.0.5-shapes.json")
	if err != nil {
		t.Fatal(err)
	}
	var want struct{ Paths map[string][]string }
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	e, c := start(t, oneNode())
	const spec = `{"Job":{"ID":"chg","Type":"service","Datacenters":["*"],"Update":{"MaxParallel":1,"MinHealthyTime":100000000,"HealthCheck":"task_states"},
		"TaskGroups":[{"Name":"g","Count":1,"Tasks":[{"Name":"t","Driver":"raw_exec","Config":{"command":"/bin/sleep","args":["1000"]},"Resources":{"CPU":50,"MemoryMB":32}}]}]}}`
	put := func(path, body string) string {
		status, text, _ := call(t, "PUT", e.Addr()+path, body)
		if status != 200 {
			t.Fatalf("PUT %s: %d %s", path, status, text)
		}
		return text
	}
	answers := map[string]string{"register": put("/v1/jobs", spec), "validate": put("/v1/validate/job", spec)}
	answers["plan"] = put("/v1/job/new/plan", strings.Replace(spec, `"ID":"chg"`, `"ID":"new"`, 1))
	eventually(t, "it runs and is deployed", func() bool {
		d, _, err := c.Jobs().LatestDeployment("chg", nil)
		return err == nil && d != nil && d.Status == "successful" && len(running(t, c, "chg")) == 1
	})
	a := running(t, c, "chg")[0]
	for name, path := range map[string]string{
		"jobs": "/v1/jobs", "job": "/v1/job/chg", "summary": "/v1/job/chg/summary", "job allocations": "/v1/job/chg/allocations",
		"job evaluations": "/v1/job/chg/evaluations", "deployment": "/v1/job/chg/deployment", "scale": "/v1/job/chg/scale",
		"versions": "/v1/job/chg/versions", "allocation": "/v1/allocation/" + a.ID, "evaluation": "/v1/evaluation/" + a.EvalID,
		"nodes": "/v1/nodes", "node": "/v1/node/" + a.NodeID, "scheduler configuration": "/v1/operator/scheduler/configuration",
		"members": "/v1/agent/members", "token": "/v1/acl/token/self", "namespaces": "/v1/namespaces",
	} {
		status, text, header := call(t, "GET", e.Addr()+path, "")
		if status != 200 {
			t.Fatalf("GET %s: %d %s", path, status, text)
		}
		if header.Get("Content-Type") != "application/json" {
			t.Errorf("GET %s has content type %q", path, header.Get("Content-Type"))
		}
		answers[name] = text
	}
	for name, text := range answers {
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		got := map[string]bool{}
		keyPaths(v, "", got)
		wanted := slices.DeleteFunc(slices.Clone(want.Paths[name]), isAbsent)
		missing := slices.DeleteFunc(wanted, func(path string) bool { return got[path] })
		if len(missing) > 0 {
			t.Errorf("answer %q lacks keys that Nomad's has:\n%s", name, strings.Join(missing, "\n"))
		}
	}
	if len(want.Paths) != len(slices.Collect(maps.Keys(answers))) {
		t.Errorf("%d answers were compared of %d recorded", len(answers), len(want.Paths))
	}
}
