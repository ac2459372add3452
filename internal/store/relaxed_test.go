package store

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func synchronous(t *testing.T, s *Store) (level string) {
	t.Helper()
	if err := s.write.QueryRow("PRAGMA synchronous").Scan(&level); err != nil {
		t.Fatal(err)
	}
	return level
}

// Whatever becomes of a relaxed transaction, the next one on the connection waits for the disk again.
func TestSQLite_RelaxedForOneTransaction(t *testing.T) {
	t.Parallel()
	const normal, full = "1", "2"
	s := mustOpen(t, filepath.Join(t.TempDir(), "state.db"))
	ctx, cancel := context.WithCancel(context.Background())
	var within string
	cases := map[string]func(tx *sql.Tx) error{
		"ends well": func(tx *sql.Tx) error { return tx.QueryRowContext(ctx, "PRAGMA synchronous").Scan(&within) },
		"fails":     func(*sql.Tx) error { return ErrConflict },
		"is left": func(*sql.Tx) error {
			cancel()
			return ctx.Err()
		},
	}
	for _, name := range []string{"ends well", "fails", "is left"} {
		err := s.onceRelaxed(ctx, cases[name])
		if (err == nil) != (name == "ends well") {
			t.Errorf("%s: error %v", name, err)
		}
		if got := synchronous(t, s); got != full {
			t.Errorf("%s: level %s afterwards", name, got)
		}
	}
	if within != normal {
		t.Errorf("level %s within", within)
	}
}

func TestSQLite_FlushTellsThatTheLogCannotBeSynced(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state.db")
	d := sqliteDialect{path: path}
	if err := d.flush(t.Context(), nil); err != nil {
		t.Errorf("nothing written yet: %v", err)
	}
	if err := os.Mkdir(path+"-wal", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := d.flush(t.Context(), nil); err == nil {
		t.Error("no error")
	}
}

func TestSQLite_CopiesItsLogBesideTheWork(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state.db")
	s := mustOpen(t, path)
	for i := range 3 {
		if _, _, err := s.SetSettingOnce(context.Background(), "big"+string(rune('a'+i)), strings.Repeat("x", checkpointAbove/2)); err != nil {
			t.Fatal(err)
		}
	}
	deadline := time.Now().Add(30 * time.Second)
	for {
		if info, err := os.Stat(path); err == nil && info.Size() > checkpointAbove {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the log was never copied")
		}
		time.Sleep(20 * time.Millisecond)
	}
}
