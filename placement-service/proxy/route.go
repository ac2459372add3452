package proxy

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/heteroflow/heteroflow/internal/auth"
)

// jobSuffixes are what may follow a job's id in a path. Nomad looks for them at the end of the decoded path, since
// an id may hold slashes.
var jobSuffixes = []string{
	"/evaluate", "/allocations", "/evaluations", "/periodic/force", "/plan", "/summary", "/dispatch/payload", "/dispatch",
	"/versions", "/revert", "/deployments", "/deployment", "/stable", "/scale", "/services", "/submission", "/actions", "/action", "/versions/tag",
}

// splitJob takes the path behind /v1/job/ apart. It looks at the decoded path, as Nomad does: a prefix with some
// letters encoded must not go round admission.
func splitJob(u *url.URL) (id, suffix string, ok bool) {
	decoded, ok := strings.CutPrefix(u.Path, "/v1/job/")
	if !ok || decoded == "" {
		return "", "", false
	}
	for _, s := range jobSuffixes {
		if id, found := strings.CutSuffix(decoded, s); found && id != "" {
			return id, s, true
		}
	}
	if id, tag, found := strings.Cut(decoded, "/versions/"); found && strings.HasSuffix(tag, "/tag") {
		return id, "/versions/tag", true
	}
	return decoded, "", true
}

// writes reports whether the method changes something.
func writes(method string) bool {
	return method != http.MethodGet && method != http.MethodHead && method != http.MethodOptions
}

// need is the right that a request to Nomad's API needs. What is not known to be harmless needs an operator's.
func need(r *http.Request) (verb, object string) {
	area, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v1/"), "/")
	switch area {
	case "job", "jobs", "allocation", "allocations", "deployment", "deployments", "evaluation", "evaluations",
		"service", "services", "scaling", "volumes", "volume", "plugins", "plugin", "namespaces", "namespace", "event", "status", "regions":
		if !writes(r.Method) || r.URL.Path == "/v1/jobs/parse" || r.URL.Path == "/v1/jobs/statuses" {
			if area == "job" && strings.HasSuffix(r.URL.Path, "/action") {
				return auth.Write, auth.Jobs
			}
			return auth.Read, auth.Jobs
		}
		if area == "job" || area == "jobs" || area == "allocation" || area == "deployment" {
			return auth.Write, auth.Jobs
		}
	case "validate":
		return auth.Write, auth.Jobs
	case "search":
		return auth.Read, auth.Jobs
	case "nodes", "node":
		if !writes(r.Method) {
			return auth.Read, auth.Nodes
		}
	case "client":
		return needClient(r, rest)
	case "agent":
		if !writes(r.Method) && (rest == "self" || rest == "health" || rest == "members") {
			return auth.Read, auth.Nodes
		}
	}
	if writes(r.Method) {
		return auth.Write, auth.Settings
	}
	return auth.Read, auth.Settings
}

// needClient is need for what client agents answer.
func needClient(r *http.Request, rest string) (verb, object string) {
	switch {
	case strings.HasPrefix(rest, "fs/"):
		return auth.Read, auth.Jobs
	case strings.HasPrefix(rest, "allocation/"):
		if writes(r.Method) || strings.HasSuffix(rest, "/exec") {
			return auth.Write, auth.Jobs
		}
		return auth.Read, auth.Jobs
	case rest == "stats" && !writes(r.Method):
		return auth.Read, auth.Nodes
	case writes(r.Method):
		return auth.Write, auth.Settings
	}
	return auth.Read, auth.Settings
}
