package client

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	consul "github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-cleanhttp"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/clock"
)

const (
	// consulEvery is how often registrations are compared with what the agent has.
	consulEvery = 10 * time.Second
	// consulGrace is how long leftovers of an earlier engine are kept: their tasks may still be taken over.
	consulGrace = 20 * time.Second
	consulCall  = 5 * time.Second
	// metaNode marks services of this node, so that leftovers are told from those of others.
	metaNode = "heteroflow-node"
)

// consulSync keeps the agent's services what the running tasks want. Without an address it holds nothing.
type consulSync struct {
	client *consul.Client
	nodeID string
	log    hclog.Logger
	wake   chan struct{}

	mu    sync.Mutex
	want  map[string]*consul.AgentServiceRegistration
	dirty map[string]bool
}

func newConsulSync(addr, nodeID string, log hclog.Logger) (*consulSync, error) {
	s := &consulSync{nodeID: nodeID, log: log, wake: make(chan struct{}, 1), want: map[string]*consul.AgentServiceRegistration{}, dirty: map[string]bool{}}
	if addr == "" {
		return s, nil
	}
	conf := consul.DefaultConfig()
	conf.Address = addr
	conf.Transport = cleanhttp.DefaultPooledTransport()
	client, err := consul.NewClient(conf)
	if err != nil {
		return nil, fmt.Errorf("make consul client for %s: %w", addr, err)
	}
	s.client = client
	return s, nil
}

// put wants a service registered. It answers false when there is no Consul.
func (s *consulSync) put(reg *consul.AgentServiceRegistration) bool {
	if s.client == nil {
		return false
	}
	reg.Meta[metaNode] = s.nodeID
	s.mu.Lock()
	s.want[reg.ID], s.dirty[reg.ID] = reg, true
	s.mu.Unlock()
	s.poke()
	return true
}

func (s *consulSync) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// remove wants services gone, and tries at once, since their tasks are about to end. What fails is done later.
func (s *consulSync) remove(ctx context.Context, ids []string) {
	if s.client == nil || len(ids) == 0 {
		return
	}
	s.mu.Lock()
	for _, id := range ids {
		delete(s.want, id)
		delete(s.dirty, id)
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, consulCall)
	defer cancel()
	for _, id := range ids {
		if err := s.client.Agent().ServiceDeregisterOpts(id, (&consul.QueryOptions{}).WithContext(ctx)); err != nil {
			s.log.Warn("service not deregistered", "service_id", id, "error", err)
		}
	}
}

// run compares until ctx ends.
func (s *consulSync) run(ctx context.Context) {
	if s.client == nil {
		return
	}
	started := time.Now()
	for ctx.Err() == nil {
		if err := s.sync(ctx, time.Since(started) > consulGrace); err != nil && ctx.Err() == nil {
			s.log.Warn("services not synchronised with consul and tried again", "error", err)
			clock.Sleep(ctx, clock.System(), time.Second)
		}
		timer := time.NewTimer(consulEvery)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-s.wake:
		}
		timer.Stop()
	}
}

func (s *consulSync) sync(ctx context.Context, clean bool) error {
	ctx, cancel := context.WithTimeout(ctx, consulCall)
	defer cancel()
	q := (&consul.QueryOptions{}).WithContext(ctx)
	have, err := s.client.Agent().ServicesWithFilterOpts("", q)
	if err != nil {
		return err
	}
	s.mu.Lock()
	want, dirty := maps.Clone(s.want), maps.Clone(s.dirty)
	s.mu.Unlock()
	for id, reg := range want {
		if have[id] != nil && !dirty[id] {
			continue
		}
		if err := s.client.Agent().ServiceRegisterOpts(reg, consul.ServiceRegisterOpts{ReplaceExistingChecks: true}.WithContext(ctx)); err != nil {
			return fmt.Errorf("register %s: %w", id, err)
		}
		s.mu.Lock()
		if s.want[id] == reg {
			delete(s.dirty, id)
		}
		s.mu.Unlock()
	}
	if !clean {
		return nil
	}
	for id, svc := range have {
		s.mu.Lock()
		wanted := s.want[id] != nil
		s.mu.Unlock()
		if !wanted && strings.HasPrefix(id, "_nomad-task-") && svc.Meta[metaNode] == s.nodeID {
			if err := s.client.Agent().ServiceDeregisterOpts(id, q); err != nil {
				return fmt.Errorf("deregister %s: %w", id, err)
			}
		}
	}
	return nil
}

// passing reports whether Consul says of every one of the services that its checks pass.
func (s *consulSync) passing(ids []string) bool {
	for _, id := range ids {
		ctx, cancel := context.WithTimeout(context.Background(), consulCall)
		status, _, err := s.client.Agent().AgentHealthServiceByIDOpts(id, (&consul.QueryOptions{}).WithContext(ctx))
		cancel()
		if err != nil || status != consul.HealthPassing {
			return false
		}
	}
	return true
}
