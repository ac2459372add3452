package docker

import "time"

// progress keeps how far a container's output was written, so that no piece is written twice: not when a connection is
// opened again, and not when the daemon reads a file anew because it was rotated under its reader, which it is known to
// do. Each stream's pieces come in the order of their times; those of the two streams do not. The pieces of one long line
// have one time.
type progress struct {
	last    time.Time // of all streams
	streams map[byte]*place
}

// place is how far one stream was written, and where the reader is.
type place struct {
	written, reading moment
}

// moment is the n-th piece of one time.
type moment struct {
	at time.Time
	n  int
}

// overlap is how much is read again when a connection is opened again, since the streams are not in step.
const overlap = time.Second

// newProgress begins behind what an earlier supervisor wrote; the zero time is the beginning.
func newProgress(since time.Time) *progress {
	p := &progress{last: since, streams: map[byte]*place{}}
	for stream := range byte(3) {
		p.streams[stream] = &place{}
		if !since.IsZero() {
			p.streams[stream].written = moment{since, int(^uint(0) >> 1)}
		}
	}
	return p
}

// since is where to begin to read. A clock that was set back must not make the daemon wait for it.
func (p *progress) since(now time.Time) time.Time {
	if p.last.IsZero() {
		return time.Time{}
	}
	if p.last.After(now) {
		return now.Add(-overlap)
	}
	return p.last.Add(-overlap)
}

// again tells that the daemon begins to read anew.
func (p *progress) again() {
	for _, s := range p.streams {
		s.reading = moment{}
	}
}

// isNew reports whether a piece was not written yet, and takes it for written. A piece without a time always is. One that
// is older than the last is one that is read again; unless the last lies in the future: then the clock was set back.
func (p *progress) isNew(stream byte, at time.Time, now func() time.Time) bool {
	s := p.streams[stream]
	if at.IsZero() || s == nil {
		return true
	}
	if at.Equal(s.reading.at) {
		s.reading.n++
	} else {
		s.reading = moment{at, 1}
	}
	fresh := at.After(s.written.at) || at.Equal(s.written.at) && s.reading.n > s.written.n
	if !fresh && s.written.at.After(now()) && !at.Equal(s.written.at) {
		fresh, p.last = true, time.Time{}
	}
	if fresh {
		s.written = s.reading
		if at.After(p.last) {
			p.last = at
		}
	}
	return fresh
}
