package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/store/sqlgen"
)

// txTries is how often a transaction that lost a race is run; with the pauses between, about two seconds.
const txTries = 10

// errRaced ends a transaction that read what another has changed since; inTx runs it again.
var errRaced = errors.New("lost a race")

// now is the moment as rows keep it.
func (s *Store) now() time.Time { return stamp(s.clock.Now()) }

// inTx runs do in one transaction, again when it lost against another. do must not keep anything of a run that
// failed.
func (s *Store) inTx(ctx context.Context, do func(q *sqlgen.Queries) error) error {
	return s.inRawTx(ctx, func(tx *sql.Tx) error { return do(sqlgen.New(tx)) })
}

// inRelaxedTx is inTx for what is written again anyway: by the watcher from what Nomad says, or at the next occasion.
// Whoever reads sees it at once and the crash of a process loses nothing of it. The crash of the machine may lose the last
// moments, and never the order: what is lost is the end. It spares the wait for the disk, also to those who queue behind.
func (s *Store) inRelaxedTx(ctx context.Context, do func(q *sqlgen.Queries) error) error {
	return s.tries(ctx, func(ctx context.Context) error {
		return s.onceRelaxed(ctx, func(tx *sql.Tx) error { return do(sqlgen.New(tx)) })
	})
}

// Flush waits until all that was committed before the call is on disk, relaxed or not.
func (s *Store) Flush(ctx context.Context) error {
	if err := s.dialect.flush(ctx, s); err != nil {
		return fmt.Errorf("bring the database's log to disk: %w", err)
	}
	return nil
}

// relaxation is the statements that relax a transaction; empty ones are left out.
type relaxation struct{ before, inside, after string }

func (s *Store) onceRelaxed(ctx context.Context, do func(tx *sql.Tx) error) (err error) {
	conn, err := s.write.Conn(ctx)
	if err != nil {
		return fmt.Errorf("take a connection: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	how := s.dialect.relaxed()
	if how.before != "" {
		if _, err := conn.ExecContext(ctx, how.before); err != nil {
			return fmt.Errorf("relax: %w", err)
		}
	}
	if how.after != "" {
		defer func() {
			if _, undo := conn.ExecContext(context.WithoutCancel(ctx), how.after); undo != nil {
				err = errors.Join(err, fmt.Errorf("end relaxing: %w", undo), drop(conn))
			}
		}()
	}
	return once(ctx, conn, func(tx *sql.Tx) error {
		if how.inside != "" {
			if _, err := tx.ExecContext(ctx, how.inside); err != nil {
				return fmt.Errorf("relax: %w", err)
			}
		}
		return do(tx)
	})
}

// drop takes a connection out of its pool: nobody is to get one that stayed relaxed.
func drop(conn *sql.Conn) error {
	err := conn.Raw(func(any) error { return driver.ErrBadConn })
	if errors.Is(err, driver.ErrBadConn) {
		return nil
	}
	return err
}

func (s *Store) inRawTx(ctx context.Context, do func(tx *sql.Tx) error) error {
	return s.tries(ctx, func(ctx context.Context) error { return once(ctx, s.write, do) })
}

// tries runs one transaction, again when it lost against another.
func (s *Store) tries(ctx context.Context, once func(context.Context) error) error {
	for try := 1; ; try++ {
		err := once(ctx)
		if err == nil || try == txTries || (!errors.Is(err, errRaced) && !s.dialect.again(err)) {
			return err
		}
		s.log.Debug("transaction lost a race, running it again", "try", try, "error", err)
		if !clock.Sleep(ctx, clock.System(), pause(try)) {
			return errors.Join(ctx.Err(), err)
		}
	}
}

type beginner interface {
	BeginTx(context.Context, *sql.TxOptions) (*sql.Tx, error)
}

func once(ctx context.Context, db beginner, do func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if err := do(tx); err != nil {
		if undo := tx.Rollback(); undo != nil && !errors.Is(undo, sql.ErrTxDone) {
			err = errors.Join(err, fmt.Errorf("roll back: %w", undo))
		}
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// pause grows with the tries and is never the same for two racers.
func pause(try int) time.Duration {
	most := time.Millisecond << min(try, 9)
	return most/2 + rand.N(most/2+1)
}
