package route

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/gateway/balance"
	"github.com/heteroflow/heteroflow/internal/store"
)

// TestPolicies: what the store takes is what the gateway knows.
func TestPolicies(t *testing.T) {
	t.Parallel()
	var known []string
	for _, p := range balance.Policies() {
		known = append(known, string(p))
	}
	if diff := cmp.Diff(store.Policies(), known); diff != "" {
		t.Errorf("(-store +gateway):\n%s", diff)
	}
}
