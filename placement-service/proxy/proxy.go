// Package proxy answers Nomad's HTTP API under /v1: writes of jobs go through admission, what waits in the queue is
// shown as pending, and everything else is passed on, streams and upgrades included, so that unmodified clients of
// Nomad work. Deciding and the service's own API do not belong here.
package proxy

import (
	"context"
	"errors"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/httpx"
	"github.com/heteroflow/heteroflow/internal/nomadapi"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/identity"
	"github.com/heteroflow/heteroflow/placement-service/submit"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

// Identify tells who sent a request.
type Identify interface {
	Of(*http.Request) (identity.Who, error)
}

// Config is what the proxy needs.
type Config struct {
	Nomad  *nomadapi.Client
	Store  *store.Store
	Submit *submit.Submitter
	World  *watch.World
	Who    Identify
	Log    hclog.Logger
}

// Proxy serves /v1. It is safe for concurrent use.
type Proxy struct {
	Config
	log     hclog.Logger
	forward *httputil.ReverseProxy
	target  *url.URL
}

type contextKey struct{}

// seen is what the answer of a passed request may need.
type seen struct {
	who identity.Who
}

// New makes a proxy.
func New(c Config) (*Proxy, error) {
	transport, target, err := c.Nomad.Transport()
	if err != nil {
		return nil, err
	}
	p := &Proxy{Config: c, log: c.Log.Named("proxy"), target: target}
	p.forward = &httputil.ReverseProxy{
		Rewrite:        p.rewrite,
		Transport:      transport,
		FlushInterval:  -1, // each line of a stream at once
		ModifyResponse: p.modify,
		ErrorHandler:   p.unreachable,
		ErrorLog:       p.log.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
	return p, nil
}

// ServeHTTP answers one request.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	who, err := p.Who.Of(r)
	if err != nil {
		fail(w, r, err)
		return
	}
	if !who.Person() {
		fail(w, r, httpx.NewProblem(http.StatusForbidden, "wrong_kind", "this kind of key does not open Nomad's API: use an admin or a tenant key"))
		return
	}
	if verb, object := need(r); who.NomadToken == "" && !who.Can(verb, object) {
		fail(w, r, httpx.NewProblem(http.StatusForbidden, "forbidden", "role "+who.Role+" may not "+verb+" "+object))
		return
	}
	if err := checkOrigin(r, who); err != nil {
		fail(w, r, err)
		return
	}
	if err := p.checkTenant(r, who); err != nil {
		fail(w, r, err)
		return
	}
	if handler := p.admitted(r); handler != nil {
		if err := handler(w, r, who); err != nil {
			p.failSubmit(w, r, err)
		}
		return
	}
	p.pass(w, r, who)
}

// pass sends the request on as it is.
func (p *Proxy) pass(w http.ResponseWriter, r *http.Request, who identity.Who) {
	p.forward.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), contextKey{}, seen{who: who})))
}

func (p *Proxy) rewrite(r *httputil.ProxyRequest) {
	r.SetURL(p.target)
	r.Out.Host = p.target.Host
	r.SetXForwarded()
	if origin := r.Out.Header.Get("Origin"); origin != "" && sameHost(origin, r.In.Host) { // Nomad wants it to agree with Host
		r.Out.Header.Set("Origin", p.target.Scheme+"://"+p.target.Host)
	}
	who := r.In.Context().Value(contextKey{}).(seen).who
	if _, _, ok := splitJob(r.In.URL); ok && bound(who) { // Nomad would else take the namespace of the body, which nobody checked
		query := r.Out.URL.Query()
		query.Set("namespace", p.namespace(r.In, nil))
		r.Out.URL.RawQuery = query.Encode()
	}
	if who.NomadToken != "" {
		return // Nomad judges its own token
	}
	r.Out.Header.Del("Authorization")
	r.Out.Header.Del("X-Nomad-Token")
	if token := p.Nomad.ServiceToken(); token != "" {
		r.Out.Header.Set("X-Nomad-Token", token)
	}
}

// crossOrigin tells requests that a page of another origin makes in its reader's browser.
var crossOrigin http.CrossOriginProtection

// checkOrigin keeps such pages out where nothing but the place it comes from speaks for a request: what needs no
// credentials any page could send from a reader's machine.
func checkOrigin(r *http.Request, who identity.Who) error {
	if who.Kind != identity.KindAnonymous {
		return nil
	}
	origin := r.Header.Get("Origin")
	if crossOrigin.Check(r) == nil && (r.Header.Get("Upgrade") == "" || origin == "" || sameHost(origin, r.Host)) {
		return nil
	}
	return httpx.NewProblem(http.StatusForbidden, "cross_origin", "a page of another origin may not do this without a key")
}

func sameHost(origin, host string) bool {
	u, err := url.Parse(origin)
	return err == nil && u.Host == host
}

func (p *Proxy) unreachable(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the client left, or said all it had to: an empty 200 would be a lie
	}
	p.log.Warn("nomad cannot be reached", "path", r.URL.Path, "error", err)
	if p.serveHeld(w, r) {
		return
	}
	http.Error(w, "Nomad cannot be reached by the placement service: try again", http.StatusBadGateway)
}

// fail answers as Nomad does: the text alone, which its clients print. Who asks for a problem gets one, with the places
// of the fields that are wrong.
func fail(w http.ResponseWriter, r *http.Request, err error) {
	var problem *httpx.Problem
	if !errors.As(err, &problem) {
		problem = httpx.NewProblem(http.StatusInternalServerError, "internal", "an internal error, see the server's log")
	}
	w.Header().Set("X-HeteroFlow-Code", problem.Code)
	if strings.Contains(r.Header.Get("Accept"), httpx.ContentTypeProblem) {
		httpx.WriteProblem(w, problem)
		return
	}
	http.Error(w, strings.TrimSpace(problem.Error()), problem.Status)
}

func (p *Proxy) failSubmit(w http.ResponseWriter, r *http.Request, err error) {
	var problem *httpx.Problem
	if errors.As(err, &problem) {
		fail(w, r, err)
		return
	}
	var refused *submit.Refused
	if errors.As(err, &refused) && submit.StatusOf(err) == http.StatusBadRequest {
		fail(w, r, refused.Problem())
		return
	}
	status := submit.StatusOf(err)
	text := err.Error()
	if status == http.StatusInternalServerError {
		var answer *submit.Answer
		if !errors.As(err, &answer) {
			p.log.Error("request failed", "path", r.URL.Path, "error", err)
			text = "an internal error, see the log of the placement service"
		}
	}
	if errors.Is(err, store.ErrNotFound) {
		text = "job not found"
	}
	http.Error(w, text, status)
}
