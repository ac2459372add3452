package state

import (
	"context"
	"sync"
)

// Event is one event of the stream, in the form in which it is sent.
type Event struct {
	Topic      string
	Type       string
	Key        string
	Namespace  string
	FilterKeys []string
	Index      uint64
	Payload    map[string]any
}

// Batch is the events of one index.
type Batch struct {
	Index  uint64
	Events []Event
}

// Buffer keeps the events of the last changes. A reader that falls behind its capacity misses what was dropped, as
// with Nomad's own stream.
type Buffer struct {
	mu      sync.Mutex
	cap     int
	first   int // position of batches[0] since the start
	batches []Batch
	more    chan struct{}
}

// NewBuffer makes a buffer of that many batches.
func NewBuffer(capacity int) *Buffer { return &Buffer{cap: capacity, more: make(chan struct{})} }

// Append adds the events of one index.
func (b *Buffer) Append(index uint64, events []Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.batches = append(b.batches, Batch{Index: index, Events: events})
	if drop := len(b.batches) - b.cap; drop > 0 {
		b.first += drop
		clear(b.batches[:drop]) // the dropped rows can be freed before the slice is
		b.batches = b.batches[drop:]
	}
	close(b.more)
	b.more = make(chan struct{})
}

// Cursor is one reader's place in the buffer.
type Cursor struct {
	b    *Buffer
	next int
}

// From places a reader: index 0 replays everything still kept, another starts at that index or at the next there is.
func (b *Buffer) From(index uint64) *Cursor {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := &Cursor{b: b, next: b.first}
	for _, batch := range b.batches {
		if batch.Index >= index {
			break
		}
		c.next++
	}
	return c
}

// Next waits for the next batch. It returns the context's error when that ends first.
func (c *Cursor) Next(ctx context.Context) (Batch, error) {
	for {
		c.b.mu.Lock()
		c.next = max(c.next, c.b.first)
		if at := c.next - c.b.first; at < len(c.b.batches) {
			batch := c.b.batches[at]
			c.next++
			c.b.mu.Unlock()
			return batch, nil
		}
		more := c.b.more
		c.b.mu.Unlock()
		select {
		case <-ctx.Done():
			return Batch{}, ctx.Err()
		case <-more:
		}
	}
}
