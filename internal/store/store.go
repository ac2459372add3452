// Package store is what HeteroFlow keeps: keys, settings, the ledger of pools and claims, jobs, decisions, intents,
// endpoints and usage, on PostgreSQL and on SQLite, from one set of queries and under one conformance suite
// (storetest). Deciding anything, HTTP and Nomad's own state do not belong here.
package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/store/sqlgen"
)

var (
	// ErrNotFound says that no such row exists, or none that the given tenant may see.
	ErrNotFound = errors.New("not found")
	// ErrConflict says that the row was changed or exists already: read it again, then decide again.
	ErrConflict = errors.New("changed or taken by someone else")
	// ErrJobChanged is the ErrConflict of a job's row, where another conflict may be meant as well.
	ErrJobChanged = fmt.Errorf("the job: %w", ErrConflict)
	// ErrBadCursor says that a page cursor was not made by this list.
	ErrBadCursor = errors.New("not a cursor of this list")
	// ErrInvalid says that the caller's values can never be stored; the text says which and why.
	ErrInvalid = errors.New("invalid")
)

// Store is an open database. It is safe for concurrent use.
type Store struct {
	dialect dialect
	write   *sql.DB // SQLite: the one connection that writes
	read    *sql.DB // PostgreSQL: the same pool as write
	beside  func()  // ends what runs beside the work; nil when nothing does
	clock   clock.Clock
	log     hclog.Logger
}

// Option changes how Open opens.
type Option func(*Store)

// WithClock sets the clock that stamps rows; tests give a fake one.
func WithClock(c clock.Clock) Option { return func(s *Store) { s.clock = c } }

// Open opens the database that url names and brings its schema up to date under a lock. The url is
// "postgres://user@host/name", "sqlite:///var/lib/heteroflow/state.db", or a bare path of a SQLite file.
// It refuses a transaction-mode pooler in front of PostgreSQL and a schema newer than this build knows.
// No error carries the url's password.
func Open(ctx context.Context, url string, log hclog.Logger, opts ...Option) (*Store, error) {
	if log == nil {
		log = hclog.NewNullLogger()
	}
	s := &Store{clock: clock.System(), log: log.Named("store")}
	for _, opt := range opts {
		opt(s)
	}
	target, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	if err := target.open(ctx, s); err != nil {
		return nil, target.redact(err)
	}
	if err := migrate(ctx, s.dialect, s.write); err != nil {
		return nil, target.redact(errors.Join(err, s.Close()))
	}
	return s, nil
}

// Engine names the database engine: "postgresql" or "sqlite".
func (s *Store) Engine() string { return s.dialect.name() }

// Ping reports whether the database answers.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.read.PingContext(ctx); err != nil {
		return fmt.Errorf("ping %s: %w", s.dialect.name(), err)
	}
	return nil
}

// Close closes every connection. Calls in progress fail.
func (s *Store) Close() error {
	if s.beside != nil {
		s.beside()
	}
	if s.read == s.write {
		return s.write.Close()
	}
	return errors.Join(s.read.Close(), s.write.Close())
}

// reader runs single statements that read.
func (s *Store) reader() *sqlgen.Queries { return sqlgen.New(s.read) }

// writer runs single statements that write.
func (s *Store) writer() *sqlgen.Queries { return sqlgen.New(s.write) }
