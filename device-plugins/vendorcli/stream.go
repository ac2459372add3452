package vendorcli

import (
	"context"
	"io"
	"os"
	"strings"
	"time"
)

// grace is how long a stream may stay silent, with nothing in it, after its tool has ended: what a tool started and left
// behind may hold it open for ever.
const grace = 200 * time.Millisecond

// A stream reads what a tool prints.
type stream struct {
	from, to *os.File
	kept     capped
	ended    chan struct{} // closed once nothing is read any more
}

func newStream() (*stream, error) {
	s := &stream{ended: make(chan struct{})}
	var err error
	if s.from, s.to, err = os.Pipe(); err != nil {
		return nil, err
	}
	return s, nil
}

// read keeps what comes until everyone has closed the stream, or close has, or it was too much.
func (s *stream) read(tooMuch func()) {
	defer close(s.ended)
	n, _ := io.CopyN(&s.kept, s.from, mostPrinted) //nolint:errcheck // what was read until then counts
	if n == mostPrinted {
		tooMuch()
	}
}

// close waits for the rest of what a tool that has ended printed. On a machine without a processor to spare the rest may
// be read late: only a stream with nothing in it is given up, or one that still fills when ctx is over.
func (s *stream) close(ctx context.Context, grace time.Duration) string {
	defer s.from.Close()
	for {
		select {
		case <-s.ended:
			return s.kept.String()
		case <-time.After(grace):
			if ctx.Err() != nil || !unread(s.from) {
				s.from.Close() // read returns
				<-s.ended
				return s.kept.String()
			}
		}
	}
}

// capped keeps the first maxOutput bytes and drops the rest, so that a tool gone wild cannot fill the memory.
type capped struct{ kept strings.Builder }

func (c *capped) Write(p []byte) (int, error) {
	if room := maxOutput - c.kept.Len(); room > 0 {
		c.kept.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

func (c *capped) String() string { return c.kept.String() }
