// Package server wires the gateway: discovery, routing table, relay, meter and the HTTP listener. Each of these is a
// room of its own; nothing is decided here.
package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"github.com/heteroflow/heteroflow/gateway/balance"
	"github.com/heteroflow/heteroflow/gateway/discover"
	"github.com/heteroflow/heteroflow/gateway/hold"
	"github.com/heteroflow/heteroflow/gateway/limit"
	"github.com/heteroflow/heteroflow/gateway/meter"
	"github.com/heteroflow/heteroflow/gateway/peers"
	"github.com/heteroflow/heteroflow/gateway/probe"
	"github.com/heteroflow/heteroflow/gateway/relay"
	"github.com/heteroflow/heteroflow/gateway/route"
	"github.com/heteroflow/heteroflow/gateway/wake"
	"github.com/heteroflow/heteroflow/internal/auth"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/store"
)

// Config says how the gateway runs.
type Config struct {
	Addr        string       // host:port to listen on
	Listener    net.Listener // used instead of Addr when set; Run closes it
	DatabaseURL string       // endpoints, keys and usage: postgres://… or sqlite:///path
	ConsulAddr  string       // backends from Consul when set, else from Nomad's registry
	ConsulToken string
	NomadAddr   string
	NomadToken  string
	Anonymous   bool          // calls without a key, for one machine only
	MaxBody     int64         // bytes; 0 is 64 MiB
	Spool       string        // folder for usage while the database is away; empty keeps it in memory
	Rules       relay.Rules   // how long backends may take; the zero value is relay's defaults
	Sender      relay.Sender  // how backends are reached; nil is an upstream.Client
	Standard    bool          // connections are answered by net/http alone, not by a plain.Server where there is one
	Probe       time.Duration // between two probes of a backend; 0 is probe.Every, below 0 none
	Hold        Hold
	Logger      hclog.Logger
	Listening   func(addr string) // told once models are served; may be nil
}

// Hold says what becomes of requests for a service without a backend.
type Hold struct {
	WakeAddr  string // of the API that scales jobs, the placement service's or Nomad's; without it such requests are refused
	WakeToken string
	Limits    hold.Limits // zero values are hold's defaults
}

const (
	defaultMaxBody = 64 << 20
	drain          = 30 * time.Second
)

// Run serves until the context ends, then lets running answers end for up to 30 seconds. It waits for a database or a
// registry that is away; /ready says which it is.
func Run(ctx context.Context, c Config) error {
	if c.MaxBody == 0 {
		c.MaxBody = defaultMaxBody
	}
	open := c.Listener
	if open == nil {
		var err error
		if open, err = net.Listen("tcp", c.Addr); err != nil {
			return fmt.Errorf("listen on %s: %w", c.Addr, err)
		}
	}
	defer open.Close()
	registry, err := c.registry()
	if err != nil {
		return err
	}
	front := &door{}
	server := newFront(c.Standard, front, c.Logger)
	drained := make(chan struct{}) // closed when no request is being answered any more
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := server.Serve(open); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve %s: %w", open.Addr(), err)
		}
		return nil
	})
	group.Go(func() error {
		defer close(drained)
		<-groupCtx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(groupCtx), drain)
		defer cancel()
		if err := server.Shutdown(grace); err != nil {
			c.Logger.Warn("answers cut at the end of the grace time", "error", err)
			return server.Close()
		}
		return nil
	})
	group.Go(func() error { return c.work(groupCtx, registry, front, open.Addr().String(), drained) })
	err = group.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// work is everything behind the door.
func (c Config) work(ctx context.Context, registry discover.Registry, front *door, addr string, drained <-chan struct{}) error {
	db, err := store.Await(ctx, c.DatabaseURL, clock.System(), c.Logger)
	if err != nil {
		return err
	}
	defer func() {
		if err := db.Close(); err != nil {
			c.Logger.Warn("database not closed", "error", err)
		}
	}()
	checked, err := c.checked(registry)
	if err != nil {
		return err
	}
	queues, err := c.queues()
	if err != nil {
		return err
	}
	name := store.NewID()
	watcher := discover.NewWatcher(checked, c.Logger.Named("discover"))
	table := route.NewTable(db, watcher, queues, clock.System(), c.Logger.Named("route"))
	prober := probe.New(probed(table), cmp.Or(c.Probe, probe.Every), &http.Transport{DisableKeepAlives: true}, clock.System())
	told := newSignals(name, table.Services, prober.Reading, db, clock.System(), c.Logger.Named("signals"))
	numbers := newMetrics()
	numbers.registry.MustRegister(&backends{services: table.Services, reading: prober.Reading, stale: checked.Stale})
	usage := meter.New(db, c.openSpool(), clock.System(), c.Logger.Named("meter"), func(n int) { numbers.dropped.Add(float64(n)) })
	keys := auth.NewKeyring(db, clock.System(), c.Logger.Named("keys"))
	limits := limit.New(db, name, clock.System(), c.Logger.Named("limit"), limit.NewMetrics(numbers.registry))
	h := &handler{
		table: table, signals: told, relay: relay.NewWith(name, c.Sender), rules: c.Rules, keys: keys, limits: limits, meter: usage,
		metrics: numbers, log: c.Logger, maxBody: c.MaxBody, anonymous: c.Anonymous,
		ready: func(context.Context) []string {
			problems := []string{}
			if err := watcher.Err(); err != nil {
				problems = append(problems, "service registry: "+err.Error())
			}
			for _, err := range []error{table.Err(), keys.Err(), limits.Err()} {
				if err != nil {
					problems = append(problems, "database: "+err.Error())
					break
				}
			}
			return problems
		},
	}
	front.set(h.routes())
	c.Logger.Info("gateway listens", "addr", addr)
	if c.Listening != nil {
		c.Listening(addr)
	}

	// These end last, so that the usage of answers that end while draining is written too, and taken from their limits, and
	// that other gateways count them until then.
	lastCtx, stopLast := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLast()
	last := errgroup.Group{}
	for _, run := range []func(context.Context) error{usage.Run, limits.Run, keys.Run} {
		last.Go(func() error { return run(lastCtx) })
	}
	if db.Engine() == "postgresql" { // an embedded database has one gateway
		last.Go(func() error { return exchange(lastCtx, name, db, table, c.Logger.Named("peers")) })
	}

	following, followCtx := errgroup.WithContext(ctx)
	following.Go(func() error { return watcher.Run(followCtx) })
	following.Go(func() error { return table.Run(followCtx) })
	following.Go(func() error { return told.Run(followCtx) })
	if c.Probe >= 0 {
		following.Go(func() error { return prober.Run(followCtx) })
	}
	err = following.Wait()
	if ctx.Err() != nil {
		<-drained
	}
	stopLast()
	last.Wait() //nolint:errcheck // that they were stopped
	return err
}

// openSpool opens the folder for usage. Without one the gateway does its work all the same.
func (c Config) openSpool() *meter.Spool {
	if c.Spool == "" {
		return nil
	}
	spool, err := meter.OpenSpool(c.Spool, 0)
	if err != nil {
		c.Logger.Warn("usage is kept in memory alone while the database is away", "error", err)
		return nil
	}
	return spool
}

// checked looks up in Nomad what a registry lists.
func (c Config) checked(r discover.Registry) (*discover.Checked, error) {
	allocs, err := discover.NewNomadAllocations(c.NomadAddr, c.NomadToken)
	if err != nil {
		return nil, err
	}
	return discover.NewChecked(r, allocs, clock.System(), c.Logger.Named("discover")), nil
}

// queues makes the queue of each service.
func (c Config) queues() (func(string, *balance.Pool) *hold.Queue, error) {
	var waker hold.Waker
	if c.Hold.WakeAddr != "" {
		n, err := wake.NewNomad(c.Hold.WakeAddr, c.Hold.WakeToken)
		if err != nil {
			return nil, err
		}
		waker = n
	}
	limits := c.Hold.Limits.OrDefaults()
	return func(service string, p *balance.Pool) *hold.Queue {
		return hold.New(service, p, waker, limits, clock.System(), c.Logger.Named("hold"))
	}, nil
}

func probed(t *route.Table) func() []probe.Service {
	return func() []probe.Service {
		var list []probe.Service
		for _, s := range t.Services() {
			list = append(list, probe.Service{Name: s.Name, Engine: s.Engine, Pool: s.Pool})
		}
		return list
	}
}

// exchange makes the gateway one with the others. It begins once services are known: what others told of the rest would
// be lost.
func exchange(ctx context.Context, name string, l peers.Ledger, t *route.Table, log hclog.Logger) error {
	if !t.Await(ctx) {
		return ctx.Err()
	}
	pools := func() map[string]*balance.Pool {
		byName := map[string]*balance.Pool{}
		for _, s := range t.Services() {
			byName[s.Name] = s.Pool
		}
		return byName
	}
	return peers.New(name, l, pools, clock.System(), log).Run(ctx)
}

func (c Config) registry() (discover.Registry, error) {
	if c.ConsulAddr != "" {
		return discover.NewConsul(c.ConsulAddr, c.ConsulToken)
	}
	return discover.NewNomad(c.NomadAddr, c.NomadToken)
}
