package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/httpx"
	"github.com/heteroflow/heteroflow/internal/nomadapi"
	"github.com/heteroflow/heteroflow/placement-service/identity"
	"github.com/heteroflow/heteroflow/placement-service/submit"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

type handler func(w http.ResponseWriter, r *http.Request, who identity.Who) error

// admitted is the handler of a request that does not simply pass; nil for those that do.
func (p *Proxy) admitted(r *http.Request) handler {
	writing := r.Method == http.MethodPut || r.Method == http.MethodPost
	switch {
	case writing && r.URL.Path == "/v1/jobs":
		return p.register
	case writing && r.URL.Path == "/v1/validate/job":
		return p.validate
	}
	id, suffix, ok := splitJob(r.URL)
	if !ok {
		return nil
	}
	switch {
	case writing && suffix == "":
		return func(w http.ResponseWriter, r *http.Request, who identity.Who) error {
			return p.registerAs(w, r, who, id)
		}
	case writing && suffix == "/plan":
		return func(w http.ResponseWriter, r *http.Request, who identity.Who) error { return p.plan(w, r, who, id) }
	case writing && suffix == "/scale":
		return func(w http.ResponseWriter, r *http.Request, who identity.Who) error {
			return p.change(w, r, who, id, &api.ScalingRequest{}, p.Submit.Scale)
		}
	case writing && suffix == "/revert":
		return func(w http.ResponseWriter, r *http.Request, who identity.Who) error {
			return p.change(w, r, who, id, &api.JobRevertRequest{}, p.Submit.Revert)
		}
	case r.Method == http.MethodDelete && suffix == "":
		return func(w http.ResponseWriter, r *http.Request, who identity.Who) error { return p.stop(w, r, who, id) }
	}
	return nil
}

func (p *Proxy) register(w http.ResponseWriter, r *http.Request, who identity.Who) error {
	return p.registerAs(w, r, who, "")
}

// registerAs registers a job; id is what the path says, empty when it says nothing.
func (p *Proxy) registerAs(w http.ResponseWriter, r *http.Request, who identity.Who, id string) error {
	env, err := readTree(w, r, &api.JobRegisterRequest{})
	if err != nil {
		return err
	}
	if err := p.address(env, r, id); err != nil {
		return err
	}
	if err := reachable(env); err != nil {
		return err
	}
	if err := p.mayRegister(r, who, env); err != nil {
		return err
	}
	if err := p.mayWrite(r, who, env); err != nil {
		return err
	}
	result, err := p.Submit.Register(r.Context(), who.Caller(), env)
	if err != nil {
		return err
	}
	answer(w, result.Answer)
	return nil
}

// address settles which job a request is about: for namespaces the query goes before the body and the body before
// the job, and the id in the path must be the job's.
func (p *Proxy) address(env submit.Tree, r *http.Request, id string) error {
	job, ok := env["Job"].(submit.Tree)
	if !ok {
		return httpx.NewProblem(http.StatusBadRequest, httpx.CodeWrongType, `/Job must be an object: send {"Job": {…}}, as nomad job run does`)
	}
	namespace := r.URL.Query().Get("namespace")
	if body, _ := env["Namespace"].(string); namespace == "" {
		namespace = body
	}
	if namespace != "" {
		job["Namespace"] = namespace
		env["Namespace"] = namespace
	}
	have, _ := job["ID"].(string)
	if id != "" && have != id {
		return httpx.NewProblem(http.StatusBadRequest, "id_differs", fmt.Sprintf("Job ID %q of the body does not match %q of the path", have, id))
	}
	return nil
}

// reachable refuses an id that Nomad takes and then reads, in a path, as something else: nobody could stop that job.
func reachable(env submit.Tree) error {
	id, _ := env["Job"].(submit.Tree)["ID"].(string)
	path := "/v1/job/" + id
	_, suffix, ok := splitJob(&url.URL{Path: path})
	switch {
	case id == "." || id == "..":
		suffix = id
	case !ok || suffix == "":
		return nil
	}
	detail := fmt.Sprintf("%q ends in %s, which Nomad's API takes for something else than a part of the name, so that the job could not be stopped: choose another ID", id, suffix)
	return httpx.NewProblem(http.StatusBadRequest, "bad_id", "/Job/ID "+detail).At("/Job/ID", detail)
}

// mayWrite asks Nomad for those who came with a Nomad token, since the job is registered with ours.
func (p *Proxy) mayWrite(r *http.Request, who identity.Who, env submit.Tree) error {
	if who.NomadToken == "" || who.Tenant == "" {
		return nil
	}
	job := env["Job"].(submit.Tree)
	id, _ := job["ID"].(string)
	namespace, _ := job["Namespace"].(string)
	body, err := json.Marshal(submit.Tree{"Job": job, "Diff": false})
	if err != nil {
		return fmt.Errorf("encode job %s: %w", id, err)
	}
	may, err := p.Nomad.MayPlan(r.Context(), who.NomadToken, namespace, id, body)
	if err != nil {
		return &submit.Unavailable{Part: "nomad", Err: err}
	}
	if !may {
		return httpx.NewProblem(http.StatusForbidden, "forbidden", "Permission denied")
	}
	return nil
}

func (p *Proxy) plan(w http.ResponseWriter, r *http.Request, who identity.Who, id string) error {
	env, err := readTree(w, r, &api.JobPlanRequest{})
	if err != nil {
		return err
	}
	if err := p.address(env, r, id); err != nil {
		return err
	}
	if err := p.mayWrite(r, who, env); err != nil {
		return err
	}
	tree, err := p.Submit.Plan(r.Context(), who.Caller(), env)
	if err != nil {
		return err
	}
	answer(w, tree)
	return nil
}

func (p *Proxy) validate(w http.ResponseWriter, r *http.Request, who identity.Who) error {
	env, err := readTree(w, r, &api.JobValidateRequest{})
	if err != nil {
		return err
	}
	if err := p.address(env, r, ""); err != nil {
		return err
	}
	problems, clean, err := p.Submit.Check(env)
	if err != nil {
		return err
	}
	env["Job"] = clean
	delete(env, "SecretID")
	body, err := json.Marshal(env)
	if err != nil {
		return fmt.Errorf("encode job: %w", err)
	}
	namespace, _ := clean["Namespace"].(string)
	tree, err := p.Nomad.Validate(r.Context(), namespace, body)
	switch {
	case err == nil:
	case nomadapi.IsAnswer(err):
		return &submit.Answer{Status: nomadapi.StatusOf(err), Text: nomadapi.AnswerText(err)}
	default:
		return &submit.Unavailable{Part: "nomad", Err: err}
	}
	if len(problems) > 0 {
		list, _ := tree["ValidationErrors"].([]any)
		texts := []string{}
		for _, problem := range problems {
			list = append(list, problem.String())
			texts = append(texts, "* "+problem.String())
		}
		tree["ValidationErrors"] = list
		text, _ := tree["Error"].(string)
		tree["Error"] = strings.TrimSpace(text + "\n" + fmt.Sprintf("%d error(s) occurred:\n\n%s", len(problems), strings.Join(texts, "\n")))
	}
	answer(w, tree)
	return nil
}

// change is for scale and revert: with asks by registering anew, otherwise by Nomad itself.
func (p *Proxy) change(w http.ResponseWriter, r *http.Request, who identity.Who, id string, shape any,
	do func(ctx context.Context, caller submit.Caller, key watch.JobKey, request submit.Tree) (submit.Result, error),
) error {
	body, err := httpx.ReadBody(w, r, bodyLimit)
	if err != nil {
		return err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	tree, err := readTree(w, r, shape)
	if err != nil {
		return err
	}
	key := watch.JobKey{Namespace: p.namespace(r, tree), ID: id}
	if who.NomadToken != "" && who.Tenant != "" {
		stored, err := p.Nomad.Job(r.Context(), key.Namespace, key.ID)
		if err == nil {
			err = p.mayWrite(r, who, submit.Tree{"Job": stored})
		}
		if err != nil && !nomadapi.IsNotFound(err) {
			return err
		}
	}
	result, err := do(r.Context(), who.Caller(), key, tree)
	if errors.Is(err, submit.ErrPass) {
		if key.Namespace != p.namespace(r, nil) { // what was checked and what Nomad takes must be one
			query := r.URL.Query()
			query.Set("namespace", key.Namespace)
			r.URL.RawQuery = query.Encode()
			if err := p.checkTenant(r, who); err != nil {
				return err
			}
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		r.ContentLength = int64(len(body))
		p.pass(w, r, who)
		return nil
	}
	if err != nil {
		return err
	}
	answer(w, result.Answer)
	return nil
}

func (p *Proxy) namespace(r *http.Request, body submit.Tree) string {
	if ns := r.URL.Query().Get("namespace"); ns != "" {
		return ns
	}
	if ns, _ := body["Namespace"].(string); ns != "" {
		return ns
	}
	return "default"
}

func (p *Proxy) stop(w http.ResponseWriter, r *http.Request, who identity.Who, id string) error {
	key := watch.JobKey{Namespace: p.namespace(r, nil), ID: id}
	query := r.URL.Query()
	held, err := p.held(r, key)
	if err != nil {
		return &submit.Unavailable{Part: "the database", Err: err}
	}
	// What Nomad has, Nomad stops, with all that the request says; the watcher sees it happen.
	if held == nil && (who.NomadToken != "" || query.Get("global") != "" || query.Get("eval_priority") != "" || query.Get("no_shutdown_delay") != "") {
		p.pass(w, r, who)
		return nil
	}
	if held != nil && who.NomadToken != "" && who.Tenant != "" {
		var env submit.Tree
		if err := nomadapi.DecodeTree(held.Spec, &env); err != nil {
			return fmt.Errorf("read the stored job %s: %w", id, err)
		}
		if err := p.mayWrite(r, who, env); err != nil {
			return err
		}
	}
	_, evalID, err := p.Submit.Stop(r.Context(), who.Caller(), key, query.Get("purge") == "true")
	if err != nil {
		return err
	}
	answer(w, submit.Tree{
		"EvalID": evalID, "EvalCreateIndex": 0, "JobModifyIndex": 0, "Index": 1, "LastContact": 0, "KnownLeader": true,
	})
	return nil
}

// answer writes a tree as Nomad does.
func answer(w http.ResponseWriter, tree submit.Tree) {
	if index, ok := tree["Index"].(json.Number); ok {
		w.Header().Set("X-Nomad-Index", index.String())
	}
	w.Header().Set("X-Nomad-KnownLeader", "true")
	w.Header().Set("X-Nomad-LastContact", "0")
	httpx.WriteJSON(w, http.StatusOK, tree)
}
