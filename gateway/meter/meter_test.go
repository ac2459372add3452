package meter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/store"
)

type sink struct {
	mu    sync.Mutex
	rows  map[string]int
	fails int
}

func (s *sink) AddUsage(_ context.Context, rows []store.Usage) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails > 0 {
		s.fails--
		return errors.New("store is away")
	}
	for _, r := range rows {
		s.rows[r.ID]++
	}
	return nil
}

func (s *sink) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.rows)
}

func TestMeter_NothingLostWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	s := &sink{rows: map[string]int{}, fails: 3}
	m := New(s, hclog.NewNullLogger(), nil)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- m.Run(ctx) }()
	const n = 1000
	for i := range n {
		m.Record(store.Usage{ID: fmt.Sprint(i)})
	}
	deadline := time.Now().Add(20 * time.Second)
	for s.count() < n/2 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	m.Record(store.Usage{ID: "last"}) // written by the end of Run, not by a tick
	cancel()
	<-done
	if got := s.count(); got != n+1 || m.Held() != 0 {
		t.Errorf("want %d rows written and none held, got %d and %d", n+1, got, m.Held())
	}
	for id, times := range s.rows {
		if times != 1 {
			t.Errorf("row %s was written %d times", id, times)
		}
	}
}
