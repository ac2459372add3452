// Package nomadhttp speaks the part of Nomad's HTTP API that HeteroFlow, its command line and the nomad command line
// use, over the embedded engine: paths, parameters, bodies, blocking queries, streams, status codes and texts. What a
// request does is decided in the core: no rule of scheduling or of jobs is kept here.
package nomadhttp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-bexpr"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/embedded/client"
	"github.com/heteroflow/heteroflow/internal/embedded/core"
	"github.com/heteroflow/heteroflow/internal/embedded/state"
)

// maxBody is the size of the largest request body that is read.
const maxBody = 32 << 20

// Server answers requests.
type Server struct {
	Core   *core.Core
	Host   func(nodeID string) client.Backend // the node side of a node, nil without one
	Logger hclog.Logger
	Name   string // of the agent
	Addr   func() string
	// DropEvents, when it returns true, has one batch of events left out of a stream. Tests set it.
	DropEvents func(index uint64) bool
	// Local is the node to show where a request names none.
	Local func() string
}

// request is one request on its way through an endpoint.
type request struct {
	*Server
	w     http.ResponseWriter
	r     *http.Request
	path  []string // decoded segments after /v1
	query url.Values
}

// endpoint answers a request: with a value to encode, or with noAnswer when it has written one itself.
type endpoint func(*request) (any, error)

type noAnswer struct{}

// raw is an answer that is not JSON.
type raw struct {
	contentType string
	body        []byte
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() {
		if p := recover(); p != nil {
			if p == http.ErrAbortHandler {
				panic(p)
			}
			s.Logger.Error("request failed", "path", r.URL.Path, "panic", p)
			http.Error(w, "the engine failed to answer this request: its log has the reason", http.StatusInternalServerError)
		}
	}()
	q := &request{Server: s, w: w, r: r, query: r.URL.Query()}
	value, err := s.route(q)
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	switch v := value.(type) {
	case noAnswer:
	case raw:
		w.Header().Set("Content-Type", v.contentType)
		s.write(w, r, v.body)
	default:
		s.encode(w, r, value, q.query.Has("pretty"))
	}
}

func (s *Server) encode(w http.ResponseWriter, r *http.Request, value any, pretty bool) {
	if value == nil {
		w.WriteHeader(http.StatusOK)
		return
	}
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false)
	if pretty {
		enc.SetIndent("", "    ")
	}
	if err := enc.Encode(value); err != nil {
		s.refuse(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	s.write(w, r, bytes.TrimSuffix(body.Bytes(), []byte("\n")))
}

func (s *Server) write(w http.ResponseWriter, r *http.Request, body []byte) {
	if _, err := w.Write(body); err != nil {
		s.Logger.Debug("client left", "path", r.URL.Path, "error", err)
	}
}

// refuse turns an error into Nomad's plain text.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	status := http.StatusInternalServerError
	var known *core.Error
	switch {
	case errors.As(err, &known):
		status = known.Status
	case errors.Is(err, client.ErrUnknownAlloc):
		status = http.StatusNotFound
	case errors.Is(err, client.ErrNotSupported):
		status = http.StatusNotImplemented
	}
	s.Logger.Debug("request refused", "method", r.Method, "path", r.URL.Path, "status", status, "error", err)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	s.write(w, r, []byte(err.Error()))
}

var errMethod = &core.Error{Status: http.StatusMethodNotAllowed, Text: "Invalid method"}

// beyond is the answer to a path that the engine does not have.
func beyond(path string) error {
	return core.NotFound("%s is not served: the embedded engine serves one machine and the part of Nomad's API that HeteroFlow needs; for the rest use Nomad", path)
}

// split cuts an escaped path at its slashes and decodes each part, so that an encoded slash stays in its part.
func split(escaped string) ([]string, error) {
	parts := strings.Split(strings.Trim(escaped, "/"), "/")
	for i, p := range parts {
		decoded, err := url.PathUnescape(p)
		if err != nil {
			return nil, core.Bad("path can not be decoded: %s", err)
		}
		parts[i] = decoded
	}
	return parts, nil
}

// decode reads a JSON body.
func (q *request) decode(out any) error {
	body, err := io.ReadAll(http.MaxBytesReader(q.w, q.r.Body, maxBody))
	if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
		return &core.Error{Status: http.StatusRequestEntityTooLarge, Text: "Request body is larger than 32 MiB"}
	}
	if err != nil {
		return core.Bad("Request body can not be read: %s", err)
	}
	if len(bytes.TrimSpace(body)) == 0 {
		return core.Bad("Request body is empty")
	}
	if err := json.Unmarshal(body, out); err != nil {
		return core.Bad("%s", err)
	}
	var tree any
	if err := json.Unmarshal(body, &tree); err != nil {
		return core.Bad("%s", err)
	}
	if path := nullItem(tree, ""); path != "" {
		return core.Bad("%s is null: leave the item out of the list, or write it", path)
	}
	return nil
}

// nullItem finds a null in a list, which no list of the API may have, and returns its path.
func nullItem(v any, path string) string {
	switch v := v.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			if k == "Config" {
				continue // a task's config is its driver's business
			}
			if found := nullItem(v[k], strings.TrimPrefix(path+"."+k, ".")); found != "" {
				return found
			}
		}
	case []any:
		for i, x := range v {
			at := fmt.Sprintf("%s[%d]", path, i)
			if x == nil {
				return at
			}
			if found := nullItem(x, at); found != "" {
				return found
			}
		}
	}
	return ""
}

// decodeIfAny reads a JSON body where one may be left out.
func (q *request) decodeIfAny(out any) error {
	if q.r.ContentLength == 0 {
		return nil
	}
	return q.decode(out)
}

// get reports whether a request reads.
func (q *request) get() bool { return q.r.Method == http.MethodGet || q.r.Method == http.MethodHead }

// put reports whether a request writes; Nomad takes either method.
func (q *request) put() bool { return q.r.Method == http.MethodPut || q.r.Method == http.MethodPost }

// namespace is the namespace a request is for.
func (q *request) namespace() string {
	if ns := q.query.Get("namespace"); ns != "" {
		return ns
	}
	return api.DefaultNamespace
}

// flag reads a boolean parameter; an empty value is true.
func (q *request) flag(name string) (bool, error) {
	if !q.query.Has(name) || q.query.Get(name) == "" {
		return q.query.Has(name), nil
	}
	v, err := strconv.ParseBool(q.query.Get(name))
	if err != nil {
		return false, core.Bad("Failed to parse value of %q (%v) as a bool: %v", name, q.query.Get(name), err)
	}
	return v, nil
}

// number reads a whole-number parameter, 0 when it is left out.
func (q *request) number(name string) (uint64, error) {
	text := q.query.Get(name)
	if text == "" {
		return 0, nil
	}
	v, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, core.Bad("Invalid %s %q: write a whole number", name, text)
	}
	return v, nil
}

// Limits of a blocking query. Source: Nomad's API documentation.
const (
	defaultWait = 5 * time.Minute
	longestWait = 10 * time.Minute
)

// read answers from the state. With an index it waits until what f reads has a newer one, or until the wait is over.
func (q *request) read(f func(state.Reader) (value any, index uint64, err error)) (any, error) {
	after, err := q.number("index")
	if err != nil {
		return nil, core.Bad("Invalid index")
	}
	wait := defaultWait
	if text := q.query.Get("wait"); text != "" {
		if wait, err = time.ParseDuration(text); err != nil {
			return nil, core.Bad("Invalid wait time")
		}
	}
	wait = min(wait, longestWait)
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	for {
		changed := q.Core.Store().Changed()
		var value any
		var index uint64
		q.Core.Store().View(func(r state.Reader) { value, index, err = f(r) })
		if err != nil {
			return nil, err
		}
		if after == 0 || index > after {
			q.indexed(index)
			return value, nil
		}
		select {
		case <-changed:
		case <-timeout.C:
			q.indexed(index)
			return value, nil
		case <-q.r.Context().Done():
			return noAnswer{}, nil
		}
	}
}

func (q *request) indexed(index uint64) {
	h := q.w.Header()
	h.Set("X-Nomad-Index", strconv.FormatUint(max(1, index), 10))
	h.Set("X-Nomad-KnownLeader", "true")
	h.Set("X-Nomad-LastContact", "0")
}

// page cuts a sorted list by prefix, next_token and per_page.
func page[T any](q *request, list []T, id func(T) string) ([]T, error) {
	keep, err := filter[T](q)
	if err != nil {
		return nil, err
	}
	perPage, err := q.number("per_page")
	if err != nil {
		return nil, err
	}
	prefix, token := q.query.Get("prefix"), q.query.Get("next_token")
	out := []T{}
	for _, item := range list {
		key := id(item)
		if !strings.HasPrefix(key, prefix) || key < token {
			continue
		}
		fits, err := keep(item)
		if err != nil {
			return nil, core.Bad("failed to evaluate filter expression: %s", err)
		}
		if !fits {
			continue
		}
		if perPage > 0 && uint64(len(out)) == perPage {
			q.w.Header().Set("X-Nomad-NextToken", key)
			return out, nil
		}
		out = append(out, item)
	}
	return out, nil
}

// filter reads the filter expression of a request.
func filter[T any](q *request) (func(T) (bool, error), error) {
	text := q.query.Get("filter")
	if text == "" {
		return func(T) (bool, error) { return true, nil }, nil
	}
	e, err := bexpr.CreateEvaluator(text)
	if err != nil {
		return nil, core.Bad("failed to read filter expression: %s", err)
	}
	return func(item T) (bool, error) { return e.Evaluate(item) }, nil
}
