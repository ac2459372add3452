//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/auth"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/internal/testkit/postgres"
)

// product is the gateway's surroundings: a database with an endpoint and a key, and a registry with the engines.
type product struct {
	db       *store.Store
	url      string
	engine   string // of the database
	consul   *http.Server
	registry string // its address
	cluster  *postgres.Cluster
	key      string
}

const tenant = "bench"

func newProduct(ctx context.Context, dir string, engines []string) (p *product, err error) {
	p = &product{}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	p.url = "sqlite://" + filepath.Join(dir, "gateway.db")
	switch p.cluster, err = postgres.Start(ctx); {
	case err == nil:
		p.url = p.cluster.URL()
	case !errors.Is(err, postgres.ErrNotInstalled):
		return p, err
	}
	if p.db, err = store.Await(ctx, p.url, clock.System(), hclog.NewNullLogger()); err != nil {
		return p, err
	}
	p.engine = p.db.Engine()
	if _, err = p.db.CreateEndpoint(ctx, store.Endpoint{Tenant: tenant, Model: "m", Service: "llm"}); err != nil {
		return p, err
	}
	plain, key, err := auth.NewKey("endpoint")
	if err != nil {
		return p, err
	}
	key.Name, key.Tenant, key.Role = "bench", tenant, "endpoint"
	if err = p.db.CreateKey(ctx, key); err != nil {
		return p, err
	}
	p.key = plain
	return p, p.serveRegistry(engines)
}

// serveRegistry plays the part of Consul that the gateway asks.
func (p *product) serveRegistry(engines []string) error {
	entries := []any{}
	for i, addr := range engines {
		host, text, err := net.SplitHostPort(addr)
		if err != nil {
			return err
		}
		port, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		entries = append(entries, map[string]any{
			"Node":    map[string]any{"Node": "n", "Address": host},
			"Service": map[string]any{"ID": fmt.Sprintf("e%d", i), "Service": "llm", "Address": host, "Port": port, "Tags": []string{}},
			"Checks":  []any{},
		})
	}
	answer := func(v any) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("index") == "1" { // nothing ever changes
				select {
				case <-r.Context().Done():
				case <-time.After(30 * time.Second):
				}
			}
			w.Header().Set("X-Consul-Index", "1")
			json.NewEncoder(w).Encode(v) //nolint:errcheck // who asked left
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/catalog/services", answer(map[string][]string{"llm": {}}))
	mux.HandleFunc("/v1/health/service/llm", answer(entries))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	p.registry, p.consul = l.Addr().String(), &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go p.consul.Serve(l) //nolint:errcheck // it ends when it is closed
	return nil
}

// gateway is the product itself, as its binary, with one of its two server sides.
func (p *product) gateway(name, binary, side string) *target {
	return &target{name: name, launch: func(addr, dir string) (*process, error) {
		config := filepath.Join(dir, "gateway.hcl")
		if err := os.WriteFile(config, fmt.Appendf(nil, "relay {\n  server = %q\n}\n", side), 0o600); err != nil {
			return nil, err
		}
		return start(measuredCore, []string{"GOMAXPROCS=1"}, binary, "gateway", "-config", config, "-addr", addr, "-database", p.url,
			"-consul", "http://"+p.registry, "-spool", filepath.Join(dir, "spool"), "-log-level", "warn")
	}}
}

// profiled is the product inside of this program, which writes where its time went.
func (p *product) profiled(self, profile string) *target {
	return &target{name: productName, launch: func(addr, dir string) (*process, error) {
		return start(measuredCore, []string{"GOMAXPROCS=1"}, self, "-serve", "profile", addr, p.url, "http://"+p.registry, filepath.Join(dir, "spool"), profile)
	}}
}

// metered is how many requests have a row of usage, and how many of them were answered whole.
func (p *product) metered(ctx context.Context) (rows int64, err error) {
	now := time.Now()
	sums, err := p.db.SumUsage(ctx, store.UsageQuery{Tenant: tenant, From: now.Add(-time.Hour), To: now.Add(time.Hour)})
	for _, s := range sums {
		rows += s.Requests
	}
	return rows, err
}

func (p *product) close() {
	if p.consul != nil {
		p.consul.Close()
	}
	if p.db != nil {
		p.db.Close() //nolint:errcheck // nothing of it is kept
	}
	if p.cluster != nil {
		p.cluster.Stop() //nolint:errcheck // it ends with this process at the latest
	}
}
