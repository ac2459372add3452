package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/heteroflow/heteroflow/internal/clock"
)

// sqliteReaders is how many connections read beside the one that writes.
const sqliteReaders = 4

type sqliteDialect struct{ path string }

var _ dialect = sqliteDialect{}

func (sqliteDialect) name() string { return "sqlite" }

func sqliteTarget(path string) (target, error) {
	if path == "" || strings.HasPrefix(path, ":memory:") {
		return target{}, fmt.Errorf("SQLite needs a file, several connections share it: %s", urlHelp)
	}
	path = filepath.Clean(path)
	return target{open: func(ctx context.Context, s *Store) error { return openSQLite(ctx, s, path) }}, nil
}

func openSQLite(ctx context.Context, s *Store, path string) error {
	if err := createPrivate(path); err != nil {
		return fmt.Errorf("create database file: %w", err)
	}
	write, err := sql.Open("sqlite", sqliteDSN(path))
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	// SQLite has one writer at a time. One connection makes writers queue here, in order and without busy errors,
	// instead of in the file lock, where waiting is a poll.
	write.SetMaxOpenConns(1)
	write.SetConnMaxIdleTime(0)
	if err := firstTouch(ctx, write); err != nil {
		return closeAll(fmt.Errorf("open %s: %w", path, err), write)
	}
	read, err := sql.Open("sqlite", sqliteDSN(path, "query_only(1)"))
	if err != nil {
		return closeAll(fmt.Errorf("open %s for reading: %w", path, err), write)
	}
	read.SetMaxOpenConns(sqliteReaders)
	read.SetMaxIdleConns(sqliteReaders)
	s.dialect, s.write, s.read = sqliteDialect{path: path}, write, read
	s.beside = startCheckpoints(read, path, s.log)
	return nil
}

// firstTouch makes the first connection, which puts a new file into WAL mode. SQLite does not wait for that lock,
// whatever busy_timeout says, so when several processes open a new file together the losers try again.
func firstTouch(ctx context.Context, db *sql.DB) error {
	for try := 1; ; try++ {
		err := db.PingContext(ctx)
		if err == nil || try == txTries || !(sqliteDialect{}).again(err) {
			return err
		}
		if !clock.Sleep(ctx, clock.System(), pause(try)) {
			return errors.Join(ctx.Err(), err)
		}
	}
}

// sqliteDSN names the file and the pragmas, which the driver applies to each connection it opens.
func sqliteDSN(path string, pragmas ...string) string {
	q := url.Values{"_txlock": {"immediate"}}
	for _, p := range append([]string{"busy_timeout(5000)", "journal_mode(WAL)", "foreign_keys(1)", fmt.Sprintf("wal_autocheckpoint(%d)", checkpointLate)}, pragmas...) {
		q.Add("_pragma", p)
	}
	return (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: q.Encode()}).String()
}

// createPrivate makes the file, readable by its owner only, before SQLite would make it readable by all.
func createPrivate(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

func (d sqliteDialect) migrations() (goose.Dialect, goose.ProviderOption) {
	return goose.DialectSQLite3, goose.WithLocker(&sqliteLock{path: d.path + ".migrate"})
}

// relaxed leaves the log unsynced until the next transaction that is not, or the next checkpoint. SQLite lets the level
// be changed between transactions only.
func (sqliteDialect) relaxed() relaxation {
	return relaxation{before: "PRAGMA synchronous = NORMAL", after: "PRAGMA synchronous = FULL"}
}

// pipelines is false: there is no way to the database, it is in this process.
func (sqliteDialect) pipelines() bool { return false }

// flush syncs the log's file, which is all that SQLite does for a transaction that waits for the disk. It takes no
// connection, so that others write meanwhile. What a checkpoint took out of the log is on disk already.
func (d sqliteDialect) flush(context.Context, *Store) error {
	log, err := os.OpenFile(d.path+"-wal", os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil // nothing was written yet
	}
	if err != nil {
		return err
	}
	return errors.Join(log.Sync(), log.Close())
}

func (sqliteDialect) again(err error) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && e.Code()&0xff == sqlite3.SQLITE_BUSY
}

// sqliteLock is a lock between processes around a migration: an open exclusive transaction on a small database
// beside the real one. SQLite gives it back when its process dies, on every operating system.
type sqliteLock struct {
	path string
	db   *sql.DB
	tx   *sql.Tx
}

func (l *sqliteLock) Lock(ctx context.Context, _ *sql.DB) error {
	db, err := sql.Open("sqlite", (&url.URL{
		Scheme: "file", Opaque: (&url.URL{Path: l.path}).EscapedPath(),
		RawQuery: "_txlock=exclusive&_pragma=busy_timeout(60000)",
	}).String())
	if err != nil {
		return fmt.Errorf("open migration lock: %w", err)
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return closeAll(fmt.Errorf("take migration lock %s: %w", l.path, err), db)
	}
	l.db, l.tx = db, tx
	return nil
}

func (l *sqliteLock) Unlock(context.Context, *sql.DB) error {
	return errors.Join(l.tx.Rollback(), l.db.Close())
}
