package store

import (
	"context"
	"database/sql"
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

func (s *Store) inRawTx(ctx context.Context, do func(tx *sql.Tx) error) error {
	for try := 1; ; try++ {
		err := s.once(ctx, do)
		if err == nil || try == txTries || (!errors.Is(err, errRaced) && !s.dialect.again(err)) {
			return err
		}
		s.log.Debug("transaction lost a race, running it again", "try", try, "error", err)
		if !clock.Sleep(ctx, clock.System(), pause(try)) {
			return errors.Join(ctx.Err(), err)
		}
	}
}

func (s *Store) once(ctx context.Context, do func(tx *sql.Tx) error) error {
	tx, err := s.write.BeginTx(ctx, nil)
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
