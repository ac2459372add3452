package store

import (
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/heteroflow/heteroflow/internal/testkit/postgres"
)

// TestReserve_TwoInstances: service instances share nothing but the database, and still never grant a unit twice.
func TestReserve_TwoInstances(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string) {
		const capacity, racers = 61, 200
		instances := []*Store{mustOpen(t, url), mustOpen(t, url)}
		if err := instances[0].PutPools(t.Context(), "n1", []Pool{{Group: "a", Capacity: capacity}}); err != nil {
			t.Fatal(err)
		}
		var won atomic.Int64
		var wg sync.WaitGroup
		for i := range racers {
			wg.Go(func() {
				err := instances[i%2].Reserve(t.Context(), Reservation{
					ID: NewID(), Namespace: "default", JobID: fmt.Sprint("job", i),
					Claims: []Claim{{NodeID: "n1", Group: "a", Units: 1}},
				})
				var full *NoRoomError
				switch {
				case err == nil:
					won.Add(1)
				case !errors.As(err, &full):
					t.Errorf("reserve: %v", err)
				}
			})
		}
		wg.Wait()
		pools, err := instances[1].Pools(t.Context())
		if err != nil || won.Load() != capacity || pools[0].Taken != capacity {
			t.Errorf("%d won, %+v, %v", won.Load(), pools, err)
		}
	})
}

// TestPostgreSQL_LostConnectionsAreReplaced: a server that restarts cuts every connection; the next call must work.
func TestPostgreSQL_LostConnectionsAreReplaced(t *testing.T) {
	t.Parallel()
	url := postgres.SchemaURL(t)
	s := mustOpen(t, url)
	// Several connections at once, so that the pool keeps several.
	var conns []*sql.Conn
	var pids []int
	for range 4 {
		conn, err := s.write.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
		var pid int
		if err := conn.QueryRowContext(t.Context(), "SELECT pg_backend_pid()").Scan(&pid); err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	for _, conn := range conns {
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
	killSessions(t, url, pids)
	for i := range pids {
		if _, _, err := s.SetSettingOnce(t.Context(), fmt.Sprint("a", i), "set"); err != nil {
			t.Errorf("call %d after the cut: %v", i, err)
		}
	}
}

func killSessions(t *testing.T, url string, pids []int) {
	t.Helper()
	admin, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		if _, err := admin.Exec(t.Context(), "SELECT pg_terminate_backend($1, 10000)", pid); err != nil {
			t.Fatal(err)
		}
	}
	if err := admin.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
