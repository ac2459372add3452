package discover

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/nomadapi"
)

// Allocations tells whether what a service was registered for still runs.
type Allocations interface {
	// Runs is false for an allocation that has ended, is being ended, or is not known any more. An error says nothing.
	Runs(ctx context.Context, id string) (bool, error)
}

// NomadAllocations asks Nomad. Its token needs the capability read-job in the namespaces of the services.
type NomadAllocations struct {
	client *api.Client
	sees   atomic.Bool // the token was seen to see allocations
}

var _ Allocations = (*NomadAllocations)(nil)

// NewNomadAllocations takes Nomad's own environment variables for what addr and token leave empty.
func NewNomadAllocations(addr, token string) (*NomadAllocations, error) {
	cfg := api.DefaultConfig()
	if addr != "" {
		cfg.Address = addr
	}
	if token != "" {
		cfg.SecretID = token
	}
	client, err := api.NewClient(cfg)
	if err != nil {
		return nil, fmt.Errorf("make Nomad client for %s: %w", cfg.Address, err)
	}
	return &NomadAllocations{client: client}, nil
}

var errBlind = errors.New("Nomad shows no allocations to the gateway's token: it needs read-job")

// mayTell is an error where an allocation that is not found may only not be shown: Nomad says the same of both.
func (n *NomadAllocations) mayTell(ctx context.Context) error {
	if n.sees.Load() {
		return nil
	}
	list, _, err := n.client.Allocations().List((&api.QueryOptions{Namespace: api.AllNamespacesNamespace, PerPage: 1}).WithContext(ctx))
	if err != nil {
		return fmt.Errorf("list allocations: %w", err)
	}
	if len(list) == 0 {
		return errBlind
	}
	n.sees.Store(true)
	return nil
}

// Runs asks for the allocation. One on a node that has lost its servers is taken to run: Consul, which has a check of its
// own, knows better.
func (n *NomadAllocations) Runs(ctx context.Context, id string) (bool, error) {
	alloc, _, err := n.client.Allocations().Info(id, (&api.QueryOptions{AllowStale: true}).WithContext(ctx))
	switch {
	case nomadapi.IsNotFound(err):
		return false, n.mayTell(ctx)
	case err != nil:
		return false, fmt.Errorf("ask for allocation %s: %w", id, err)
	}
	if alloc.DesiredStatus != api.AllocDesiredStatusRun {
		return false, nil
	}
	switch alloc.ClientStatus {
	case api.AllocClientStatusComplete, api.AllocClientStatusFailed, api.AllocClientStatusLost:
		return false, nil
	}
	return true, nil
}
