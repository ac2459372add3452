//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"
)

// bench is everything that is needed to measure one target.
type bench struct {
	key     string
	dir     string // of its files
	engine  *process
	results results
	// sent are the requests that the product must have a row of usage for.
	sent int
	// problems are what went wrong, in words.
	problems []string
}

// row measures some figures of one target that is up.
type row struct {
	name  string
	fresh bool // wants a target that has done nothing before
	once  bool // not in every round
	run   func(*bench, *target) error
}

var rows = []row{
	{name: "requests", run: (*bench).requests},
	{name: "rate", run: (*bench).rate},
	{name: "events", run: (*bench).events},
	{name: "prompt", run: (*bench).prompt},
	{name: "memory", fresh: true, run: (*bench).memory},
	{name: "many", fresh: true, once: true, run: (*bench).many},
	{name: "leaving", once: true, run: (*bench).leaving},
}

func (b *bench) did(t *target, f figure, v float64) { b.results.add(f, t.name, v) }

// count adds requests that the target was sent.
func (b *bench) count(t *target, n int) {
	if t.name == productName || t.name == standardName {
		b.sent += n
	}
}

// requests are as many as the target takes, from connections that each wait for their answer.
func (b *bench) requests(t *target) error {
	list := requests(b.key, 0)
	warm := closed(t.addr, list, 64, 200*time.Millisecond)
	b.count(t, warm.count)
	before := t.settledCPU()
	began := time.Now()
	l := closed(t.addr, list, 64, 1500*time.Millisecond)
	wall := time.Since(began)
	b.count(t, l.count)
	used := t.settledCPU() - before
	if err := l.err(); err != nil || l.count == 0 {
		return fmt.Errorf("%d requests: %w", l.count, err)
	}
	each := used.Seconds() / float64(l.count)
	if t.process != nil {
		b.did(t, figCPU, each)
		b.did(t, figRequests, 1/each)
	}
	b.did(t, figWall, float64(l.count)/wall.Seconds())
	return nil
}

// rate is a steady rate of requests.
func (b *bench) rate(t *target) error {
	before := t.settledCPU()
	l := open(t.addr, requests(b.key, 0), 50, 1000, 1500*time.Millisecond)
	b.count(t, l.count)
	used := t.settledCPU() - before
	if err := l.err(); err != nil || l.count == 0 {
		return fmt.Errorf("%d requests: %w", l.count, err)
	}
	if t.process != nil {
		b.did(t, figRateCPU, used.Seconds()/float64(l.count))
	}
	b.did(t, figP50, l.took.at(0.5).Seconds())
	b.did(t, figP99, l.took.at(0.99).Seconds())
	return nil
}

// events are those of 200 streams, 50 a second each.
func (b *bench) events(t *target) error {
	const n, each = 200, 150
	s, err := openStreams(t.addr, b.key, fmt.Sprintf("stream %d 20ms", each), n)
	if err != nil {
		return err
	}
	b.count(t, n)
	defer s.close()
	s.begun.Wait()
	before := t.cpuNow()
	seen := s.seen.Load()
	time.Sleep(2 * time.Second)
	used, count := t.cpuNow()-before, s.seen.Load()-seen
	s.group.Wait()
	if err := s.err(); err != nil || s.count != n*each {
		return fmt.Errorf("%d of %d events: %w", s.count, n*each, err)
	}
	if t.process != nil {
		b.did(t, figChunk, used.Seconds()/float64(count))
	}
	b.did(t, figDelay50, s.took.at(0.5).Seconds())
	b.did(t, figDelay99, s.took.at(0.99).Seconds())
	return nil
}

// prompt is a long one, as agents send it.
func (b *bench) prompt(t *target) error {
	before := t.settledCPU()
	l := open(t.addr, requests(b.key, 400<<10), 8, 100, 1500*time.Millisecond)
	b.count(t, l.count)
	used := t.settledCPU() - before
	if err := l.err(); err != nil || l.count == 0 {
		return fmt.Errorf("%d requests: %w", l.count, err)
	}
	if t.process != nil {
		b.did(t, figPrompt, used.Seconds()/float64(l.count))
	}
	return nil
}

// memory is what open streams take.
func (b *bench) memory(t *target) error {
	if t.process == nil {
		return nil
	}
	idle := t.resident()
	s, err := openStreams(t.addr, b.key, "stream 1000 1s", 1000)
	if err != nil {
		return err
	}
	defer s.close()
	b.count(t, 1000)
	s.begun.Wait()
	time.Sleep(time.Second)
	b.did(t, figIdle, float64(idle))
	b.did(t, figStreams, float64(t.resident()-idle))
	return nil
}

// many are as many streams as files may be open.
func (b *bench) many(t *target) error {
	if t.process == nil {
		return nil
	}
	n := mostStreams()
	s, err := openStreams(t.addr, b.key, "stream 1000 5s", n)
	if err != nil {
		return err
	}
	defer s.close()
	b.count(t, n)
	s.begun.Wait()
	time.Sleep(time.Second)
	if err := s.err(); err != nil {
		return err
	}
	b.did(t, figMany, float64(t.resident()))
	b.did(t, figOpen, float64(n))
	return nil
}

// leaving is how long an engine works on for a client that is gone.
func (b *bench) leaving(t *target) error {
	for _, phase := range []struct {
		figure figure
		mock   string
		stream bool
	}{
		{figStop, "stream 5 20ms think", true},
		{figStopWait, "think", true},
		{figStopOne, "think", false},
	} {
		took, err := b.leave(t, phase.mock, phase.stream)
		if err != nil {
			return err
		}
		b.did(t, phase.figure, took)
	}
	return nil
}

// leave has 20 clients leave together, and gives the time until the engine knows of the last one.
func (b *bench) leave(t *target, mock string, stream bool) (seconds float64, err error) {
	const n = 20
	before, err := b.waiting(t)
	if err != nil {
		return 0, err
	}
	var clients []*client
	for i := range n {
		c, err := dial(t.addr)
		if err != nil {
			return 0, err
		}
		defer c.conn.Close()
		if _, err := c.conn.Write(request(b.key, mock, conversation(i, 0, stream))); err != nil {
			return 0, err
		}
		clients = append(clients, c)
	}
	b.count(t, n)
	if _, err := b.until(t, func(w waiting) bool { return w.now-before.now >= n }); err != nil {
		return 0, err
	}
	gone := time.Now().UnixNano()
	for _, c := range clients {
		c.conn.Close()
	}
	after, err := b.until(t, func(w waiting) bool { return w.left-before.left >= n })
	if errors.Is(err, errLong) {
		return math.Inf(1), nil
	}
	return time.Duration(after.leftAt - gone).Seconds(), err
}

// waiting is what the engine knows of clients that wait.
type waiting struct{ left, leftAt, now int64 }

var errLong = errors.New("it did not come to pass within two seconds")

// until asks the engine until something holds.
func (b *bench) until(t *target, holds func(waiting) bool) (waiting, error) {
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		w, err := b.waiting(t)
		if err != nil || holds(w) {
			return w, err
		}
		if time.Since(began) > 2*time.Second {
			return w, errLong
		}
	}
}

func (b *bench) waiting(t *target) (w waiting, err error) {
	c, err := dial(t.addr)
	if err != nil {
		return w, err
	}
	defer c.conn.Close()
	b.count(t, 1)
	text, err := c.get(request(b.key, "left", conversation(0, 0, false)), []byte{})
	if err == nil {
		_, err = fmt.Sscan(string(text), &w.left, &w.leftAt, &w.now)
	}
	return w, err
}

// metered holds the product's rows of usage against what it was sent.
func (b *bench) metered(ctx context.Context, p *product) bool {
	var rows int64
	for range 50 {
		var err error
		if rows, err = p.metered(ctx); err != nil {
			b.problems = append(b.problems, "usage not read: "+err.Error())
			return false
		}
		if rows == int64(b.sent) {
			return true
		}
		time.Sleep(100 * time.Millisecond)
	}
	b.problems = append(b.problems, fmt.Sprintf("%d rows of usage for %d requests", rows, b.sent))
	return false
}
