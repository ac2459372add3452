package store

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"modernc.org/sqlite"

	"github.com/heteroflow/heteroflow/internal/testkit/postgres"
)

// urls are fresh databases of both engines, by name.
var urls = map[string]func(testing.TB) string{
	"sqlite":     func(tb testing.TB) string { return filepath.Join(tb.TempDir(), "state.db") },
	"postgresql": postgres.SchemaURL,
}

func onEach(t *testing.T, test func(t *testing.T, url string)) {
	t.Helper()
	for name, url := range urls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, url(t))
		})
	}
}

func mustOpen(tb testing.TB, url string) *Store {
	tb.Helper()
	s, err := Open(tb.Context(), url, nil)
	if err != nil {
		tb.Fatalf("open: %v", err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	return s
}

// withMigration is the released migrations and one more.
func withMigration(tb testing.TB, name, up string) fs.FS {
	tb.Helper()
	files := fstest.MapFS{name: {Data: []byte("-- +goose Up\n" + up + "\n")}}
	found, err := fs.Glob(migrationFiles, "migrations/*.sql")
	if err != nil {
		tb.Fatal(err)
	}
	for _, path := range found {
		body, err := migrationFiles.ReadFile(path)
		if err != nil {
			tb.Fatal(err)
		}
		files[filepath.Base(path)] = &fstest.MapFile{Data: body}
	}
	return files
}

func TestMigrate_EmptyDatabaseTwiceAndTogether(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string) {
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() {
				s, err := Open(t.Context(), url, nil)
				if err != nil {
					t.Errorf("open together: %v", err)
					return
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		s := mustOpen(t, url)
		if _, _, err := s.SetSettingOnce(t.Context(), "a", "kept"); err != nil {
			t.Fatal(err)
		}
		if got, err := mustOpen(t, url).Setting(t.Context(), "a"); err != nil || got != "kept" {
			t.Errorf("after the second open: %q, %v", got, err)
		}
	})
}

func TestMigrate_FailureInTheMiddleLeavesTheVersionBefore(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string) {
		s := mustOpen(t, url)
		middle := map[string]string{
			"a statement that fails": "CREATE TABLE half (id TEXT);\nSELECT * FROM no_such_table;",
		}
		if s.Engine() == "postgresql" {
			middle["the connection dies"] = "CREATE TABLE half (id TEXT);\nSELECT pg_terminate_backend(pg_backend_pid());"
		}
		for name, up := range middle {
			if err := migrateFrom(t.Context(), s.dialect, s.write, withMigration(t, "00900_next.sql", up)); err == nil {
				t.Errorf("%s: no error", name)
			}
			if _, err := s.write.ExecContext(t.Context(), "SELECT * FROM half"); err == nil {
				t.Errorf("%s: half a migration is there", name)
			}
			if err := mustOpen(t, url).Ping(t.Context()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		whole := withMigration(t, "00900_next.sql", "CREATE TABLE half (id TEXT);")
		for range 2 {
			if err := migrateFrom(t.Context(), s.dialect, s.write, whole); err != nil {
				t.Fatalf("the mended migration: %v", err)
			}
		}
		if _, err := s.write.ExecContext(t.Context(), "SELECT * FROM half"); err != nil {
			t.Error(err)
		}
		_, err := Open(t.Context(), url, nil)
		if err == nil || !strings.Contains(err.Error(), "schema 900 and this build knows only") {
			t.Errorf("a newer schema: %v", err)
		}
	})
}

// crashEnv tells the test binary to be the process that is killed in the middle of a migration of the file it names.
const crashEnv = "HETEROFLOW_TEST_CRASH_IN_MIGRATION"

func TestMigrate_SQLiteSurvivesAKillInTheMiddle(t *testing.T) {
	if path := os.Getenv(crashEnv); path != "" {
		migrateAndDie(t, path)
		return
	}
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state.db")
	if _, _, err := mustOpen(t, path).SetSettingOnce(t.Context(), "a", "kept"); err != nil {
		t.Fatal(err)
	}
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMigrate_SQLiteSurvivesAKillInTheMiddle$")
	child.Env = append(os.Environ(), crashEnv+"="+path)
	out, err := child.CombinedOutput()
	var died *exec.ExitError
	if !errors.As(err, &died) || died.Exited() {
		t.Fatalf("the child was to be killed: %v\n%s", err, out)
	}
	s := mustOpen(t, path)
	if got, err := s.Setting(t.Context(), "a"); err != nil || got != "kept" {
		t.Errorf("after the kill: %q, %v", got, err)
	}
	if _, err := s.read.ExecContext(t.Context(), "SELECT * FROM half"); err == nil {
		t.Error("half a migration is there")
	}
}

// migrateAndDie kills its own process from within the migration's transaction.
func migrateAndDie(t *testing.T, path string) {
	sqlite.MustRegisterScalarFunction("die", 0, func(*sqlite.FunctionContext, []driver.Value) (driver.Value, error) {
		me, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = me.Kill()
		}
		if err == nil {
			select {} // until the kill arrives
		}
		return nil, err
	})
	s := mustOpen(t, path)
	t.Fatal(migrateFrom(t.Context(), s.dialect, s.write,
		withMigration(t, "00900_next.sql", "CREATE TABLE half (id TEXT);\nSELECT die();")))
}

func TestSQLiteLock_IsGivenBack(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	for range 2 {
		l := &sqliteLock{path: path}
		if err := l.Lock(t.Context(), (*sql.DB)(nil)); err != nil {
			t.Fatal(err)
		}
		if err := l.Unlock(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
}
