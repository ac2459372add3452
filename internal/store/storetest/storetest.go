//go:build unix

// Package storetest is the suite that every engine of the store must pass, and opens fresh stores for the tests of
// others. Tests of one engine's own ways do not belong here.
package storetest

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/internal/testkit/postgres"
)

// Open opens a fresh, empty store that is closed when the test ends.
type Open func(tb testing.TB, opts ...store.Option) *store.Store

// Engines are the ways to open a store, by the engine's name.
func Engines() map[string]Open {
	return map[string]Open{"sqlite": SQLite, "postgresql": PostgreSQL}
}

// SQLite opens a store in a file of the test.
func SQLite(tb testing.TB, opts ...store.Option) *store.Store {
	tb.Helper()
	return open(tb, filepath.Join(tb.TempDir(), "state.db"), opts)
}

// PostgreSQL opens a store in a schema of the test, or skips it, see postgres.URL. The package's TestMain must be
// postgres.Main.
func PostgreSQL(tb testing.TB, opts ...store.Option) *store.Store {
	tb.Helper()
	return open(tb, postgres.SchemaURL(tb), opts)
}

func open(tb testing.TB, url string, opts []store.Option) *store.Store {
	tb.Helper()
	s, err := store.Open(tb.Context(), url, hclog.NewNullLogger(), opts...)
	if err != nil {
		tb.Fatalf("open store: %v", err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Errorf("close store: %v", err)
		}
	})
	return s
}

// Run runs the suite.
func Run(t *testing.T, open Open) {
	for name, test := range map[string]func(*testing.T, Open){
		"Keys":         testKeys,
		"Settings":     testSettings,
		"Pools":        testPools,
		"Reservations": testReservations,
		"Settle":       testSettle,
		"Expire":       testExpire,
		"Race":         testRace,
		"Ledger":       testLedger,
		"Jobs":         testJobs,
		"Decisions":    testDecisions,
		"Intents":      testIntents,
		"Evictions":    testEvictions,
		"Moves":        testMoves,
		"Gangs":        testGangs,
		"Endpoints":    testEndpoints,
		"Signals":      testSignals,
		"Usage":        testUsage,
		"Cards":        testCards,
		"ScaleStates":  testScaleStates,
		"Limits":       testLimits,
		"Allowances":   testAllowances,
		"Prices":       testPrices,
		"KeyChanges":   testKeyChanges,
		"Text":         testText,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open)
		})
	}
}

// epoch is when the fake clock of a test stands at first.
var epoch = time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)

// openAt opens a store whose clock the test moves.
func openAt(t *testing.T, open Open) (*store.Store, *clock.Fake) {
	t.Helper()
	c := clock.NewFake(epoch)
	return open(t, store.WithClock(c)), c
}

func ok(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatalf("unexpected: %v", err)
	}
}

// ok2 is ok for a call that answers one value as well.
func ok2[T any](v T, err error) func(tb testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		ok(tb, err)
		return v
	}
}

func wantErr(tb testing.TB, err, want error) {
	tb.Helper()
	if diff := cmp.Diff(want, err, cmpopts.EquateErrors()); diff != "" {
		tb.Fatalf("(-want +got)\n%s", diff)
	}
}

func same(tb testing.TB, want, got any) {
	tb.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		tb.Fatalf("(-want +got)\n%s", diff)
	}
}

// allPages reads a list page by page, with few rows on each.
func allPages[T any](t *testing.T, list func(store.Page) ([]T, string, error)) []T {
	t.Helper()
	var all []T
	page := store.Page{Limit: 3}
	for {
		rows, next, err := list(page)
		ok(t, err)
		if len(rows) > page.Limit || (next != "" && len(rows) < page.Limit) {
			t.Fatalf("a page of %d rows, next %q", len(rows), next)
		}
		all = append(all, rows...)
		if next == "" {
			return all
		}
		page.Cursor = next
	}
}
