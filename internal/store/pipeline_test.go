package store

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/heteroflow/heteroflow/internal/store/sqlgen"
	"github.com/heteroflow/heteroflow/internal/testkit/postgres"
)

// ways counts how often the database is asked: a batch counts as one.
type ways struct{ batches, single atomic.Int64 }

func (w *ways) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	w.single.Add(1)
	return ctx
}
func (*ways) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (w *ways) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	w.batches.Add(1)
	return ctx
}
func (*ways) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (*ways) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

func (w *ways) reset() { w.batches.Store(0); w.single.Store(0) }

// counted opens a PostgreSQL store that has one connection, and counts.
func counted(t *testing.T) (*Store, *ways) {
	t.Helper()
	s := mustOpen(t, postgres.SchemaURL(t))
	var config *pgx.ConnConfig
	conn, err := s.write.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Raw(func(raw any) error {
		config = raw.(*stdlib.Conn).Conn().Config().Copy()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	w := &ways{}
	config.Tracer = w
	db := stdlib.OpenDB(*config)
	db.SetMaxOpenConns(1)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return &Store{dialect: s.dialect, write: db, read: db, clock: s.clock, log: s.log}, w
}

func offered(t *testing.T, s *Store) {
	t.Helper()
	if err := s.PutPools(t.Context(), "n1", []Pool{{NodeID: "n1", Group: "g", Capacity: 10, UnitMiB: 1}}); err != nil {
		t.Fatal(err)
	}
}

func asking(job, id string, units int) (Job, Reservation) {
	return Job{Namespace: "default", ID: job, SpecHash: "h", State: JobSubmitting},
		Reservation{ID: id, Namespace: "default", JobID: job, Claims: []Claim{{NodeID: "n1", Group: "g", Units: units}}}
}

func TestPipeline_ReservesInOneWay(t *testing.T) {
	t.Parallel()
	s, w := counted(t)
	offered(t, s)
	for i, name := range []string{"a", "b"} { // the first one also tells the connection what the statements are
		w.reset()
		job, room := asking(name, "r-"+name, 2)
		job, err := s.PutJobReserving(t.Context(), job, room)
		if err != nil || job.Version != 1 {
			t.Fatalf("version %d, %v", job.Version, err)
		}
		if b, q := w.batches.Load(), w.single.Load(); i == 1 && (b != 1 || q != 0) {
			t.Errorf("reserving: %d batches, %d single statements", b, q)
		}
		w.reset()
		job.State = JobSubmitted
		if job, err = s.PutJobSubmitted(t.Context(), job, room.ID); err != nil || job.Version != 2 {
			t.Fatalf("version %d, %v", job.Version, err)
		}
		if b, q := w.batches.Load(), w.single.Load(); i == 1 && (b != 1 || q != 0) {
			t.Errorf("submitted: %d batches, %d single statements", b, q)
		}
	}
	pools, err := s.Pools(t.Context())
	if err != nil || len(pools) != 1 || pools[0].Taken != 4 {
		t.Errorf("pools %+v, %v", pools, err)
	}
}

// What does not go as foreseen has the answer of the way step by step, leaves nothing behind, and no open transaction on the only
// connection there is.
func TestPipeline_UnforeseenIsRunStepByStep(t *testing.T) {
	t.Parallel()
	s, w := counted(t)
	offered(t, s)
	job, room := asking("big", "r1", 11)
	_, err := s.PutJobReserving(t.Context(), job, room)
	var full *NoRoomError
	if !errors.As(err, &full) || full.Free != 10 || full.Want != 11 {
		t.Errorf("too big: %v", err)
	}
	if _, err := s.Job(t.Context(), "default", "big"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a job without room was kept: %v", err)
	}
	if w.batches.Load() == 0 || w.single.Load() < 5 {
		t.Errorf("%d batches, %d single statements", w.batches.Load(), w.single.Load())
	}

	job, room = asking("twice", "r2", 1)
	if _, err := s.PutJobReserving(t.Context(), job, room); err != nil {
		t.Fatal(err)
	}
	room.ID = "r3"
	if _, err := s.PutJobReserving(t.Context(), job, room); !errors.Is(err, ErrJobChanged) {
		t.Errorf("same job: %v", err)
	}
	// A statement that the database refuses.
	bad := func(q *sqlgen.Queries) error {
		return q.AddTaken(t.Context(), sqlgen.AddTakenParams{NodeID: "n\x00", GroupName: "g", Units: 1})
	}
	if err := s.inPipelinedTx(t.Context(), bad); err == nil || errors.Is(err, errUnforeseen) {
		t.Errorf("refused statement: %v", err)
	}
	pools, err := s.Pools(t.Context())
	if err != nil || len(pools) != 1 || pools[0].Taken != 1 {
		t.Errorf("pools %+v, %v", pools, err)
	}
}

// A reading transaction asks the database nothing before it is run step by step.
func TestPipeline_ReadingIsNotForeseen(t *testing.T) {
	t.Parallel()
	s, w := counted(t)
	offered(t, s)
	w.reset()
	runs := 0
	err := s.inPipelinedTx(t.Context(), func(q *sqlgen.Queries) error {
		runs++
		if runs == 2 && w.single.Load()+w.batches.Load() != 2 { // begin, relax
			t.Errorf("%d statements before", w.single.Load())
		}
		_, err := q.GetPool(t.Context(), sqlgen.GetPoolParams{NodeID: "n1", GroupName: "g"})
		return err
	})
	if err != nil || runs != 2 {
		t.Errorf("%d runs, %v", runs, err)
	}
}

// A connection that was lost costs nothing: the transaction is run again on another.
func TestPipeline_LostConnection(t *testing.T) {
	t.Parallel()
	s, _ := counted(t)
	offered(t, s)
	job, room := asking("a", "r1", 1)
	killer := mustOpen(t, postgres.SchemaURL(t))
	var pid int
	if err := s.write.QueryRowContext(t.Context(), "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		t.Fatal(err)
	}
	var gone bool
	if err := killer.write.QueryRowContext(t.Context(), "SELECT pg_terminate_backend($1, 60000)", pid).Scan(&gone); err != nil || !gone {
		t.Fatalf("end the session: %t, %v", gone, err)
	}
	if _, err := s.PutJobReserving(t.Context(), job, room); err != nil {
		t.Error(err)
	}
}

// Where the connection is lost after the end of the transaction, what is run again finds the version gone that it was made for.
func TestPipeline_LostAnswer(t *testing.T) {
	t.Parallel()
	s, _ := counted(t)
	offered(t, s)
	job, room := asking("a", "r1", 1)
	if _, err := s.PutJobReserving(t.Context(), job, room); err != nil {
		t.Fatal(err)
	}
	if _, err := s.PutJobReserving(t.Context(), job, room); !errors.Is(err, ErrJobChanged) {
		t.Errorf("the same once more: %v", err)
	}
	job.Version = 1
	if _, err := s.PutJobSubmitted(t.Context(), job, room.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := s.PutJobSubmitted(t.Context(), job, room.ID); !errors.Is(err, ErrJobChanged) {
		t.Errorf("the same once more: %v", err)
	}
	pools, err := s.Pools(t.Context())
	if err != nil || len(pools) != 1 || pools[0].Taken != 1 {
		t.Errorf("pools %+v, %v", pools, err)
	}
}
