package discover

import (
	"context"
	"errors"
	"fmt"
	"time"

	consul "github.com/hashicorp/consul/api"
)

var errNotYet = errors.New("the service registry has not answered yet")

// hold is how long a blocking query may wait for a change.
const hold = 30 * time.Second

// Consul reads Consul's catalog and health API. Instances whose checks do not pass are left out by Consul.
type Consul struct {
	client *consul.Client
}

var _ Registry = (*Consul)(nil)

// NewConsul takes Consul's own environment variables for what addr and token leave empty.
func NewConsul(addr, token string) (*Consul, error) {
	cfg := consul.DefaultConfig()
	if addr != "" {
		cfg.Address = addr
	}
	if token != "" {
		cfg.Token = token
	}
	client, err := consul.NewClient(cfg)
	if err != nil {
		return nil, fmt.Errorf("make Consul client for %s: %w", cfg.Address, err)
	}
	return &Consul{client: client}, nil
}

// Names lists the services of the catalog.
func (c *Consul) Names(ctx context.Context, index uint64) (map[string]Offer, uint64, error) {
	opts := (&consul.QueryOptions{WaitIndex: index, WaitTime: hold}).WithContext(ctx)
	services, meta, err := c.client.Catalog().Services(opts)
	if err != nil {
		return nil, 0, fmt.Errorf("list Consul services: %w", err)
	}
	offers := make(map[string]Offer, len(services))
	for name, tags := range services {
		offer := Offer{}
		offer.add(tags)
		offers[name] = offer
	}
	return offers, meta.LastIndex, nil
}

// Live lists the instances whose checks pass.
func (c *Consul) Live(ctx context.Context, name string, index uint64) ([]Instance, uint64, error) {
	opts := (&consul.QueryOptions{WaitIndex: index, WaitTime: hold}).WithContext(ctx)
	entries, meta, err := c.client.Health().Service(name, "", true, opts)
	if err != nil {
		return nil, 0, fmt.Errorf("list instances of %s in Consul: %w", name, err)
	}
	instances := make([]Instance, 0, len(entries))
	for _, e := range entries {
		host := e.Service.Address
		if host == "" {
			host = e.Node.Address
		}
		instances = append(instances, newInstance(e.Service.ID, host, e.Service.Port, e.Service.Tags))
	}
	return instances, meta.LastIndex, nil
}
