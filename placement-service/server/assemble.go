package server

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/heteroflow/heteroflow/internal/auth"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/internal/nomadapi"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/internal/version"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/flight"
	"github.com/heteroflow/heteroflow/placement-service/gangs"
	"github.com/heteroflow/heteroflow/placement-service/identity"
	"github.com/heteroflow/heteroflow/placement-service/ledger"
	"github.com/heteroflow/heteroflow/placement-service/meter"
	"github.com/heteroflow/heteroflow/placement-service/proxy"
	"github.com/heteroflow/heteroflow/placement-service/queue"
	"github.com/heteroflow/heteroflow/placement-service/rest"
	"github.com/heteroflow/heteroflow/placement-service/scale"
	"github.com/heteroflow/heteroflow/placement-service/submit"
	"github.com/heteroflow/heteroflow/placement-service/tuning"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

// parts are the long-lived parts and the handler in front of them.
type parts struct {
	watcher *watch.Watcher
	queue   *queue.Queue
	tuning  *tuning.Tuning
	meter   *meter.Meter
	scaler  *scale.Scaler
	gangs   *gangs.Room
	submit  *submit.Submitter
	loads   *watch.Loads
	handler http.Handler
}

// asked is the demand that was learnt.
func (p *parts) asked() []engine.Asked {
	learnt, _ := p.tuning.Engine().Learnt()
	if d := learnt.Demand(); d != nil {
		return d.Asked
	}
	return nil
}

func assemble(ctx context.Context, c Config, db *store.Store, record *flight.Recorder) (*parts, error) {
	if err := firstKey(ctx, c, db); err != nil {
		return nil, err
	}
	key, err := signingKey(ctx, db)
	if err != nil {
		return nil, err
	}
	nomad, err := nomadapi.New(nomadapi.Config{Addr: c.NomadAddr, Token: c.NomadToken})
	if err != nil {
		return nil, err
	}
	p := &parts{tuning: tuning.New(db, c.Clock, c.Log), meter: meter.New(db, c.Clock, c.Log)}
	if err := p.tuning.Refresh(ctx); err != nil {
		return nil, err
	}
	world, view := watch.NewWorld(), ledger.New(db)
	p.tuning.Cluster, p.tuning.Traffic = func() engine.Snapshot { return world.Snapshot(nil) }, world.Traffic
	p.loads = &watch.Loads{Source: nomad, World: world, Engine: p.tuning.Engine, Room: func() { p.queue.Wake() }, Clock: c.Clock, Log: c.Log.Named("load")}
	sub := submit.New(submit.Config{
		Nomad: nomad, Store: db, World: world, Ledger: view, Engine: p.tuning.Engine, Observe: p.tuning.Observe, Key: key, Clock: c.Clock, Log: c.Log,
		Preemption: c.Preemption, Patience: c.Patience, Signals: nomad, Newest: p.loads.Newest,
		Expect: func(job watch.JobKey, eval string) { p.watcher.Expect(job, eval) },
		Wake:   func() { p.queue.Wake() },
		WakeAt: func(at time.Time) { p.queue.WakeAt(at) },
	})
	p.submit = sub
	p.queue = queue.New(db, sub, c.Clock, c.Log)
	p.watcher = watch.New(watch.Config{
		Nomad: nomad, Store: db, World: world, Clock: c.Clock, Log: c.Log,
		Hooks: watch.Hooks{
			Room:    func() { view.Invalidate(); p.queue.Wake() },
			Blocked: p.queue.Blocked, Removed: p.queue.Removed, Adopted: p.queue.Adopt, Ended: func(job watch.JobKey) { p.gangs.Ended(job) },
		},
	})
	p.gangs = gangs.New(gangs.Config{
		Store: db, Cluster: world, Nomad: nomad, Coming: p.watcher.Coming, Key: key.Public().(ed25519.PublicKey), Clock: c.Clock, Log: c.Log,
	})
	p.scaler = scale.New(nomad, db, scaled(sub, nomad), c.Clock, c.Log)
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), &clusterMetrics{
		world: world, clock: c.Clock, demand: p.asked,
	})
	registry.MustRegister(p.tuning)
	if record != nil {
		sub.Record = record.Record
		registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "heteroflow_flight_lost_total", Help: "Decisions that could not be kept.",
		}, func() float64 { return float64(record.Lost()) }))
	}
	registry.MustRegister(sub.Collectors()...)
	registry.MustRegister(p.queue.Collectors()...)
	registry.MustRegister(p.meter.Collectors()...)
	registry.MustRegister(p.scaler.Collectors()...)
	requests := newRequestMetrics()
	registry.MustRegister(requests.total, requests.duration)

	who := &identity.Resolver{Keys: auth.NewAuthenticator(db, c.Clock, c.Log), Tokens: nomad, Anonymous: c.Anonymous, Clock: c.Clock}
	nomadAPI, err := proxy.New(proxy.Config{Nomad: nomad, Store: db, Submit: sub, World: world, Who: who, Log: c.Log})
	if err != nil {
		return nil, err
	}
	checks, err := checksOf(c, nomad, world, db)
	if err != nil {
		return nil, err
	}
	ownAPI, err := rest.New(rest.Config{
		Store: db, Nomad: nomad, World: world, Ledger: view, Submit: sub, Tuning: p.tuning, Scaling: p.scaler.Status, Who: who, Checks: checks,
		PublicKey: key.Public().(ed25519.PublicKey), Version: version.Version, Metrics: registry, Clock: c.Clock, Log: c.Log, Gangs: p.gangs,
	})
	if err != nil {
		return nil, err
	}
	p.handler = observe(c, requests, split(nomadAPI, ownAPI))
	return p, nil
}

// scaled sets counts through admission, and has Nomad do it for jobs that ask for no accelerators.
func scaled(sub *submit.Submitter, nomad *nomadapi.Client) scale.Apply {
	return func(ctx context.Context, c scale.Change) (bool, error) {
		caller := submit.Caller{Tenant: cmp.Or(c.Job.Tenant, identity.DefaultTenant), User: cmp.Or(c.Job.User, "scaling"), All: true}
		result, err := sub.Scale(ctx, caller, watch.JobKey{Namespace: c.Job.Namespace, ID: c.Job.ID}, submit.Tree{
			"Count": json.Number(strconv.Itoa(c.Count)), "Target": submit.Tree{"Group": c.Group}, "Message": c.Message,
			"JobModifyIndex": json.Number(strconv.FormatUint(c.Index, 10)),
		})
		if errors.Is(err, submit.ErrPass) {
			return false, nomad.Scale(ctx, c.Job.Namespace, c.Job.ID, c.Group, int64(c.Count), c.Message)
		}
		return result.Waiting, err
	}
}

// split sends Nomad's API one way and all else the other. It looks at the path as it is: a router that cleans paths
// would redirect job ids with two slashes in a row.
func split(nomadAPI, ownAPI http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1/") || strings.HasPrefix(r.URL.Path, "/.well-known/") {
			nomadAPI.ServeHTTP(w, r)
			return
		}
		ownAPI.ServeHTTP(w, r)
	})
}

func checksOf(c Config, nomad *nomadapi.Client, world *watch.World, db *store.Store) ([]rest.Check, error) {
	readNomad := func(ctx context.Context) error {
		if err := nomad.Ping(ctx); err != nil {
			return err
		}
		if !world.IsReady() {
			return errors.New("its nodes and allocations are not read yet")
		}
		return nil
	}
	checks := []rest.Check{{Name: "nomad", Ping: readNomad}, {Name: "database", Ping: db.Ping}}
	if c.ConsulAddr == "" {
		return checks, nil
	}
	consul, err := nomadapi.NewConsul(c.ConsulAddr, c.ConsulToken)
	if err != nil {
		return nil, err
	}
	return append(checks, rest.Check{Name: "consul", Ping: consul.Ping}), nil
}

// firstKey hands out the first admin key, once in the life of the database.
func firstKey(ctx context.Context, c Config, db *store.Store) error {
	plaintext, created, err := auth.Bootstrap(ctx, db)
	if err != nil || !created {
		return err
	}
	if c.FirstKey != nil {
		return c.FirstKey(plaintext)
	}
	_, err = fmt.Fprintf(c.Stderr, "The first admin key of this HeteroFlow, shown this once: %s\nKeep it, and use it as HETEROFLOW_TOKEN or NOMAD_TOKEN.\n", plaintext)
	if err != nil {
		return fmt.Errorf("print the first admin key: %w", err)
	}
	return nil
}

const signingSetting = "grant.signing_key"

// signingKey is the key that grants are signed with, made by the first start and the same for every instance.
func signingKey(ctx context.Context, db *store.Store) (ed25519.PrivateKey, error) {
	fresh, err := grant.NewKey()
	if err != nil {
		return nil, fmt.Errorf("make signing key: %w", err)
	}
	text, _, err := db.SetSettingOnce(ctx, signingSetting, base64.StdEncoding.EncodeToString(fresh.Seed()))
	if err != nil {
		return nil, err
	}
	seed, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("setting %s does not hold a key", signingSetting)
	}
	return ed25519.NewKeyFromSeed(seed), nil
}

// drainTime is how long requests may go on once the service stops.
const drainTime = 5 * time.Second
