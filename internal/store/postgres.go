package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

// Limits of the PostgreSQL pool. Several service instances share one server, whose default is 100 connections.
const (
	postgresConns    = 16
	postgresIdle     = 8
	postgresLifetime = 30 * time.Minute
)

// PostgreSQL's codes for a transaction that lost against another.
const (
	codeSerializationFailure = "40001"
	codeDeadlockDetected     = "40P01"
)

type postgresDialect struct{}

var _ dialect = postgresDialect{}

func (postgresDialect) name() string { return "postgresql" }

func postgresTarget(raw string) (target, error) {
	t := target{secret: secretsOf(raw)}
	config, err := pgx.ParseConfig(raw)
	if err != nil {
		return target{}, t.redact(fmt.Errorf("read database url: %w; %s", err, urlHelp))
	}
	t.secret = append(t.secret, config.Password)
	t.open = func(ctx context.Context, s *Store) error { return openPostgres(ctx, s, config) }
	return t, nil
}

func openPostgres(ctx context.Context, s *Store, config *pgx.ConnConfig) error {
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "heteroflow"
	}
	if err := refusePooler(ctx, config); err != nil {
		return err
	}
	db := stdlib.OpenDB(*config)
	db.SetMaxOpenConns(postgresConns)
	db.SetMaxIdleConns(postgresIdle)
	db.SetConnMaxLifetime(postgresLifetime)
	if err := db.PingContext(ctx); err != nil {
		return closeAll(fmt.Errorf("open database: %w", err), db)
	}
	s.dialect, s.write, s.read = postgresDialect{}, db, db
	return nil
}

func (postgresDialect) migrations() (goose.Dialect, goose.ProviderOption) {
	return goose.DialectPostgres, goose.WithSessionLocker(postgresLock{})
}

// relaxed answers before the server has flushed its log, which it does within three times wal_writer_delay (200 ms).
func (postgresDialect) relaxed() relaxation {
	return relaxation{inside: relaxPostgres}
}

const relaxPostgres = "SET LOCAL synchronous_commit = off"

func (postgresDialect) pipelines() bool { return true }

// flush is a transaction that does wait for the disk: what came before it in the log is on disk then, too. It has to
// write something, or the server has nothing to wait for.
func (postgresDialect) flush(ctx context.Context, s *Store) error {
	_, err := s.write.ExecContext(ctx, "SELECT pg_logical_emit_message(true, 'heteroflow', '')")
	return err
}

func (postgresDialect) again(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && (e.Code == codeSerializationFailure || e.Code == codeDeadlockDetected)
}

// postgresLock is a session advisory lock of the schema, held around a migration. It blocks in the server instead
// of polling, and the server gives it back when the session ends.
type postgresLock struct{}

const migrationLockKey = `hashtextextended('heteroflow migration of ' || current_schema(), 0)`

func (postgresLock) SessionLock(ctx context.Context, conn *sql.Conn) error {
	if _, err := conn.ExecContext(ctx, "SELECT pg_advisory_lock("+migrationLockKey+")"); err != nil {
		return fmt.Errorf("take migration lock: %w", err)
	}
	return nil
}

func (postgresLock) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	var held bool
	err := conn.QueryRowContext(ctx, "SELECT pg_advisory_unlock("+migrationLockKey+")").Scan(&held)
	if err != nil {
		return fmt.Errorf("give back migration lock: %w", err)
	}
	if !held {
		return errors.New("the migration lock was not held by this session any more")
	}
	return nil
}
