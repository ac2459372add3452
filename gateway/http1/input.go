// Package http1 reads what HTTP/1.1 puts on a connection in plain text: lines, fields, bodies by length and in chunks.
// What two readers could take for two different things is an error. Who asks whom, and for what, does not belong here.
package http1

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"
)

// ErrMalformed wraps what is wrong with a message.
var ErrMalformed = errors.New("malformed HTTP")

// ErrTooLong is the head of a message that is over MaxHead; it is an ErrMalformed too.
var ErrTooLong = fmt.Errorf("%w: its head is over %d bytes", ErrMalformed, MaxHead)

// MaxHead is how long the head of a message may be, in bytes.
const MaxHead = 64 << 10

// Source is where an Input reads from.
type Source interface {
	// ReadTo reads into p or, where that is nil, into the Input's own buffer, which it need not have before there is
	// something to read.
	ReadTo(in *Input, p []byte) (int, error)
}

// Input holds what was read and has not been used. It has a buffer only while it holds something, so that a connection
// on which something is waited for costs none. It is not safe for concurrent use.
type Input struct {
	From  Source
	Total int64 // bytes read since it was set to 0

	buf        []byte
	start, end int
}

// BufSize is the size of an Input's buffer, in bytes, unless a line or a head is longer.
const BufSize = 4 << 10

var buffers = sync.Pool{New: func() any { return new([BufSize]byte) }}

// Take gives the Input a buffer. It is for a Source.
func (in *Input) Take() []byte {
	in.buf = buffers.Get().(*[BufSize]byte)[:] //nolint:forcetypeassert // nothing else is put there
	in.start, in.end = 0, 0
	return in.buf
}

// Drop gives the buffer up with what is in it.
func (in *Input) Drop() {
	if len(in.buf) == BufSize {
		buffers.Put((*[BufSize]byte)(in.buf))
	}
	in.buf, in.start, in.end = nil, 0, 0
}

// Empty reports whether nothing is held.
func (in *Input) Empty() bool { return in.start == in.end }

// Held is what was read and not used, valid until more is read.
func (in *Input) Held() []byte { return in.buf[in.start:in.end] }

// Fill reads more, at least one byte. What was held may move.
func (in *Input) Fill() error {
	switch {
	case in.Empty():
		in.Drop()
	case in.end == len(in.buf) && in.start > 0:
		in.start, in.end = 0, copy(in.buf, in.Held())
	case in.end == len(in.buf):
		more := make([]byte, 2*len(in.buf))
		in.start, in.end = 0, copy(more, in.Held())
		in.buf = more
	}
	var room []byte
	if in.buf != nil {
		room = in.buf[in.end:]
	}
	n, err := in.From.ReadTo(in, room)
	in.end += n
	in.Total += int64(n)
	if n == 0 && err == nil {
		err = io.ErrNoProgress
	}
	if n > 0 {
		return nil // an error comes again
	}
	return err
}

// Read gives what is held, or reads.
func (in *Input) Read(p []byte) (int, error) {
	if in.Empty() {
		if len(p) >= BufSize {
			n, err := in.From.ReadTo(in, p)
			in.Total += int64(n)
			return n, err
		}
		if err := in.Fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, in.Held())
	in.start += n
	return n, nil
}

var (
	blankLine  = []byte("\r\n\r\n")
	errLineEnd = fmt.Errorf("%w: a line that does not end as lines do", ErrMalformed)
)

// bareEnd reports whether a line ends in a single byte, as far as that has not been looked at before.
func bareEnd(held []byte, from int) bool {
	for {
		i := bytes.IndexByte(held[from:], '\n')
		if i < 0 {
			return false
		}
		if from += i + 1; from < 2 || held[from-2] != '\r' {
			return true
		}
	}
}

// UntilBlankLine gives the lines before the next blank one, with their ends. They are valid until more is read.
func (in *Input) UntilBlankLine() ([]byte, error) {
	for from := 0; ; {
		held := in.Held()
		if i := bytes.Index(held[from:], blankLine); i >= 0 {
			in.start += from + i + len(blankLine)
			return held[:from+i+2], nil
		}
		if len(held) >= MaxHead {
			return nil, ErrTooLong
		}
		if bareEnd(held, from) {
			return nil, errLineEnd // or who sends it would be waited for
		}
		from = max(0, len(held)-len(blankLine)+1)
		if err := in.Fill(); err != nil {
			return nil, err
		}
	}
}

// Line gives the next line without its end. It is not ok where the line is not all there and is not to be waited for.
func (in *Input) Line(most int, wait bool) (line []byte, ok bool, err error) {
	for from := 0; ; {
		held := in.Held()
		i := bytes.IndexByte(held[from:], '\n')
		if n := from + i; i >= 0 && n <= most {
			in.start += n + 1
			if n == 0 || bytes.IndexByte(held[:n], '\r') != n-1 {
				return nil, false, errLineEnd
			}
			return held[:n-1], true, nil
		}
		if i >= 0 || len(held) > most {
			return nil, false, fmt.Errorf("%w: a line of over %d bytes between chunks", ErrMalformed, most)
		}
		if !wait {
			return nil, false, nil
		}
		from = len(held)
		if err := in.Fill(); err != nil {
			return nil, false, err
		}
	}
}
