package upstream

import (
	"bytes"
	"fmt"
	"io"
	"sync"
)

// source is where an input reads from.
type source interface {
	// read reads into p or, where that is nil, into the input's own buffer, which it need not have before there is
	// something to read.
	read(in *input, p []byte) (int, error)
}

// input holds what was read and has not been used. It has a buffer only while it holds something, so that a stream
// that is waited for costs none.
type input struct {
	from       source
	buf        []byte
	start, end int
	total      int64 // bytes read since it was set to 0
}

const bufSize = 4 << 10

var buffers = sync.Pool{New: func() any { return new([bufSize]byte) }}

// take gives the input a buffer.
func (in *input) take() []byte {
	in.buf = buffers.Get().(*[bufSize]byte)[:] //nolint:forcetypeassert // nothing else is put there
	in.start, in.end = 0, 0
	return in.buf
}

// drop gives the buffer up with what is in it.
func (in *input) drop() {
	if len(in.buf) == bufSize {
		buffers.Put((*[bufSize]byte)(in.buf))
	}
	in.buf, in.start, in.end = nil, 0, 0
}

func (in *input) empty() bool { return in.start == in.end }

func (in *input) held() []byte { return in.buf[in.start:in.end] }

// fill reads more, at least one byte. What was held may move.
func (in *input) fill() error {
	switch {
	case in.empty():
		in.drop()
	case in.end == len(in.buf) && in.start > 0:
		in.start, in.end = 0, copy(in.buf, in.held())
	case in.end == len(in.buf):
		more := make([]byte, 2*len(in.buf))
		in.start, in.end = 0, copy(more, in.held())
		in.buf = more
	}
	var room []byte
	if in.buf != nil {
		room = in.buf[in.end:]
	}
	n, err := in.from.read(in, room)
	in.end += n
	in.total += int64(n)
	if n == 0 && err == nil {
		err = io.ErrNoProgress
	}
	if n > 0 {
		return nil // an error comes again
	}
	return err
}

// read gives what is held, or reads.
func (in *input) read(p []byte) (int, error) {
	if in.empty() {
		if len(p) >= bufSize {
			n, err := in.from.read(in, p)
			in.total += int64(n)
			return n, err
		}
		if err := in.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, in.held())
	in.start += n
	return n, nil
}

var blankLine = []byte("\r\n\r\n")

// untilBlankLine gives the lines before the next blank one, with their ends. They are valid until more is read.
func (in *input) untilBlankLine() ([]byte, error) {
	for from := 0; ; {
		held := in.held()
		if i := bytes.Index(held[from:], blankLine); i >= 0 {
			in.start += from + i + len(blankLine)
			return held[:from+i+2], nil
		}
		if len(held) >= maxHead {
			return nil, fmt.Errorf("%w: its head is over %d bytes", ErrMalformed, maxHead)
		}
		from = max(0, len(held)-len(blankLine)+1)
		if err := in.fill(); err != nil {
			return nil, err
		}
	}
}

// line gives the next line without its end. It is not ok where the line is not all there and is not to be waited for.
func (in *input) line(most int, wait bool) (line []byte, ok bool, err error) {
	for from := 0; ; {
		held := in.held()
		i := bytes.IndexByte(held[from:], '\n')
		if n := from + i; i >= 0 && n <= most {
			in.start += n + 1
			if n == 0 || bytes.IndexByte(held[:n], '\r') != n-1 {
				return nil, false, fmt.Errorf("%w: a line that does not end as lines do", ErrMalformed)
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
		if err := in.fill(); err != nil {
			return nil, false, err
		}
	}
}
