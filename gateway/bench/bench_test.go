//go:build linux

package main

import (
	"context"
	"math"
	"net"
	"strings"
	"testing"
	"time"
)

// upEngine is an engine that runs in the test.
func upEngine(t *testing.T) *target {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		(&engine{}).serve(ctx, []net.Listener{l})
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return &target{name: "direct", addr: l.Addr().String()}
}

func TestEngine_AnswersWholeAndInEvents(t *testing.T) {
	t.Parallel()
	e := upEngine(t)
	l := closed(e.addr, requests("key", 0), 2, 20*time.Millisecond)
	if err := l.err(); err != nil || l.count == 0 {
		t.Errorf("%d whole answers: %v", l.count, err)
	}
	s, err := openStreams(e.addr, "key", "stream 3 1ms", 2)
	if err != nil {
		t.Fatal(err)
	}
	s.group.Wait()
	if err := s.err(); err != nil || s.count != 6 {
		t.Errorf("%d events, want 6: %v", s.count, err)
	}
	s.close()
}

func TestEngine_KnowsWhenClientsLeave(t *testing.T) {
	t.Parallel()
	b := &bench{results: results{}}
	if err := b.leaving(upEngine(t)); err != nil {
		t.Fatal(err)
	}
	for _, f := range []figure{figStop, figStopWait, figStopOne} {
		if got := median(b.results[f.name]["direct"]); math.IsInf(got, 0) || math.IsNaN(got) {
			t.Errorf("%s: %v", f.name, got)
		}
	}
}

func TestResults_HoldTheProductAgainstItsBars(t *testing.T) {
	t.Parallel()
	r := results{}
	for _, v := range []float64{30e-6, 90e-6, 60e-6} {
		r.add(figChunk, anchor, v)
		r.add(figChunk, productName, 1.2*v)
		r.add(figStreams, productName, 40e6)
	}
	if got := r.verdict(figChunk); !strings.HasSuffix(got, "1.3 × haproxy: held") {
		t.Errorf("an event that costs 1.2 of HAProxy's: %s", got)
	}
	if got := r.verdict(figStreams); !strings.HasSuffix(got, "28 MB: MISSED") {
		t.Errorf("40 MB for a thousand streams: %s", got)
	}
	if got := r.verdict(figPrompt); !strings.HasSuffix(got, "not measured") {
		t.Errorf("what was not measured: %s", got)
	}
	var out strings.Builder
	r.write(&out, []string{productName, anchor})
	if !strings.Contains(out.String(), "72.0 [36.0–108], × 1.20") {
		t.Errorf("table:\n%s", out.String())
	}
}

func TestPicked_NamesWhatThereIs(t *testing.T) {
	t.Parallel()
	if _, err := picked("rate,speed", rowNames()); err == nil || !strings.Contains(err.Error(), "events") {
		t.Errorf("a row that is none: %v", err)
	}
}
