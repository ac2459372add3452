package proxy

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/internal/httpx"
	"github.com/heteroflow/heteroflow/internal/nomadapi"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/identity"
	"github.com/heteroflow/heteroflow/placement-service/submit"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

// modify adds to Nomad's answers what Nomad does not know: the jobs that the service holds.
func (p *Proxy) modify(resp *http.Response) error {
	r := resp.Request
	if sender, _ := r.Context().Value(contextKey{}).(seen); bound(sender.who) {
		if err := p.filter(resp, sender.who); err != nil {
			return err
		}
	}
	if r.Method != http.MethodGet {
		return nil
	}
	if r.URL.Path == "/v1/jobs" && resp.StatusCode == http.StatusOK {
		return p.addJobs(resp)
	}
	found, err := p.heldFor(r)
	if err != nil || found == nil {
		return p.notRead(err)
	}
	_, suffix, isJob := splitJob(r.URL)
	if isJob && suffix == "" && resp.StatusCode == http.StatusOK && submit.Evicted(*found) {
		return p.showEvicted(resp, *found)
	}
	if resp.StatusCode != http.StatusNotFound && (!isJob || suffix != "/evaluations" || resp.StatusCode != http.StatusOK) {
		return nil
	}
	if resp.StatusCode == http.StatusOK { // evaluations, which Nomad answers with an empty list
		body, err := readBody(resp)
		if err != nil {
			return err
		}
		if !bytes.Equal(bytes.TrimSpace(body), []byte("[]")) && !bytes.Equal(bytes.TrimSpace(body), []byte("null")) {
			setBody(resp, body)
			return nil
		}
	}
	body, err := json.Marshal(viewOf(r, *found))
	if err != nil {
		return fmt.Errorf("encode held job %s: %w", found.ID, err)
	}
	resp.StatusCode, resp.Status = http.StatusOK, "200 OK"
	resp.Header.Set("Content-Type", "application/json")
	if resp.Header.Get("X-Nomad-Index") == "" {
		resp.Header.Set("X-Nomad-Index", "1")
	}
	if err := resp.Body.Close(); err != nil {
		p.log.Debug("answer of nomad not closed", "error", err)
	}
	setBody(resp, body)
	return nil
}

// notRead is for answers that cannot be completed because the database is away: Nomad's own is still true.
func (p *Proxy) notRead(err error) error {
	if err != nil {
		p.log.Warn("held jobs not read", "error", err)
	}
	return nil
}

// held is the job as the service holds it; nil when Nomad has it, or nobody.
func (p *Proxy) held(r *http.Request, key watch.JobKey) (*store.Job, error) {
	job, err := p.Store.Job(r.Context(), key.Namespace, key.ID)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return onlyHeld(job), nil
}

func onlyHeld(job store.Job) *store.Job {
	switch job.State {
	case store.JobWaiting, store.JobSubmitting, store.JobRefused:
		return &job
	}
	return nil
}

// heldFor is the held job that a request asks about, by the job's path or by one of its evaluations.
func (p *Proxy) heldFor(r *http.Request) (*store.Job, error) {
	if id, suffix, ok := splitJob(r.URL); ok {
		if viewNames[suffix] {
			return p.held(r, watch.JobKey{Namespace: p.namespace(r, nil), ID: id})
		}
		return nil, nil
	}
	id, ok := strings.CutPrefix(r.URL.Path, "/v1/evaluation/")
	if !ok {
		return nil, nil
	}
	id, _, _ = strings.Cut(id, "/")
	job, err := p.Store.JobByEval(r.Context(), submit.EvalIDOf(id))
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return onlyHeld(job), nil
}

// serveHeld answers for a held job while Nomad cannot be reached. It reports whether it did.
func (p *Proxy) serveHeld(w http.ResponseWriter, r *http.Request) bool {
	if r.Method != http.MethodGet {
		return false
	}
	found, err := p.heldFor(r)
	if err != nil || found == nil {
		return false
	}
	w.Header().Set("X-Nomad-Index", "1")
	httpx.WriteJSON(w, http.StatusOK, viewOf(r, *found))
	return true
}

// addJobs puts the jobs that Nomad does not have behind its list.
func (p *Proxy) addJobs(resp *http.Response) error {
	r := resp.Request
	query := r.URL.Query()
	who, _ := r.Context().Value(contextKey{}).(seen)
	if resp.Header.Get("X-Nomad-NextToken") != "" || query.Get("filter") != "" {
		return nil // not the last page, or an expression over fields that a held job does not have
	}
	held, err := p.heldJobs(r, who.who)
	if err != nil {
		return p.notRead(err)
	}
	if len(held) == 0 {
		return nil
	}
	body, err := readBody(resp)
	if err != nil {
		return err
	}
	var list []submit.Tree
	if err := nomadapi.DecodeTree(body, &list); err != nil {
		setBody(resp, body)
		return nil // whatever it is, it is Nomad's
	}
	evicted := map[watch.JobKey]store.Job{}
	for _, job := range held {
		if submit.Evicted(job) {
			evicted[watch.JobKey{Namespace: job.Namespace, ID: job.ID}] = job
		}
	}
	have := map[watch.JobKey]bool{}
	kept := make([]submit.Tree, 0, len(list)+len(held))
	for _, stub := range list {
		key := keyOfStub(stub, p.namespace(r, nil))
		have[key] = true
		if job, ok := evicted[key]; ok {
			stub = overNomad(stubView(job), stub)
		}
		kept = append(kept, stub)
	}
	for _, job := range held {
		if key := (watch.JobKey{Namespace: job.Namespace, ID: job.ID}); !have[key] {
			kept = append(kept, stubView(job))
		}
	}
	out, err := json.Marshal(kept)
	if err != nil {
		return fmt.Errorf("encode job list: %w", err)
	}
	setBody(resp, out)
	return nil
}

func keyOfStub(stub submit.Tree, namespace string) watch.JobKey {
	id, _ := stub["ID"].(string)
	if ns, _ := stub["Namespace"].(string); ns != "" {
		namespace = ns
	}
	return watch.JobKey{Namespace: namespace, ID: id}
}

// heldJobs lists the held jobs that the request's list would have.
func (p *Proxy) heldJobs(r *http.Request, who identity.Who) ([]store.Job, error) {
	query := r.URL.Query()
	filter := store.JobFilter{Prefix: query.Get("prefix"), Namespace: p.namespace(r, nil)}
	if filter.Namespace == nomadapi.AllNamespaces {
		filter.Namespace = ""
	}
	if who.NomadToken == "" {
		filter.Tenant = who.Tenant
	}
	var out []store.Job
	for _, state := range []string{store.JobWaiting, store.JobSubmitting} {
		filter.State = state
		page := store.Page{Limit: 500}
		for {
			jobs, next, err := p.Store.ListJobs(r.Context(), filter, page)
			if err != nil {
				return nil, err
			}
			out = append(out, jobs...)
			if next == "" {
				break
			}
			page.Cursor = next
		}
	}
	return out, nil
}

// readBody reads an answer, unpacked.
func readBody(resp *http.Response) ([]byte, error) {
	defer resp.Body.Close()
	var from io.Reader = resp.Body
	if resp.Header.Get("Content-Encoding") == "gzip" {
		packed, err := gzip.NewReader(resp.Body)
		if err != nil {
			return nil, fmt.Errorf("unpack answer of nomad: %w", err)
		}
		from = packed
	}
	body, err := io.ReadAll(from)
	if err != nil {
		return nil, fmt.Errorf("read answer of nomad: %w", err)
	}
	return body, nil
}

// setBody gives an answer another body, not packed.
func setBody(resp *http.Response, body []byte) {
	resp.Body = io.NopCloser(bytes.NewReader(body))
	resp.ContentLength = int64(len(body))
	resp.TransferEncoding = nil
	resp.Header.Del("Content-Encoding")
	resp.Header.Set("Content-Length", strconv.Itoa(len(body)))
}
