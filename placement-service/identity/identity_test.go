package identity

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/heteroflow/heteroflow/internal/auth"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/httpx"
	"github.com/heteroflow/heteroflow/internal/nomadapi"
)

// told answers for every token alike.
type told struct {
	token nomadapi.Token
	err   error
}

func (a told) TokenSelf(context.Context, string) (nomadapi.Token, error) { return a.token, a.err }

// TestOf_NomadTokens: what Nomad says of a token counts, except where Nomad checks none: then a text that somebody made
// up must not open anything, with or without a role for those who send nothing.
func TestOf_NomadTokens(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		says   told
		status int
		tenant string
		role   string
	}{
		"client token":          {says: told{token: nomadapi.Token{AccessorID: "a1", Name: "ann", Type: "client"}}, tenant: DefaultTenant, role: auth.RoleMember},
		"management token":      {says: told{token: nomadapi.Token{AccessorID: "a2", Type: "management"}}, role: auth.RoleAdmin},
		"ACLs are off":          {says: told{token: nomadapi.Token{AccessorID: "acls-disabled", Name: "ACLs disabled token", Type: "client"}}, status: http.StatusUnauthorized},
		"no accessor":           {says: told{token: nomadapi.Token{Type: "management"}}, status: http.StatusUnauthorized},
		"Nomad does not answer": {says: told{err: errors.New("connection refused")}, status: http.StatusServiceUnavailable},
	} {
		for _, anonymous := range []string{"", auth.RoleAdmin} {
			t.Run(name+" "+anonymous, func(t *testing.T) {
				t.Parallel()
				r := &Resolver{Tokens: tc.says, Anonymous: anonymous, Clock: clock.System()}
				req := httptest.NewRequest(http.MethodGet, "/v1/jobs", nil)
				req.Header.Set("X-Nomad-Token", "made-up")
				who, err := r.Of(req)
				var problem *httpx.Problem
				if status := 0; errors.As(err, &problem) {
					if status = problem.Status; status != tc.status {
						t.Fatalf("status is %d, want %d", status, tc.status)
					}
					return
				}
				if err != nil || tc.status != 0 || who.Tenant != tc.tenant || who.Role != tc.role || who.NomadToken != "made-up" {
					t.Errorf("%+v, %v", who, err)
				}
			})
		}
	}
}
