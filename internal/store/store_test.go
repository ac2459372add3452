package store_test

import (
	"os"
	"testing"

	"github.com/heteroflow/heteroflow/internal/store/storetest"
	"github.com/heteroflow/heteroflow/internal/testkit/postgres"
)

func TestMain(m *testing.M) { os.Exit(postgres.Main(m)) }

func TestSQLite(t *testing.T) {
	t.Parallel()
	storetest.Run(t, storetest.SQLite)
}

func TestPostgreSQL(t *testing.T) {
	t.Parallel()
	postgres.URL(t) // skips here, once, when there is none
	storetest.Run(t, storetest.PostgreSQL)
}
