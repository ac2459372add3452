package nomadapi

import (
	"context"
	"errors"
	"fmt"

	consul "github.com/hashicorp/consul/api"
)

// Consul asks a Consul agent. It is safe for concurrent use.
type Consul struct {
	api *consul.Client
}

// NewConsul makes a client for the address; empty fields take Consul's own environment variables.
func NewConsul(addr, token string) (*Consul, error) {
	conf := consul.DefaultConfig()
	if addr != "" {
		conf.Address = addr
	}
	if token != "" {
		conf.Token = token
	}
	client, err := consul.NewClient(conf)
	if err != nil {
		return nil, fmt.Errorf("make consul client for %s: %w", conf.Address, err)
	}
	return &Consul{api: client}, nil
}

// Ping asks whether the agent answers and its cluster has a leader.
func (c *Consul) Ping(ctx context.Context) error {
	leader, err := c.api.Status().LeaderWithQueryOptions((&consul.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return fmt.Errorf("ask consul for its leader: %w", err)
	}
	if leader == "" {
		return errors.New("consul has no leader")
	}
	return nil
}
