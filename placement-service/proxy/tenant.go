package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/heteroflow/heteroflow/internal/auth"
	"github.com/heteroflow/heteroflow/internal/httpx"
	"github.com/heteroflow/heteroflow/internal/nomadapi"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/identity"
	"github.com/heteroflow/heteroflow/placement-service/submit"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

// bound reports whether the sender may only see and touch what is of one tenant. Whoever came with a Nomad token is
// judged by Nomad.
func bound(who identity.Who) bool { return who.Tenant != "" && who.NomadToken == "" }

// checkTenant keeps a tenant's key from the jobs of others, and from what belongs to those jobs: allocations,
// evaluations and deployments.
func (p *Proxy) checkTenant(r *http.Request, who identity.Who) error {
	if !bound(who) {
		return nil
	}
	if everybodys(r.URL.Path) {
		return httpx.NewProblem(http.StatusForbidden, "forbidden", "this shows the jobs of every tenant: use an admin key or a Nomad token")
	}
	verb, _ := need(r)
	if id, _, ok := splitJob(r.URL); ok {
		key := watch.JobKey{Namespace: p.namespace(r, nil), ID: id}
		if key.Namespace == nomadapi.AllNamespaces {
			return httpx.NewProblem(http.StatusBadRequest, "bad_namespace", "one job is of one namespace: write its name in place of *")
		}
		return p.checkJob(r.Context(), who, key, verb == auth.Write && !registers(r))
	}
	kind, id := objectOf(r.URL.Path)
	if kind == "" {
		return nil
	}
	key, err := p.jobOf(r.Context(), kind, id)
	if err != nil || key.ID == "" {
		return err
	}
	return p.checkJob(r.Context(), who, key, verb == auth.Write)
}

// everybodys are the parts of Nomad's API that show all jobs in a form that is not taken apart here.
func everybodys(path string) bool {
	return strings.HasPrefix(path, "/v1/event/") || strings.HasPrefix(path, "/v1/scaling/") || path == "/v1/search/fuzzy"
}

// registers reports whether the request brings the job that it is about: whose the job is is then checked with it.
func registers(r *http.Request) bool {
	_, suffix, _ := splitJob(r.URL)
	return writes(r.Method) && r.Method != http.MethodDelete && (suffix == "" || suffix == "/plan")
}

// deploymentVerbs are what may stand between /v1/deployment/ and an id.
var deploymentVerbs = map[string]bool{
	"allocations": true, "pause": true, "promote": true, "fail": true, "unblock": true, "allocation-health": true,
}

// objectOf is the one object that a path is about, in the words of Nomad's paths; empty when there is none.
func objectOf(path string) (kind, id string) {
	parts := strings.Split(strings.TrimPrefix(path, "/v1/"), "/")
	at := func(i int) string {
		if i < len(parts) {
			return parts[i]
		}
		return ""
	}
	switch {
	case at(0) == "allocation", at(0) == "evaluation":
		return at(0), at(1)
	case at(0) == "deployment" && deploymentVerbs[at(1)]:
		return at(0), at(2)
	case at(0) == "deployment":
		return at(0), at(1)
	case at(0) == "client" && at(1) == "allocation":
		return at(1), at(2)
	case at(0) == "client" && at(1) == "fs":
		return "allocation", at(3)
	}
	return "", ""
}

// jobOf finds the job that an object belongs to; no ID when nobody knows the object. Nomad has the last word: it
// takes ids in other spellings than its own, and has objects that this instance has not heard of yet.
func (p *Proxy) jobOf(ctx context.Context, kind, id string) (watch.JobKey, error) {
	if kind == "allocation" {
		if key, ok := p.World.JobOf(id); ok {
			return key, nil
		}
	}
	if kind == "evaluation" {
		job, err := p.Store.JobByEval(ctx, submit.EvalIDOf(id))
		if err == nil {
			return watch.JobKey{Namespace: job.Namespace, ID: job.ID}, nil
		}
		if !errors.Is(err, store.ErrNotFound) {
			return watch.JobKey{}, p.databaseAway(err)
		}
	}
	key, err := p.Nomad.Owner(ctx, kind, id)
	switch {
	case err == nil:
		return watch.JobKey{Namespace: key.Namespace, ID: key.JobID}, nil
	case nomadapi.IsAnswer(err):
		return watch.JobKey{}, httpx.NewProblem(nomadapi.StatusOf(err), "not_found", nomadapi.AnswerText(err))
	}
	return watch.JobKey{}, httpx.NewProblem(http.StatusBadGateway, "nomad_unavailable", "Nomad cannot be reached to find whose "+kind+" that is: try again")
}

// databaseAway is what a caller is told when the database failed; the log has the error itself.
func (p *Proxy) databaseAway(err error) error {
	p.log.Warn("job of a request not looked up", "error", err)
	return httpx.NewProblem(http.StatusServiceUnavailable, "database_unavailable", "the database cannot be reached: try again")
}

// checkJob refuses what is of another tenant. What nobody brought through the service may be looked at, but only an
// operator may touch it.
func (p *Proxy) checkJob(ctx context.Context, who identity.Who, key watch.JobKey, touch bool) error {
	tenant, known, err := p.tenantOf(ctx, key)
	switch {
	case err != nil:
		return p.databaseAway(err)
	case known && tenant != who.Tenant:
		return httpx.NewProblem(http.StatusForbidden, "forbidden", "job "+key.ID+" belongs to another tenant")
	case known || !touch:
		return nil
	}
	switch _, err = p.Nomad.Job(ctx, key.Namespace, key.ID); {
	case nomadapi.IsNotFound(err):
		return nil // Nomad says so itself
	case err != nil && !nomadapi.IsAnswer(err):
		return httpx.NewProblem(http.StatusBadGateway, "nomad_unavailable", "Nomad cannot be reached to find whose job that is: try again")
	}
	return httpx.NewProblem(http.StatusForbidden, "forbidden", "job "+key.ID+" did not come through the placement service: ask an operator")
}

// mayRegister keeps a tenant's key from taking over a job that it did not bring itself.
func (p *Proxy) mayRegister(r *http.Request, who identity.Who, env submit.Tree) error {
	if !bound(who) {
		return nil
	}
	job, _ := env["Job"].(submit.Tree)
	id, _ := job["ID"].(string)
	if id == "" {
		return nil // refused for that
	}
	key := watch.JobKey{Namespace: "default", ID: id}
	if ns, _ := job["Namespace"].(string); ns != "" {
		key.Namespace = ns
	}
	return p.checkJob(r.Context(), who, key, true)
}

// tenantOf is whose a job is: its own row says it, or that of the job it was dispatched from.
func (p *Proxy) tenantOf(ctx context.Context, key watch.JobKey) (tenant string, known bool, err error) {
	for _, id := range []string{key.ID, parentOf(key.ID)} {
		if id == "" {
			break
		}
		job, err := p.Store.Job(ctx, key.Namespace, id)
		if err == nil {
			return job.Tenant, true, nil
		}
		if !errors.Is(err, store.ErrNotFound) {
			return "", false, err
		}
	}
	return "", false, nil
}

// parentOf is the job whose name Nomad put before a dispatched or periodic job's; empty when the name is not of that
// form.
func parentOf(id string) string {
	for _, mark := range []string{"/dispatch-", "/periodic-"} {
		if at := strings.LastIndex(id, mark); at > 0 {
			return id[:at]
		}
	}
	return ""
}

// jobNames are the fields that name the job in the entries of a list, by the list's path; not a list when empty.
func jobNames(path string) string {
	switch {
	case path == "/v1/jobs", path == "/v1/jobs/statuses":
		return "ID"
	case path == "/v1/allocations", path == "/v1/evaluations", path == "/v1/deployments",
		strings.HasPrefix(path, "/v1/node/") && strings.HasSuffix(path, "/allocations"), strings.HasPrefix(path, "/v1/service/"):
		return "JobID"
	}
	return ""
}

// hideForeign takes out of a list what belongs to the jobs of other tenants.
func (p *Proxy) hideForeign(r *http.Request, who identity.Who, list []submit.Tree, field string) ([]submit.Tree, error) {
	foreign := map[watch.JobKey]bool{}
	kept := make([]submit.Tree, 0, len(list))
	for _, item := range list {
		id, _ := item[field].(string)
		key := watch.JobKey{Namespace: p.namespace(r, nil), ID: id}
		if ns, _ := item["Namespace"].(string); ns != "" {
			key.Namespace = ns
		}
		hide, seen := foreign[key]
		if !seen {
			tenant, known, err := p.tenantOf(r.Context(), key)
			if err != nil {
				return nil, err
			}
			hide = known && tenant != who.Tenant
			foreign[key] = hide
		}
		if !hide {
			kept = append(kept, item)
		}
	}
	return kept, nil
}

// filter hides the jobs of other tenants in an answer of Nomad. Without the database nothing is shown: it would be
// too much.
func (p *Proxy) filter(resp *http.Response, who identity.Who) error {
	r := resp.Request
	field := jobNames(r.URL.Path)
	search := r.URL.Path == "/v1/search"
	if resp.StatusCode != http.StatusOK || field == "" && !search {
		return nil
	}
	body, err := readBody(resp)
	if err != nil {
		return err
	}
	var out any
	if search {
		out, err = p.filterSearch(r, who, body)
	} else {
		var list []submit.Tree
		if err = nomadapi.DecodeTree(body, &list); err == nil {
			out, err = p.hideForeign(r, who, list, field)
		}
	}
	if err != nil {
		return fmt.Errorf("hide other tenants' jobs: %w", err)
	}
	if body, err = json.Marshal(out); err != nil {
		return fmt.Errorf("encode list: %w", err)
	}
	setBody(resp, body)
	return nil
}

// filterSearch keeps of what a search found the tenant's own jobs and allocations, and what is of no job.
func (p *Proxy) filterSearch(r *http.Request, who identity.Who, body []byte) (submit.Tree, error) {
	var found submit.Tree
	if err := nomadapi.DecodeTree(body, &found); err != nil {
		return nil, err
	}
	matches, _ := found["Matches"].(submit.Tree)
	for kind, ids := range matches {
		list, _ := ids.([]any)
		kept := []any{}
		for _, entry := range list {
			id, _ := entry.(string)
			own, err := p.ownMatch(r, who, kind, id)
			if err != nil {
				return nil, err
			}
			if own {
				kept = append(kept, entry)
			}
		}
		matches[kind] = kept
	}
	return found, nil
}

func (p *Proxy) ownMatch(r *http.Request, who identity.Who, kind, id string) (bool, error) {
	key := watch.JobKey{Namespace: p.namespace(r, nil), ID: id}
	switch kind {
	case "jobs":
	case "allocs", "evals", "deployment":
		object := map[string]string{"allocs": "allocation", "evals": "evaluation", "deployment": "deployment"}[kind]
		var err error
		if key, err = p.jobOf(r.Context(), object, id); err != nil {
			var problem *httpx.Problem
			if errors.As(err, &problem) && problem.Status == http.StatusNotFound {
				return false, nil // gone meanwhile
			}
			return false, err
		}
	case "nodes", "node_pools", "namespaces", "plugins", "volumes", "host_volumes":
		return true, nil
	default:
		return false, nil
	}
	tenant, known, err := p.tenantOf(r.Context(), key)
	return !known || tenant == who.Tenant, err
}
