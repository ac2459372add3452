package rest

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/common/expfmt"

	"github.com/heteroflow/heteroflow/api"
)

// GetHealth answers that the process lives.
func (s *server) GetHealth(context.Context, api.GetHealthRequestObject) (api.GetHealthResponseObject, error) {
	return api.GetHealth200JSONResponse{Status: api.HealthStatus("ok"), Version: s.Version}, nil
}

// readyTimeout is how long a part may take to answer.
const readyTimeout = 2 * time.Second

// GetReady asks every part at the same time.
func (s *server) GetReady(ctx context.Context, _ api.GetReadyRequestObject) (api.GetReadyResponseObject, error) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	out := api.Ready{Ready: true, Parts: make([]api.ReadyPart, len(s.Checks))}
	var all sync.WaitGroup
	for i, check := range s.Checks {
		all.Go(func() {
			part := api.ReadyPart{Name: api.ReadyPartName(check.Name), OK: true}
			if err := check.Ping(ctx); err != nil {
				s.log.Debug("not ready", "part", check.Name, "error", err)
				part.OK, part.Reason = false, ref(reasonOf(err))
			}
			out.Parts[i] = part
		})
	}
	all.Wait()
	for _, part := range out.Parts {
		out.Ready = out.Ready && part.OK
	}
	if !out.Ready {
		return api.GetReady503JSONResponse(out), nil
	}
	return api.GetReady200JSONResponse(out), nil
}

// reasonOf says in a word why a part does not answer: anybody may read it, and an error may hold addresses.
func reasonOf(err error) string {
	text := err.Error()
	switch {
	case strings.Contains(text, "refused"):
		return "connection refused"
	case strings.Contains(text, "deadline exceeded"), strings.Contains(text, "timeout"):
		return "no answer in time"
	case strings.Contains(text, "no leader"), strings.Contains(text, "No cluster leader"):
		return "no leader"
	case strings.Contains(text, "not read yet"):
		return "its nodes and allocations are not read yet"
	}
	return "it does not answer"
}

// GetMetrics writes the metrics as text.
func (s *server) GetMetrics(context.Context, api.GetMetricsRequestObject) (api.GetMetricsResponseObject, error) {
	families, err := s.Metrics.Gather()
	if err != nil {
		return nil, fmt.Errorf("gather metrics: %w", err)
	}
	var text bytes.Buffer
	encoder := expfmt.NewEncoder(&text, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, f := range families {
		if err := encoder.Encode(f); err != nil {
			return nil, fmt.Errorf("write metric %s: %w", f.GetName(), err)
		}
	}
	return api.GetMetrics200TextResponse(text.String()), nil
}

// GetOpenAPI answers the contract itself.
func (s *server) GetOpenAPI(context.Context, api.GetOpenAPIRequestObject) (api.GetOpenAPIResponseObject, error) {
	return api.GetOpenAPI200ApplicationYamlResponse{Body: bytes.NewReader(api.Spec), ContentLength: int64(len(api.Spec))}, nil
}

// GetInfo says what the service is and who is asking.
func (s *server) GetInfo(ctx context.Context, _ api.GetInfoRequestObject) (api.GetInfoResponseObject, error) {
	who := whoOf(ctx)
	return api.GetInfo200JSONResponse{
		Version: s.Version, PublicKey: base64.StdEncoding.EncodeToString(s.PublicKey),
		Identity: api.Identity{Tenant: who.Tenant, User: who.User, Role: who.Role, Kind: who.Kind},
	}, nil
}

// ref is a pointer to a value, nil for the zero value: absent and empty are the same on the wire.
func ref[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// val is the value behind a pointer, the zero value for nil.
func val[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}
