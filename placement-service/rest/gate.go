package rest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/api"
	"github.com/heteroflow/heteroflow/internal/httpx"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/identity"
	"github.com/heteroflow/heteroflow/placement-service/submit"
	"github.com/heteroflow/heteroflow/placement-service/tuning"
)

// bodyLimit is the largest request body; nothing in this API is large.
const bodyLimit = 1 << 20

// bodies are the types of the request bodies, so that a wrong one is refused with its place.
var bodies = map[string]func() any{
	"createKey":      func() any { return &api.KeyCreate{} },
	"rotateKey":      func() any { return &api.KeyRotate{} },
	"setLimit":       func() any { return &api.LimitWrite{} },
	"setPrice":       func() any { return &api.PriceWrite{} },
	"createEndpoint": func() any { return &api.EndpointWrite{} },
	"updateEndpoint": func() any { return &api.EndpointWrite{} },
	"updatePlugin":   func() any { return &api.PluginUpdate{} },
	"claimIntent":    func() any { return &api.IntentClaim{} },
	"reportIntent":   func() any { return &api.IntentReport{} },
	"meetGang":       func() any { return &api.GangArrival{} },
}

// gate lets through what the contract and the caller's role allow.
type gate struct {
	who    Identify
	router routers.Router
	log    hclog.Logger
	// refused is told who was turned away, and why.
	refused func(operation string, r *http.Request, why error)
}

func newGate(who Identify, log hclog.Logger, refused func(string, *http.Request, error)) (*gate, error) {
	doc, err := Document()
	if err != nil {
		return nil, err
	}
	router, err := gorillamux.NewRouter(doc)
	if err != nil {
		return nil, fmt.Errorf("read routes of openapi.yaml: %w", err)
	}
	return &gate{who: who, router: router, log: log, refused: refused}, nil
}

// Document is the contract, parsed and checked.
func Document() (*openapi3.T, error) {
	doc, err := openapi3.NewLoader().LoadFromData(api.Spec)
	if err != nil {
		return nil, fmt.Errorf("read openapi.yaml: %w", err)
	}
	if err := doc.Validate(context.Background()); err != nil {
		return nil, fmt.Errorf("check openapi.yaml: %w", err)
	}
	return doc, nil
}

type whoKey struct{}

// whoOf is the caller, as the gate found it.
func whoOf(ctx context.Context) identity.Who {
	who, _ := ctx.Value(whoKey{}).(identity.Who)
	return who
}

func (g *gate) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r, err := g.check(w, r)
		if err != nil {
			httpx.WriteProblem(w, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// check goes from cheap to dear: route, caller, role, body, contract.
func (g *gate) check(w http.ResponseWriter, r *http.Request) (*http.Request, error) {
	route, params, err := g.router.FindRoute(r)
	if errors.Is(err, routers.ErrMethodNotAllowed) {
		return r, httpx.NewProblem(http.StatusMethodNotAllowed, "method_not_allowed", r.Method+" is not a method of "+r.URL.Path)
	}
	if err != nil {
		return r, httpx.NewProblem(http.StatusNotFound, "no_such_route", r.URL.Path+" is not a path of this API: see /api/v1/openapi.yaml")
	}
	operation := route.Operation.OperationID
	need, known := rights[operation]
	if !known {
		return r, httpx.NewProblem(http.StatusForbidden, "forbidden", "nobody may do this")
	}
	if !need.public {
		who, err := g.who.Of(r)
		if err == nil && !need.allows(who) {
			err = forbidden(who, need)
		}
		if err != nil {
			g.refused(operation, r, err)
			return r, err
		}
		ctx := store.WithActor(r.Context(), store.Actor{User: who.User, KeyID: who.KeyID})
		r = r.WithContext(context.WithValue(ctx, whoKey{}, who))
	}
	if err := readBody(w, r, operation); err != nil {
		return r, err
	}
	err = openapi3filter.ValidateRequest(r.Context(), &openapi3filter.RequestValidationInput{
		Request: r, PathParams: params, Route: route,
		Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, SkipSettingDefaults: true},
	})
	if err != nil {
		return r, contractProblem(err)
	}
	return r, nil
}

func forbidden(who identity.Who, need right) error {
	if !who.Person() && !need.nodes {
		return httpx.NewProblem(http.StatusForbidden, "wrong_kind", "a key of kind "+who.Kind+" does not open this: use an admin or a tenant key")
	}
	if need.nodes && who.Person() {
		return httpx.NewProblem(http.StatusForbidden, "wrong_kind", "this is for device plugins: use a node key")
	}
	return httpx.NewProblem(http.StatusForbidden, "forbidden",
		fmt.Sprintf("role %s may not %s %s", who.Role, need.verb, strings.Join(need.objects, " or ")))
}

// readBody reads the body once, checks it against its type and puts it back.
func readBody(w http.ResponseWriter, r *http.Request, operation string) error {
	body, err := httpx.ReadBody(w, r, bodyLimit)
	if err != nil {
		return err
	}
	if shape, ok := bodies[operation]; ok {
		r.Body = io.NopCloser(bytes.NewReader(body))
		if err := httpx.DecodeJSON(w, r, bodyLimit, shape()); err != nil {
			return err
		}
		if r.Header.Get("Content-Type") == "" {
			r.Header.Set("Content-Type", "application/json")
		}
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	return nil
}

// contractProblem says what of the contract a request breaks.
func contractProblem(err error) error {
	var request *openapi3filter.RequestError
	var schema *openapi3.SchemaError
	reason := err.Error()
	if errors.As(err, &schema) {
		reason = schema.Reason
	}
	if errors.As(err, &request) && request.Parameter != nil {
		if schema == nil {
			reason = request.Reason
			if request.Err != nil {
				reason = request.Err.Error()
			}
		}
		return httpx.NewProblem(http.StatusBadRequest, "bad_parameter",
			fmt.Sprintf("%s parameter %s: %s", request.Parameter.In, request.Parameter.Name, reason))
	}
	if schema != nil {
		pointer := ""
		for _, part := range schema.JSONPointer() {
			pointer += "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(part)
		}
		return httpx.NewProblem(http.StatusBadRequest, "bad_field", strings.TrimSpace(pointer+" "+reason)).At(pointer, reason)
	}
	return httpx.NewProblem(http.StatusBadRequest, "bad_request", reason)
}

func badRequest(w http.ResponseWriter, _ *http.Request, err error) {
	httpx.WriteProblem(w, httpx.NewProblem(http.StatusBadRequest, "bad_request", err.Error()))
}

// failed turns an error of a handler into its problem.
func (s *server) failed(w http.ResponseWriter, r *http.Request, err error) {
	problem := problemOf(err)
	if problem == nil {
		if r.Context().Err() != nil {
			panic(http.ErrAbortHandler) // the caller left: an empty 200 would be a lie
		}
		s.log.Error("request failed", "method", r.Method, "path", r.URL.Path, "error", err)
		httpx.WriteProblem(w, err)
		return
	}
	httpx.WriteProblem(w, problem)
}

// problemOf is the problem for the errors that callers can do something about; nil for others.
func problemOf(err error) *httpx.Problem {
	var (
		problem     *httpx.Problem
		refused     *submit.Refused
		forbidden   *submit.Forbidden
		unavailable *submit.Unavailable
		answer      *submit.Answer
	)
	switch {
	case errors.As(err, &problem):
		return problem
	case errors.As(err, &refused):
		return refused.Problem()
	case errors.As(err, &forbidden):
		return httpx.NewProblem(http.StatusForbidden, "forbidden", forbidden.Text)
	case errors.As(err, &unavailable):
		return httpx.NewProblem(http.StatusServiceUnavailable, "unavailable", unavailable.Error())
	case errors.As(err, &answer):
		return httpx.NewProblem(http.StatusBadGateway, "nomad_refused", answer.Text)
	case errors.Is(err, store.ErrNotFound), errors.Is(err, tuning.ErrUnknown), errors.Is(err, tuning.ErrNoVersion):
		return httpx.NewProblem(http.StatusNotFound, "not_found", err.Error())
	case errors.Is(err, tuning.ErrNoLimits):
		return httpx.NewProblem(http.StatusBadRequest, "no_limits", err.Error())
	case errors.Is(err, store.ErrBadCursor):
		return httpx.NewProblem(http.StatusBadRequest, "bad_cursor", "cursor: use next_cursor of this list's page before")
	case errors.Is(err, store.ErrInvalid):
		return httpx.NewProblem(http.StatusBadRequest, "invalid", err.Error())
	case errors.Is(err, store.ErrConflict):
		return httpx.NewProblem(http.StatusConflict, "conflict", err.Error())
	case store.IsAway(err):
		return httpx.NewProblem(http.StatusServiceUnavailable, "database_unavailable", "the database cannot be reached: try again")
	}
	return nil
}
