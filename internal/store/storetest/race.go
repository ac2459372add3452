//go:build unix

package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/heteroflow/heteroflow/internal/store"
)

// racers is how many reserve at once at the edge of capacity.
const racers = 200

func testRace(t *testing.T, open Open) {
	for name, test := range map[string]func(*testing.T, *store.Store){
		"one pool":              raceOnePool,
		"several pools, rings":  raceRings,
		"one job, many callers": raceOneJob,
		"settle and release":    raceSettle,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

// together runs do for each of n at once and waits.
func together(n int, do func(i int)) {
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			do(i)
		})
	}
	close(start)
	wg.Wait()
}

// reserveOrFull reports whether the reservation was taken, and fails on any answer but taken and full.
func reserveOrFull(ctx context.Context, t *testing.T, s *store.Store, r store.Reservation) bool {
	err := s.Reserve(ctx, r)
	var full *store.NoRoomError
	if err != nil && !errors.As(err, &full) {
		t.Errorf("reserve: %v", err)
	}
	return err == nil
}

// raceOnePool: as many as fit win, never one more and never one fewer.
func raceOnePool(t *testing.T, s *store.Store) {
	const capacity = 77
	ok(t, s.PutPools(t.Context(), "n1", []store.Pool{pool("n1", "a", capacity)}))
	var won atomic.Int64
	together(racers, func(i int) {
		if reserveOrFull(t.Context(), t, s, reservation(fmt.Sprint("r", i), fmt.Sprint("job", i), claim("n1", "a", 1))) {
			won.Add(1)
		}
	})
	same(t, int64(capacity), won.Load())
	same(t, map[string]int{"n1 a": capacity}, taken(t, s))
}

// raceRings: everyone names the same pools in another order, which would be a deadlock if anyone locked in it.
func raceRings(t *testing.T, s *store.Store) {
	const pools, capacity = 5, 40
	var offered []store.Pool
	for p := range pools {
		offered = append(offered, pool("n1", fmt.Sprint("p", p), capacity))
	}
	ok(t, s.PutPools(t.Context(), "n1", offered))
	var units atomic.Int64
	together(racers, func(i int) {
		var claims []store.Claim
		for k := range 3 {
			claims = append(claims, claim("n1", fmt.Sprint("p", (i+k*(1+i%2))%pools), 1+i%3))
		}
		r := reservation(fmt.Sprint("r", i), fmt.Sprint("job", i), claims...)
		if reserveOrFull(t.Context(), t, s, r) {
			units.Add(int64(3 * (1 + i%3)))
		}
	})
	sum := 0
	for name, n := range taken(t, s) {
		sum += n
		if n > capacity {
			t.Errorf("%s: %d units taken of %d", name, n, capacity)
		}
	}
	same(t, int(units.Load()), sum)
	same(t, 0, ok2(s.RecountPools(t.Context()))(t))
}

// raceOneJob: one job is submitted by many at once; one reservation comes of it.
func raceOneJob(t *testing.T, s *store.Store) {
	ok(t, s.PutPools(t.Context(), "n1", []store.Pool{pool("n1", "a", 100)}))
	var won, submitted atomic.Int64
	together(20, func(i int) {
		err := s.Reserve(t.Context(), reservation(fmt.Sprint("r", i), "llm", claim("n1", "a", 2)))
		switch {
		case err == nil:
			won.Add(1)
		case !errors.Is(err, store.ErrConflict):
			t.Errorf("reserve: %v", err)
		}
	})
	id := ok2(s.ReservationOf(t.Context(), "default", "llm"))(t).ID
	together(20, func(int) {
		first, err := s.MarkSubmitted(t.Context(), id)
		if err != nil {
			t.Errorf("mark submitted: %v", err)
		}
		if first {
			submitted.Add(1)
		}
	})
	same(t, [2]int64{1, 1}, [2]int64{won.Load(), submitted.Load()})
	same(t, map[string]int{"n1 a": 2}, taken(t, s))
}

// raceSettle: reservations, truth, fingerprints and releases of the same few jobs and pools cross each other. What
// is taken is the sum of the claims all the same.
func raceSettle(t *testing.T, s *store.Store) {
	ctx := t.Context()
	offer := []store.Pool{pool("n1", "a", 50), pool("n1", "b", 50)}
	ok(t, s.PutPools(ctx, "n1", offer))
	together(racers, func(i int) {
		job := fmt.Sprint("job", i%7)
		var err error
		switch i % 5 {
		case 0:
			reserveOrConflict(ctx, t, s, reservation(fmt.Sprint("r", i), job, claim("n1", "b", 1), claim("n1", "a", 2)))
		case 1:
			err = s.Settle(ctx, "default", job, []store.Claim{live(fmt.Sprint("al", i), "n1", "a", 2), live(fmt.Sprint("al", i), "n1", "b", 1)}, i%3)
		case 2:
			err = s.Settle(ctx, "default", job, nil, 0)
		case 3:
			err = s.Release(ctx, "default", job)
		case 4:
			err = s.PutPools(ctx, "n1", offer[:i%3])
		}
		if err != nil {
			t.Errorf("step %d: %v", i, err)
		}
	})
	ok(t, s.PutPools(ctx, "n1", offer))
	same(t, 0, ok2(s.RecountPools(ctx))(t))
	for j := range 7 {
		ok(t, s.Release(ctx, "default", fmt.Sprint("job", j)))
	}
	same(t, map[string]int{"n1 a": 0, "n1 b": 0}, taken(t, s))
}

func reserveOrConflict(ctx context.Context, t *testing.T, s *store.Store, r store.Reservation) {
	var full *store.NoRoomError
	if err := s.Reserve(ctx, r); err != nil && !errors.Is(err, store.ErrConflict) && !errors.As(err, &full) {
		t.Errorf("reserve: %v", err)
	}
}
