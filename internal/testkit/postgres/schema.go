//go:build unix

package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Env names the variable that leads tests to a PostgreSQL: a url whose user may create schemas, or "off".
// When it is not set, a private cluster is started, if the server is installed.
const Env = "HETEROFLOW_TEST_POSTGRES"

// shared is the cluster of this test process, started by the first test that needs one.
var shared struct {
	sync.Mutex
	tried   bool
	cluster *Cluster
	err     error
}

// Main runs a package's tests and then ends the cluster that they may have started. Use it as
//
//	func TestMain(m *testing.M) { os.Exit(postgres.Main(m)) }
func Main(m *testing.M) int {
	code := m.Run()
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster != nil {
		if err := shared.cluster.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return max(code, 1)
		}
		shared.cluster = nil
	}
	return code
}

// URL is a url of the PostgreSQL to test with. It skips the test, saying why, when there is none. The package's
// TestMain must be Main, which ends what this starts.
func URL(tb testing.TB) string {
	tb.Helper()
	switch given := os.Getenv(Env); given {
	case "":
	case "off":
		tb.Skipf("SKIPPED, PostgreSQL is not tested: %s=off", Env)
	default:
		return given
	}
	shared.Lock()
	defer shared.Unlock()
	if !shared.tried {
		shared.tried = true
		shared.cluster, shared.err = Start(context.Background())
	}
	if errors.Is(shared.err, ErrNotInstalled) {
		tb.Skipf("SKIPPED, PostgreSQL is not tested: %s is not set and %v", Env, shared.err)
	}
	if shared.err != nil {
		tb.Fatalf("start a private PostgreSQL: %v", shared.err)
	}
	return shared.cluster.URL()
}

// SchemaURL is a url of a fresh empty schema, which is dropped when the test ends. It skips like URL.
func SchemaURL(tb testing.TB) string {
	tb.Helper()
	base := URL(tb)
	schema := "hf_" + strings.ToLower(rand.Text())
	execute(tb, base, "CREATE SCHEMA "+schema)
	tb.Cleanup(func() { execute(tb, base, "DROP SCHEMA "+schema+" CASCADE") })
	u, err := url.Parse(base)
	if err != nil {
		tb.Fatalf("the url in %s does not parse", Env) // its text may hold a password
	}
	q := u.Query()
	q.Set("search_path", schema)
	u.RawQuery = q.Encode()
	return u.String()
}

func execute(tb testing.TB, url, statement string) {
	tb.Helper()
	// The test's own context ends before its clean-ups run.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		tb.Fatalf("connect to the PostgreSQL to test with: %v", err)
	}
	_, err = conn.Exec(ctx, statement)
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		tb.Fatalf("%s: %v", statement, err)
	}
}
