package store

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOpen_RefusesUrlsWithASentence(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	text := filepath.Join(folder, "notes.txt")
	if err := os.WriteFile(text, []byte(strings.Repeat("this is no database. ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ url, want string }{
		"none":             {url: "", want: "no database url given"},
		"another engine":   {url: "mysql://a/b", want: `unknown kind of database "mysql"`},
		"in memory":        {url: ":memory:", want: "SQLite needs a file"},
		"sqlite of none":   {url: "sqlite://", want: "SQLite needs a file"},
		"a folder":         {url: folder, want: "is a directory"},
		"not a database":   {url: text, want: "not a database"},
		"bad port":         {url: "postgres://u:s3cret@h:port/db", want: "read database url"},
		"bad escape":       {url: "postgres://u:s3cret%zz@h/db", want: "read database url"},
		"bad option":       {url: "postgres://u:s3cret@h/db?sslmode=maybe", want: "sslmode"},
		"nobody there":     {url: "postgres://u:s3cret@127.0.0.1:1/db?connect_timeout=2", want: "connect"},
		"password in form": {url: "postgres://127.0.0.1:1/db?user=u&password=s3cret&connect_timeout=2", want: "connect"},
		"no such socket":   {url: "postgres://u:s3cret@/db?host=" + folder, want: "connect"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := Open(t.Context(), c.url, nil)
			if err == nil {
				t.Fatal("opened", s.Close())
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %q, want %q in it", err, c.want)
			}
			if strings.Contains(err.Error(), "s3cret") {
				t.Errorf("the password is in %q", err)
			}
		})
	}
}

func TestTarget_RedactTakesOutEveryForm(t *testing.T) {
	t.Parallel()
	raw := "postgres://u:p%40ss%2Fword@h/db"
	target := target{secret: secretsOf(raw)}
	for _, form := range []string{"p@ss/word", "p%40ss%2Fword"} {
		if got := target.redact(errString("cannot reach " + form)).Error(); got != "cannot reach xxxxx" {
			t.Errorf("%s: %s", form, got)
		}
	}
	plain := errString("nothing in it")
	if got := target.redact(plain); got != plain {
		t.Errorf("an error without the password was changed to %v", got)
	}
}

type errString string

func (e errString) Error() string { return string(e) }

func TestOpen_SQLiteFileIsPrivateAndPathsAreTakenAsTheyAre(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for _, name := range []string{"plain.db", "with space & ?query=1#part%41.db"} {
		path := filepath.Join(folder, "sub", name)
		for _, url := range []string{path, "sqlite://" + path} {
			s, err := Open(t.Context(), url, nil)
			if err != nil {
				t.Fatalf("%s: %v", url, err)
			}
			if err := s.Ping(t.Context()); err != nil {
				t.Error(err)
			}
			if got := s.Engine(); got != "sqlite" {
				t.Errorf("engine %s", got)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != 0o600 {
			t.Errorf("%s has mode %v", name, got)
		}
	}
}

func TestOpen_SQLitePragmasHoldOnEveryConnection(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "state.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	for range sqliteReaders {
		conn, err := s.read.Conn(t.Context()) // kept, so that the next is another
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		}()
		for pragma, want := range map[string]string{"journal_mode": "wal", "foreign_keys": "1", "busy_timeout": "5000"} {
			var got string
			if err := conn.QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&got); err != nil || got != want {
				t.Errorf("%s is %s (%v), want %s", pragma, got, err, want)
			}
		}
		if _, err := conn.ExecContext(t.Context(), "DELETE FROM settings"); err == nil {
			t.Error("a reader wrote")
		}
	}
}
