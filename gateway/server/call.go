package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/heteroflow/heteroflow/gateway/balance"
	"github.com/heteroflow/heteroflow/gateway/body"
	"github.com/heteroflow/heteroflow/gateway/limit"
	"github.com/heteroflow/heteroflow/gateway/relay"
	"github.com/heteroflow/heteroflow/gateway/route"
	"github.com/heteroflow/heteroflow/gateway/session"
	"github.com/heteroflow/heteroflow/internal/auth"
	"github.com/heteroflow/heteroflow/internal/store"
)

// serveOperation answers one of the operations that every engine may have. row is the id of its row of usage.
func (h *handler) serveOperation(w http.ResponseWriter, r *http.Request, who auth.Identity, operation relay.Operation, row string) {
	c := h.newCall(w, r, who, operation, row)
	defer c.end()
	defer connOf(r).answer()()
	if operation.Form {
		c.serveForm()
		return
	}
	c.serveJSON()
}

// servePath answers a path of an engine's own, for models whose owner opened it.
func (h *handler) servePath(w http.ResponseWriter, r *http.Request, who auth.Identity) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		unknownURL(w, r)
		return
	}
	c := h.newCall(w, r, who, relay.Unknown(r.URL.Path), newRequestID()[len(requestPrefix):])
	c.asks.Answers = true // it may be anything
	c.path = r.URL.Path
	defer c.end()
	defer connOf(r).answer()()
	c.serveJSON()
}

// call is one request to an engine, from the key's check to its row of usage.
type call struct {
	h         *handler
	w         http.ResponseWriter
	r         *http.Request
	who       auth.Identity
	operation relay.Operation
	path      string // of an engine's own, which its model's owner must have opened; empty for an operation
	row       store.Usage
	asks      limit.Ask
	known     bool // the model is one of the table

	req    body.Request // unless there is an upload
	json   relay.JSON
	upload *body.Upload
	prompt session.Prompt
}

// calls are memory that is used again: nothing of a call is kept once it has ended.
var calls = sync.Pool{New: func() any { return new(call) }}

// none are no tokens. It is never changed.
var none = new(int64)

func (h *handler) newCall(w http.ResponseWriter, r *http.Request, who auth.Identity, operation relay.Operation, row string) *call {
	c := calls.Get().(*call) //nolint:forcetypeassert // nothing else is put there
	c.h, c.w, c.r, c.who, c.operation = h, w, r, who, operation
	c.row = store.Usage{
		ID: row, Tenant: who.Tenant, KeyID: who.KeyID, Operation: operation.Name, End: store.EndRefused,
		StartedAt: time.Now().UTC(), PromptTokens: none, CompletionTokens: none, // until an engine is asked
	}
	return c
}

// end records the call and gives up its memory.
func (c *call) end() {
	c.record()
	*c = call{}
	calls.Put(c)
}

// refuse answers with an error before any backend was touched.
func (c *call) refuse(status int, code, message string) {
	c.row.Status = status
	relay.WriteError(c.w, c.r, status, "invalid_request_error", code, message)
}

// refuseBody answers for a body that cannot be read or understood.
func (c *call) refuseBody(err error) {
	switch {
	case errors.Is(err, body.ErrTooLarge):
		c.w.Header().Set("Connection", "close") // what is left of it is not read
		c.refuse(http.StatusRequestEntityTooLarge, "body_too_large", fmt.Sprintf("The body is over the limit of %d bytes.", c.h.maxBody))
	case errors.Is(err, body.ErrBad):
		text := strings.TrimPrefix(err.Error(), body.ErrBad.Error()+": ")
		if rest, ok := strings.CutPrefix(text, "it "); ok {
			text = "We could not read the body of your request: it " + rest + "."
		}
		c.refuse(http.StatusBadRequest, "", text)
	case c.r.Context().Err() != nil:
		c.row.Status, c.row.End = relay.StatusClientGone, store.EndClientGone
	default:
		c.refuse(http.StatusBadRequest, "body_cut_short", "The body ended before it was complete.")
	}
}

// serveJSON answers a call whose body is an object.
func (c *call) serveJSON() {
	if coding := c.r.Header.Get("Content-Encoding"); coding != "" && coding != "identity" {
		c.refuse(http.StatusUnsupportedMediaType, "content_encoding", fmt.Sprintf("A body with Content-Encoding %q is not read: send it as it is.", coding))
		return
	}
	raw, err := body.Take(c.r.Body, c.r.ContentLength, c.h.maxBody)
	if err != nil {
		c.refuseBody(err)
		return
	}
	defer body.Free(raw)
	req := &c.req
	if err := req.Read(raw); err != nil {
		c.refuseBody(err)
		return
	}
	target, ok := c.target(req.Model)
	if !ok {
		return
	}
	if c.path != "" && !slices.Contains(target.Paths, c.path) {
		unknownURL(c.w, c.r)
		c.row.Status = http.StatusNotFound
		return
	}
	c.row.Stream = req.Stream
	c.asks.Prompt, c.asks.Max = int64(req.PromptTokens), req.Longest()
	c.prompt = session.Read(raw, session.Scope{
		Tenant: c.who.Tenant, Model: req.Model, Header: c.r.Header.Get("X-Session-Id"), Single: c.operation.Token == "",
	})
	c.exchange(target, int64(len(raw)))
}

// sent is the call as it is sent to the target.
func (c *call) sent(t route.Target) relay.Call {
	call := relay.Call{
		Operation: c.operation, Model: c.row.Model, Stream: c.row.Stream, Service: t.Service, Pool: t.Pool, Rules: c.h.rulesOf(t), Client: c.client(),
		Ask: balance.Ask{Policy: t.Policy, Prompt: c.prompt},
	}
	if c.upload != nil {
		call.Content = relay.Form(c.upload, t.Served, c.r.ContentLength)
		return call
	}
	c.json = relay.JSON{Request: &c.req, Served: t.Served}
	call.Content, call.WantUsage, call.PromptTokens = &c.json, c.req.WantUsage, c.req.PromptTokens
	return call
}

// client tells how the client does; nil where that cannot be told.
func (c *call) client() relay.Client {
	if w, ok := c.w.(relay.Client); ok {
		return w
	}
	if conn := connOf(c.r); conn != nil {
		return conn
	}
	return nil
}

// serveForm answers a call whose body is a form with files.
func (c *call) serveForm() {
	if c.r.ContentLength > c.h.maxBody {
		c.refuseBody(body.ErrTooLarge)
		return
	}
	upload, err := body.NewUpload(c.r.Body, c.r.Header.Get("Content-Type"), "", c.h.maxBody)
	if err != nil {
		c.refuseBody(err)
		return
	}
	defer func() {
		if err := upload.Close(); err != nil {
			c.h.log.Warn("upload not cleaned up", "error", err)
		}
	}()
	model, err := upload.Model()
	if err != nil {
		c.refuseBody(err)
		return
	}
	target, ok := c.target(model)
	if !ok {
		return
	}
	c.upload = upload
	c.prompt = session.Read(nil, session.Scope{Tenant: c.who.Tenant, Model: model, Header: c.r.Header.Get("X-Session-Id"), Single: true})
	c.exchange(target, formKept)
}

// formKept is how much of a form is in memory, at most, in bytes.
const formKept = 1 << 20

// target finds what serves the model for this caller, or has answered.
func (c *call) target(model string) (route.Target, bool) {
	c.row.Model = model
	target, ok := c.h.table.Lookup(model)
	if !ok || !may(c.who, target) {
		c.row.Status = http.StatusNotFound
		noModel(c.w, c.r, model)
		return target, false
	}
	c.known = true
	c.row.EndpointID, c.row.Service, c.row.ServedModel = target.EndpointID, target.Service, target.Served
	return target, true
}

// exchange has the call answered, and notes how it went. size is what the call keeps in memory, in bytes.
func (c *call) exchange(target route.Target, size int64) {
	reserved, ok := c.reserve()
	if !ok {
		return
	}
	defer func() { reserved.Settle(c.used()) }() // also when the exchange ends in a panic
	c.h.metrics.inFlight.Inc()
	defer c.h.metrics.inFlight.Dec()
	o := c.held(target, size)
	row := &c.row
	row.Status, row.End, row.Backend, row.Tries, row.FirstByte = o.Status, o.End, o.Backend, len(o.Tried), o.FirstByte
	row.PromptTokens, row.CachedTokens, row.CompletionTokens = o.Usage.PromptTokens, o.Usage.CachedTokens, o.Usage.CompletionTokens
	row.Estimated, row.Chunks = o.Estimated, o.Chunks
	if len(o.Tried) > 1 || len(o.Tried) == 1 && o.Tried[0].Error != "" {
		tried, err := json.Marshal(o.Tried)
		if err != nil {
			panic(fmt.Sprintf("encode tries: %v", err)) // texts and numbers
		}
		row.Tried = string(tried)
	}
}

// record writes the request's row of usage, whatever happened.
func (c *call) record() {
	c.row.Duration = time.Since(c.row.StartedAt)
	if c.known {
		c.h.metrics.observe(&c.row)
		if c.h.signals != nil {
			c.h.signals.observe(c.row)
		}
	}
	c.h.meter.Record(c.row)
	if !c.h.log.IsDebug() {
		return // its arguments cost memory
	}
	c.h.log.Debug("request", "request_id", c.r.Header.Get("X-Request-Id"), "operation", c.row.Operation, "status", c.row.Status, "end", c.row.End,
		"backend", c.row.Backend, "tries", c.row.Tries, "duration", c.row.Duration)
}
