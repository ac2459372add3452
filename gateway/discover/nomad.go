package discover

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
)

// Nomad reads Nomad's own service registry, which keeps unhealthy instances listed: each instance is asked on
// /health itself. One that has not answered yet is loading and gets no traffic.
type Nomad struct {
	client *api.Client
	http   *http.Client

	mu     sync.Mutex
	alive  map[string]map[Instance]*health // service → its listed instances
	spaces map[string][]string             // service → the namespaces that have it
}

type health struct {
	ok     bool
	misses int
}

var _ Registry = (*Nomad)(nil)

const (
	probeEvery = time.Second     // while an instance is not ready
	checkEvery = 5 * time.Second // once it is
	maxMisses  = 3               // a busy engine may miss a probe
)

// NewNomad takes Nomad's own environment variables for what addr and token leave empty.
func NewNomad(addr, token string) (*Nomad, error) {
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
	return &Nomad{client: client, http: &http.Client{Timeout: 3 * time.Second}, alive: map[string]map[Instance]*health{}, spaces: map[string][]string{}}, nil
}

// Names lists the services of every namespace.
func (n *Nomad) Names(ctx context.Context, index uint64) (map[string]Offer, uint64, error) {
	opts := (&api.QueryOptions{WaitIndex: index, WaitTime: hold, Namespace: "*"}).WithContext(ctx)
	stubs, meta, err := n.client.Services().List(opts)
	if err != nil {
		return nil, 0, fmt.Errorf("list Nomad services: %w", err)
	}
	offers, spaces := map[string]Offer{}, map[string][]string{}
	for _, stub := range stubs {
		for _, s := range stub.Services {
			spaces[s.ServiceName] = append(spaces[s.ServiceName], stub.Namespace)
			offer := offers[s.ServiceName]
			offer.add(s.Tags)
			offers[s.ServiceName] = offer
		}
	}
	n.mu.Lock()
	n.spaces = spaces
	n.mu.Unlock()
	return offers, meta.LastIndex, nil
}

// spacesOf lists the namespaces of a service. Nomad lists services of all namespaces, but instances of one only.
func (n *Nomad) spacesOf(name string) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if spaces := n.spaces[name]; len(spaces) > 0 {
		return spaces
	}
	return []string{api.DefaultNamespace}
}

// Live lists the registered instances that answer on /health. While some do not, or may have stopped to, the
// answer comes after a short wait instead of a long one, so that the next call looks again.
func (n *Nomad) Live(ctx context.Context, name string, index uint64) ([]Instance, uint64, error) {
	wait := checkEvery
	if !n.settled(name) {
		wait = probeEvery
	}
	var listed []Instance
	var last uint64
	for i, space := range n.spacesOf(name) {
		opts := &api.QueryOptions{Namespace: space}
		if i == 0 { // one can be waited for; the others are seen when it answers
			opts.WaitIndex, opts.WaitTime = index, wait
		}
		registrations, meta, err := n.client.Services().Get(name, opts.WithContext(ctx))
		if err != nil {
			return nil, 0, fmt.Errorf("list instances of %s in Nomad: %w", name, err)
		}
		if i == 0 {
			last = meta.LastIndex
		}
		for _, r := range registrations {
			listed = append(listed, newInstance(r.ID, r.Address, r.Port, r.Tags))
		}
	}
	return n.probe(ctx, name, listed), last, nil
}

// probe asks every listed instance at once and forgets those of the service that are not listed any more.
func (n *Nomad) probe(ctx context.Context, name string, listed []Instance) []Instance {
	answers := make([]bool, len(listed))
	var wg sync.WaitGroup
	for i, instance := range listed {
		wg.Go(func() { answers[i] = n.answers(ctx, instance.Addr) })
	}
	wg.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	before, now := n.alive[name], make(map[Instance]*health, len(listed))
	n.alive[name] = now
	live := make([]Instance, 0, len(listed))
	for i, instance := range listed {
		h := before[instance]
		if h == nil {
			h = &health{}
		}
		now[instance] = h
		if answers[i] {
			h.ok, h.misses = true, 0
		} else if h.misses++; h.misses >= maxMisses {
			h.ok = false
		}
		if h.ok {
			live = append(live, instance)
		}
	}
	return live
}

func (n *Nomad) settled(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, h := range n.alive[name] {
		if !h.ok || h.misses > 0 {
			return false
		}
	}
	return len(n.alive[name]) > 0
}

func (n *Nomad) answers(ctx context.Context, addr string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/health", nil)
	if err != nil {
		return false
	}
	resp, err := n.http.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode < 500 // an engine without /health answers 404 and lives
}
