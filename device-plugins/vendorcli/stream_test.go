//go:build unix

package vendorcli

import (
	"context"
	"testing"
	"time"
)

func testStream(t *testing.T, text string) *stream {
	t.Helper()
	s, err := newStream()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.to.Close() })
	if _, err := s.to.WriteString(text); err != nil {
		t.Fatal(err)
	}
	return s
}

// A machine without a processor to spare reads late what a tool printed: nothing of it is lost.
func TestStream_WaitsForALateReader(t *testing.T) {
	t.Parallel()
	s := testStream(t, "all of it")
	closed := make(chan string)
	go func() { closed <- s.close(context.Background(), time.Millisecond) }()
	select {
	case got := <-closed:
		t.Fatalf("it gave up with %q", got)
	case <-time.After(50 * time.Millisecond): // dozens of times the grace
	}
	go s.read(func() {})
	if got := <-closed; got != "all of it" {
		t.Errorf("read %q", got)
	}
}

func TestStream_GivesUpWhatOthersHoldOpen(t *testing.T) {
	t.Parallel()
	s := testStream(t, "all of it")
	go s.read(func() {})
	if got := s.close(context.Background(), time.Millisecond); got != "all of it" {
		t.Errorf("read %q", got)
	}
}

func TestStream_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := testStream(t, "")
	ctx, cancel := context.WithCancel(context.Background())
	go s.read(func() {})
	go func() {
		for { // it fills for ever
			if _, err := s.to.WriteString("more"); err != nil {
				return
			}
		}
	}()
	cancel()
	s.close(ctx, time.Millisecond)
}
