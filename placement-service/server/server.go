// Package server wires the placement service together and runs it: the database, the followers of Nomad, the queue
// and the HTTP edge. What any of them does belongs to its own package.
package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"github.com/heteroflow/heteroflow/internal/auth"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/flight"
	"github.com/heteroflow/heteroflow/placement-service/submit"
)

// Config is what the service is started with.
type Config struct {
	Addr        string // to listen on, such as ":3333"
	DatabaseURL string // postgres://… or sqlite:///path
	NomadAddr   string // empty takes NOMAD_ADDR
	NomadToken  string // the service's own; empty takes NOMAD_TOKEN
	ConsulAddr  string // empty: there is no Consul
	ConsulToken string
	Anonymous   string            // role of requests without credentials; none when empty
	Stderr      io.Writer         // where the first admin key is printed, once; os.Stderr when nil
	Preemption  submit.Preemption // who is evicted for whom; nobody with the zero value
	Patience    time.Duration     // before room is kept whose end nobody knows; submit.DefaultPatience when zero
	RecordDir   string            // folder in which decisions are kept, readable by flight.Files; none when empty
	// FirstKey takes the first admin key, once, in the place of Stderr.
	FirstKey func(plaintext string) error
	Listener net.Listener
	// Listening is called with the address once the service answers there.
	Listening func(addr string)
	Clock     clock.Clock
	Log       hclog.Logger
}

// Validate says what is wrong with the configuration.
func (c Config) Validate() error {
	var problems []error
	if c.DatabaseURL == "" {
		problems = append(problems, errors.New("no database: set DATABASE_URL to postgres://… or sqlite:///path/to/file.db"))
	}
	switch c.Anonymous {
	case "", auth.RoleAdmin, auth.RoleMember, auth.RoleViewer:
	default:
		problems = append(problems, fmt.Errorf("anonymous role %q: write admin, member, viewer, or nothing", c.Anonymous))
	}
	return errors.Join(problems...)
}

// Run serves until the context ends, then finishes what it is answering and returns nil. It waits for a database
// or a Nomad that is away; /ready says which it is.
func Run(ctx context.Context, c Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	if c.Log == nil {
		c.Log = hclog.NewNullLogger()
	}
	if c.Clock == nil {
		c.Clock = clock.System()
	}
	if c.Stderr == nil {
		c.Stderr = os.Stderr
	}
	if c.Listener == nil {
		listener, err := net.Listen("tcp", c.Addr)
		if err != nil {
			return fmt.Errorf("listen on %s: %w", c.Addr, err)
		}
		c.Listener = listener
	}
	edge := newEdge(c.Log)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return edge.serve(ctx, c.Listener) })
	if c.Listening != nil {
		c.Listening(c.Listener.Addr().String())
	}
	c.Log.Info("placement service listens", "addr", c.Listener.Addr().String())
	g.Go(func() error { return work(ctx, c, edge) })
	return g.Wait()
}

// spare is how many bytes may be made before the collector of garbage has to run at least. It runs when as much was made
// as is in use, which for a small cluster is every few dozen submissions, each of them slower for it. Bytes that nobody
// ever touches count as in use and take no memory.
const spare = 96 << 20

// work is everything behind the HTTP edge.
func work(ctx context.Context, c Config, edge *edge) error {
	defer runtime.KeepAlive(make([]byte, spare))
	db, err := store.Await(ctx, c.DatabaseURL, c.Clock, c.Log)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil // told to stop while the database was away
	}
	if err != nil {
		return err
	}
	defer func() {
		if err := db.Close(); err != nil {
			c.Log.Warn("database not closed", "error", err)
		}
	}()
	record, closeRecord, err := openRecorder(c)
	if err != nil {
		return err
	}
	defer closeRecord()
	p, err := assemble(ctx, c, db, record)
	if err != nil {
		return err
	}
	edge.set(p.handler)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.watcher.Run(ctx) })
	g.Go(func() error { return p.queue.Run(ctx) })
	g.Go(func() error { return p.tuning.Run(ctx) })
	g.Go(func() error { return p.meter.Run(ctx) })
	g.Go(func() error { return p.scaler.Run(ctx) })
	g.Go(func() error { return p.gangs.Run(ctx) })
	g.Go(func() error { return p.loads.Run(ctx) })
	err = g.Wait()
	edge.drained() // answers in progress may still need the database
	p.submit.Wait()
	return err
}

// recordLimit is how many bytes of decisions are kept.
const recordLimit = 256 << 20

// openRecorder opens what keeps decisions; nil when they are not to be kept.
func openRecorder(c Config) (*flight.Recorder, func(), error) {
	if c.RecordDir == "" {
		return nil, func() {}, nil
	}
	r, err := flight.Open(c.RecordDir, recordLimit, c.Clock, c.Log)
	return r, func() {
		if err := r.Close(); err != nil {
			c.Log.Warn("the last decisions are not kept", "error", err)
		}
	}, err
}

var _ http.Handler = (*edge)(nil)
