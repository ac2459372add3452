package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// ErrPooler says that a transaction-mode pooler stands between us and PostgreSQL.
var ErrPooler = errors.New("the database url leads through a pooler in transaction mode, which breaks session " +
	"locks and prepared statements: connect to PostgreSQL itself, or set the pooler's pool_mode to session")

// session is one client session with the server, as far as the check needs it.
type session interface {
	// backend is the process id of the server process that answers now.
	backend(ctx context.Context) (int, error)
	begin(ctx context.Context) error
	rollback(ctx context.Context) error
}

// refusePooler opens two sessions of its own and asks whether each keeps its server process.
func refusePooler(ctx context.Context, config *pgx.ConnConfig) error {
	plain := config.Copy()
	// A pooler in transaction mode loses prepared statements, and the check must get as far as its answer.
	plain.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	var sessions []session
	for range 2 {
		conn, err := pgx.ConnectConfig(ctx, plain)
		if err != nil {
			return fmt.Errorf("connect to database: %w", err)
		}
		defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // the answer is known; a failed goodbye changes nothing
		sessions = append(sessions, &pgSession{conn})
	}
	return probeSessions(ctx, sessions[0], sessions[1])
}

// probeSessions lets the second session hold a transaction between two questions of the first. A pooler that hands
// out server processes per transaction gives the first a different process then; a real session keeps its own.
// A pooler that happens to give the same one once is asked again.
func probeSessions(ctx context.Context, first, second session) error {
	for range 3 {
		before, err := first.backend(ctx)
		if err != nil {
			return fmt.Errorf("ask for backend: %w", err)
		}
		if err := second.begin(ctx); err != nil {
			return fmt.Errorf("begin: %w", err)
		}
		held, err := second.backend(ctx)
		if err != nil {
			return fmt.Errorf("ask for backend: %w", err)
		}
		after, err := first.backend(ctx)
		if err != nil {
			return fmt.Errorf("ask for backend: %w", err)
		}
		if err := second.rollback(ctx); err != nil {
			return fmt.Errorf("roll back: %w", err)
		}
		if before != after || before == held {
			return ErrPooler
		}
	}
	return nil
}

type pgSession struct{ conn *pgx.Conn }

func (s *pgSession) backend(ctx context.Context) (pid int, err error) {
	err = s.conn.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid)
	return pid, err
}

func (s *pgSession) begin(ctx context.Context) error {
	_, err := s.conn.Exec(ctx, "BEGIN")
	return err
}

func (s *pgSession) rollback(ctx context.Context) error {
	_, err := s.conn.Exec(ctx, "ROLLBACK")
	return err
}
