package nomadhttp

import (
	"net/http"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/internal/embedded/core"
)

// Endpoints whose path is fixed, by path after /v1.
var fixed = map[string]endpoint{
	"jobs":                             (*request).jobs,
	"jobs/parse":                       (*request).jobsParse,
	"jobs/statuses":                    (*request).notHere,
	"validate/job":                     (*request).validateJob,
	"evaluations":                      (*request).evaluations,
	"allocations":                      (*request).allocations,
	"nodes":                            (*request).nodes,
	"node/pools":                       (*request).nodePools,
	"deployments":                      (*request).deployments,
	"services":                         (*request).services,
	"event/stream":                     (*request).events,
	"agent/self":                       (*request).agentSelf,
	"agent/members":                    (*request).agentMembers,
	"agent/servers":                    (*request).agentServers,
	"agent/health":                     (*request).agentHealth,
	"status/leader":                    (*request).leader,
	"status/peers":                     (*request).peers,
	"regions":                          (*request).regions,
	"namespaces":                       (*request).namespaces,
	"operator/scheduler/configuration": (*request).schedulerConfiguration,
	"acl/token/self":                   (*request).aclSelf,
	"system/gc":                        (*request).systemGC,
	"system/reconcile/summaries":       (*request).nothingToDo,
	"search":                           (*request).search,
	"client/stats":                     (*request).clientStats,
}

// Endpoints by the first segment, for paths with a name in them.
var named = map[string]endpoint{
	"job":        (*request).job,
	"evaluation": (*request).evaluation,
	"allocation": (*request).allocation,
	"node":       (*request).node,
	"deployment": (*request).deployment,
	"service":    (*request).service,
	"namespace":  (*request).namespaceInfo,
	"client":     (*request).client,
}

func (s *Server) route(q *request) (any, error) {
	rest, ok := strings.CutPrefix(q.r.URL.EscapedPath(), "/v1/")
	if !ok {
		if q.r.URL.Path == "/" {
			return raw{"text/plain; charset=utf-8", []byte("HeteroFlow's embedded engine: the part of Nomad's API that HeteroFlow uses, under /v1.\n")}, nil
		}
		return nil, beyond(q.r.URL.Path)
	}
	path, err := split(rest)
	if err != nil {
		return nil, err
	}
	q.path = path
	if region := q.query.Get("region"); region != "" && region != "global" {
		return nil, core.Invalid("No path to region")
	}
	if f := fixed[strings.TrimSuffix(rest, "/")]; f != nil {
		return f(q)
	}
	if f := named[path[0]]; f != nil && len(path) > 1 {
		return f(q)
	}
	if path[0] == "acl" {
		return nil, core.Bad("ACL support disabled")
	}
	return q.notHere()
}

func (q *request) notHere() (any, error) { return nil, beyond(q.r.URL.Path) }

func (q *request) nothingToDo() (any, error) {
	if !q.put() {
		return nil, errMethod
	}
	return nil, nil
}

// Last segments of a job's path that say what is asked of the job.
var jobActions = []string{
	"plan", "evaluate", "scale", "revert", "dispatch", "summary", "allocations", "evaluations", "deployment", "deployments",
	"versions", "submission", "stable", "services", "action", "actions", "tag",
}

// jobPath takes a job's id and the action out of a path. An id with slashes may come encoded, as one segment, or bare.
func jobPath(path []string) (id, action string) {
	segments := path[1:]
	n := len(segments)
	switch {
	case n >= 3 && segments[n-2] == "periodic" && segments[n-1] == "force":
		return strings.Join(segments[:n-2], "/"), "periodic/force"
	case n >= 3 && segments[n-2] == "dispatch" && segments[n-1] == "payload":
		return strings.Join(segments[:n-2], "/"), "dispatch/payload"
	case n >= 2 && slices.Contains(jobActions, segments[n-1]):
		return strings.Join(segments[:n-1], "/"), segments[n-1]
	}
	return strings.Join(segments, "/"), ""
}

func (q *request) only(method string) error {
	switch {
	case method == http.MethodGet && q.get(), method == http.MethodPut && q.put(), method == q.r.Method:
		return nil
	}
	return errMethod
}
