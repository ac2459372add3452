// Package wake starts what serves a service that is scaled to zero, by Nomad's API: the placement service's, so that the
// start is admitted like any other, or Nomad's own. When to wake, and what waits for it, do not belong here.
package wake

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/gateway/hold"
	"github.com/heteroflow/heteroflow/internal/nomadapi"
)

// Nomad finds the job whose group registers a service and sets that group's count from 0 to the least it may have, or 1.
// A group that has instances already is left as it is: they are on their way. It is safe for concurrent use.
type Nomad struct {
	client *api.Client

	mu    sync.Mutex
	known map[key]known
}

var _ hold.Waker = (*Nomad)(nil)

type key struct{ namespace, id string }

// known is what a job registers, as of a version of it.
type known struct {
	index  uint64
	groups []group
}

type group struct {
	name     string
	services []string
	count    int
	least    int // of the group's scaling block
}

// NewNomad makes a waker for the API at the address, such as http://127.0.0.1:3333.
func NewNomad(addr, token string) (*Nomad, error) {
	cfg := api.DefaultConfig()
	cfg.Address = addr
	if token != "" {
		cfg.SecretID = token
	}
	client, err := api.NewClient(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a client for %s to wake services: %w", addr, err)
	}
	return &Nomad{client: client, known: map[key]known{}}, nil
}

// Wake starts the service. hold.ErrNothing when no job that is not stopped registers it.
func (n *Nomad) Wake(ctx context.Context, service string) error {
	jobs, _, err := n.client.Jobs().List((&api.QueryOptions{Namespace: api.AllNamespacesNamespace}).WithContext(ctx))
	if err != nil {
		return fmt.Errorf("list jobs to find service %s: %w", service, err)
	}
	for _, stub := range jobs {
		if stub.Stop || stub.Periodic || stub.ParameterizedJob || stub.Type != api.JobTypeService {
			continue
		}
		groups, err := n.groups(ctx, stub)
		if err != nil {
			return err
		}
		for _, g := range groups {
			if slices.Contains(g.services, service) {
				return n.start(ctx, stub, g)
			}
		}
	}
	return fmt.Errorf("no job that is not stopped registers the service %q: %w", service, hold.ErrNothing)
}

// start sets the group's count.
func (n *Nomad) start(ctx context.Context, job *api.JobListStub, g group) error {
	if g.count > 0 {
		return nil
	}
	count := max(1, g.least)
	_, _, err := n.client.Jobs().Scale(job.ID, g.name, &count, "requests wait at the gateway", false, nil, (&api.WriteOptions{Namespace: job.Namespace}).WithContext(ctx))
	if err != nil {
		return fmt.Errorf("scale group %s of job %s from 0 to %d: %w", g.name, job.ID, count, err)
	}
	return nil
}

// groups reads a job's, unless they are known of the version that it has.
func (n *Nomad) groups(ctx context.Context, stub *api.JobListStub) ([]group, error) {
	at := key{stub.Namespace, stub.ID}
	n.mu.Lock()
	k, ok := n.known[at]
	n.mu.Unlock()
	if ok && k.index == stub.JobModifyIndex && stub.JobModifyIndex > 0 {
		return k.groups, nil
	}
	job, _, err := n.client.Jobs().Info(stub.ID, (&api.QueryOptions{Namespace: stub.Namespace}).WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("read job %s to find what it registers: %w", stub.ID, err)
	}
	k = known{index: stub.JobModifyIndex}
	for _, g := range job.TaskGroups {
		k.groups = append(k.groups, groupOf(stub.ID, g))
	}
	n.mu.Lock()
	n.known[at] = k
	n.mu.Unlock()
	return k.groups, nil
}

func groupOf(job string, tg *api.TaskGroup) group {
	g := group{name: text(tg.Name), count: 1, services: nomadapi.Registers(job, tg)}
	if tg.Count != nil {
		g.count = *tg.Count
	}
	if tg.Scaling != nil && tg.Scaling.Min != nil {
		g.least = int(*tg.Scaling.Min)
	}
	return g
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
