package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/heteroflow/heteroflow/internal/store/sqlgen"
)

// errUnforeseen says that a transaction cannot be sent as one: it reads, or a statement did not touch the one row that was
// foreseen. It has left nothing behind.
var errUnforeseen = errors.New("the transaction did not go as foreseen")

// inPipelinedTx is inRelaxedTx for what only writes when all goes well. Where the database is a process of its own, each
// statement is a way there and back, and each way wakes two processes; so all of it is sent as one, on the assumption that each
// statement that is counted touches one row. Where that turns out wrong the transaction is run again step by step, which finds
// out what is the case. It is also run again when the connection was lost, before or after the end: so one of its statements must
// ask for the version that it was made for, and find it gone.
func (s *Store) inPipelinedTx(ctx context.Context, do func(q *sqlgen.Queries) error) error {
	if s.dialect.pipelines() {
		err := s.foresee(ctx, do)
		if !errors.Is(err, errUnforeseen) {
			return err
		}
		s.log.Debug("transaction is run step by step", "reason", err)
	}
	return s.inRelaxedTx(ctx, do)
}

func (s *Store) foresee(ctx context.Context, do func(q *sqlgen.Queries) error) (err error) {
	plan := &writes{nobody: s.write}
	if err := do(sqlgen.New(plan)); err != nil || plan.reads {
		return errors.Join(errUnforeseen, err) // it reads, or fails by itself
	}
	conn, err := s.write.Conn(ctx)
	if err != nil {
		return fmt.Errorf("take a connection: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	var sent error
	err = conn.Raw(func(raw any) error {
		pg := raw.(*stdlib.Conn).Conn()
		if sent = plan.send(ctx, pg); pg.IsClosed() || pg.PgConn().TxStatus() != 'I' {
			return driver.ErrBadConn // nobody else is to get a connection with an open transaction
		}
		return nil
	})
	if errors.Is(err, driver.ErrBadConn) {
		err = nil
	}
	return errors.Join(sent, err)
}

// writes takes down statements instead of running them.
type writes struct {
	nobody *sql.DB // answers what is read, with an error
	calls  []*write
	reads  bool
}

type write struct {
	query   string
	args    []any
	counted bool // the transaction asked how many rows it touched, and was told one
}

var _ sqlgen.DBTX = (*writes)(nil)

func (w *writes) ExecContext(_ context.Context, query string, args ...any) (sql.Result, error) {
	call := &write{query: query, args: args}
	w.calls = append(w.calls, call)
	return call, nil
}

func (w *writes) PrepareContext(context.Context, string) (*sql.Stmt, error) {
	w.reads = true
	return nil, errUnforeseen
}

func (w *writes) QueryContext(context.Context, string, ...any) (*sql.Rows, error) {
	w.reads = true
	return nil, errUnforeseen
}

// QueryRowContext asks with a context that has ended, since nobody but the package sql can make a row: the database hears nothing.
func (w *writes) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	w.reads = true
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return w.nobody.QueryRowContext(ctx, query, args...)
}

func (w *write) LastInsertId() (int64, error) { return 0, errUnforeseen }

func (w *write) RowsAffected() (int64, error) {
	w.counted = true
	return 1, nil
}

// touchingOne has the database give a transaction up unless the statement touches exactly one row.
func touchingOne(query string) string {
	return "WITH touched AS (" + query + "\nRETURNING 1) SELECT 1 / CASE count(*) WHEN 1 THEN 1 ELSE 0 END FROM touched"
}

// send runs the statements in one relaxed transaction, in one way there and back.
func (w *writes) send(ctx context.Context, pg *pgx.Conn) error {
	batch := &pgx.Batch{}
	batch.Queue("BEGIN")
	batch.Queue(relaxPostgres)
	for _, c := range w.calls {
		if c.counted {
			c.query = touchingOne(c.query)
		}
		batch.Queue(c.query, c.args...)
	}
	batch.Queue("COMMIT")
	err := ended(pg.SendBatch(ctx, batch), batch.Len())
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%w: %w", errUnforeseen, err)
	if pg.PgConn().TxStatus() == 'I' { // a lost connection, or one that never began
		return err
	}
	_, undo := pg.Exec(context.WithoutCancel(ctx), "ROLLBACK")
	return errors.Join(err, undo)
}

// ended reads the answers to a batch up to the first error, after which the database skips the rest.
func ended(results pgx.BatchResults, n int) (err error) {
	for range n {
		if _, err = results.Exec(); err != nil {
			break
		}
	}
	if end := results.Close(); err == nil {
		err = end
	}
	return err
}
