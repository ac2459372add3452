//go:build unix

package postgres_test

import (
	"errors"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/heteroflow/heteroflow/internal/testkit/postgres"
)

func TestMain(m *testing.M) { os.Exit(postgres.Main(m)) }

func TestSchemaURL_GivesEachTestItsOwn(t *testing.T) {
	t.Parallel()
	for range 2 {
		conn, err := pgx.Connect(t.Context(), postgres.SchemaURL(t))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), "CREATE TABLE only_once (id TEXT)"); err != nil {
			t.Error(err)
		}
		if err := conn.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestCluster_StopLeavesNothing(t *testing.T) {
	t.Parallel()
	c, err := postgres.Start(t.Context())
	if errors.Is(err, postgres.ErrNotInstalled) {
		t.Skipf("SKIPPED: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	socket := c.Socket()
	if _, err := os.Stat(socket); err != nil {
		t.Error(err)
	}
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(socket); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
	if conn, err := pgx.Connect(t.Context(), c.URL()); err == nil {
		t.Error("the server still answers", conn.Close(t.Context()))
	}
}

func TestCluster_HaltKeepsTheData(t *testing.T) {
	t.Parallel()
	c, err := postgres.Start(t.Context())
	if errors.Is(err, postgres.ErrNotInstalled) {
		t.Skipf("SKIPPED: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	}()
	run := func(statement string) error {
		conn, err := pgx.Connect(t.Context(), c.URL())
		if err != nil {
			return err
		}
		_, err = conn.Exec(t.Context(), statement)
		return errors.Join(err, conn.Close(t.Context()))
	}
	if err := run("CREATE TABLE kept (x INT)"); err != nil {
		t.Fatal(err)
	}
	if err := c.Halt(); err != nil {
		t.Fatal(err)
	}
	if err := run("SELECT * FROM kept"); err == nil {
		t.Error("a halted server answers")
	}
	if err := c.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := run("SELECT * FROM kept"); err != nil {
		t.Errorf("after the resumption: %v", err)
	}
}
