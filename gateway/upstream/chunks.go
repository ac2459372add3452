package upstream

import (
	"fmt"
	"io"
)

// kind is how the end of a body is told. Source: RFC 9112 section 6.3.
type kind int

const (
	empty   kind = iota // there is none
	sized               // by its length
	chunked             // by its last chunk
	toEnd               // by the end of the connection
)

// chunks reads a body out of what comes in.
type chunks struct {
	kind    kind
	left    int64 // of the body, or of the chunk
	state   state // of a chunked one
	trailer int   // bytes of trailers so far
	broken  error // to be told once the data before it was given
}

type state int

const (
	atSize    state = iota
	inData          // left bytes of it to come
	afterData       // before the line's end behind the data
	inTrailer
	ended
)

const (
	maxSizeLine = 1 << 10 // the length of a chunk, and extensions that nobody uses
	maxTrailer  = 2 << 10
	maxChunk    = 1 << 50
)

// read gives some of the body: io.EOF with its last bytes or after them, io.ErrUnexpectedEOF where it is cut short.
func (c *chunks) read(in *input, p []byte) (n int, err error) {
	switch c.kind {
	case empty:
		return 0, io.EOF
	case toEnd:
		return in.read(p)
	case chunked:
		return c.readChunks(in, p)
	}
	if c.left == 0 {
		return 0, io.EOF
	}
	n, err = in.read(p[:min(int64(len(p)), c.left)])
	if c.left -= int64(n); c.left == 0 {
		return n, io.EOF
	}
	return n, cutShort(err)
}

func cutShort(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// readChunks gives what has come of the data of chunks, and waits only for the first bytes.
func (c *chunks) readChunks(in *input, p []byte) (n int, err error) {
	for {
		switch c.state {
		case ended:
			return n, io.EOF
		case inData:
			if n == len(p) || n > 0 && in.empty() {
				return n, nil
			}
			m, err := in.read(p[n:min(int64(len(p)), int64(n)+c.left)])
			n += m
			if c.left -= int64(m); c.left == 0 {
				c.state = afterData
			}
			if err != nil {
				return n, cutShort(err)
			}
		default:
			line, ok, err := in.line(maxSizeLine, n == 0)
			if err == nil && ok {
				err = c.line(line)
			}
			if err != nil || !ok {
				return n, cutShort(err)
			}
		}
	}
}

// next gives what has come without a copy: the data of chunks that came together is moved together.
func (c *chunks) next(in *input) ([]byte, error) {
	switch {
	case c.broken != nil:
		return nil, c.broken
	case c.all():
		return nil, io.EOF
	}
	if c.kind == chunked {
		return c.nextChunks(in)
	}
	if in.empty() {
		if err := in.fill(); err != nil {
			if c.kind == sized {
				err = cutShort(err)
			}
			return nil, err
		}
	}
	data := in.held()
	if c.kind == sized {
		data = data[:min(int64(len(data)), c.left)]
		c.left -= int64(len(data))
	}
	in.start += len(data)
	return data, nil
}

// all reports whether all of the body was given.
func (c *chunks) all() bool {
	return c.kind == empty || c.kind == sized && c.left == 0 || c.state == ended
}

func (c *chunks) nextChunks(in *input) (data []byte, err error) {
	for {
		switch c.state {
		case ended:
			if len(data) > 0 {
				return data, nil
			}
			return nil, io.EOF
		case inData:
			if in.empty() {
				if len(data) > 0 {
					return data, nil
				}
				if err := in.fill(); err != nil {
					return nil, cutShort(err)
				}
			}
			more := in.held()
			more = more[:min(int64(len(more)), c.left)]
			in.start += len(more)
			if c.left -= int64(len(more)); c.left == 0 {
				c.state = afterData
			}
			if data == nil {
				data = more[:len(more):cap(more)]
			} else {
				data = append(data, more...) // into what lies before it in the buffer
			}
		default:
			line, ok, err := in.line(maxSizeLine, len(data) == 0)
			if err == nil && ok {
				err = c.line(line)
			}
			if len(data) > 0 && err != nil {
				c.broken = err
				return data, nil
			}
			if err != nil || !ok {
				return data, cutShort(err)
			}
		}
	}
}

// line reads a line that stands between data.
func (c *chunks) line(line []byte) (err error) {
	switch c.state {
	case afterData:
		if len(line) > 0 {
			return fmt.Errorf("%w: a chunk is longer than it says", ErrMalformed)
		}
		c.state = atSize
	case atSize:
		if c.left, err = chunkSize(line); err != nil {
			return err
		}
		if c.state = inData; c.left == 0 {
			c.state = inTrailer
		}
	case inTrailer:
		if len(line) == 0 {
			c.state = ended
			return nil
		}
		if c.trailer += len(line); c.trailer > maxTrailer {
			return fmt.Errorf("%w: its trailers are over %d bytes", ErrMalformed, maxTrailer)
		}
		_, _, err = parseField(line) // what it says is not passed on
	}
	return err
}

// chunkSize reads the length of a chunk. Extensions are passed over.
func chunkSize(line []byte) (int64, error) {
	var n int64
	digits := 0
	for _, c := range line {
		switch {
		case c >= '0' && c <= '9':
			n = n<<4 | int64(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			n = n<<4 | int64(c|0x20-'a'+10)
		case c == ';' && digits > 0 && plainText(line):
			return n, nil
		default:
			return 0, fmt.Errorf("%w: %q is no length of a chunk", ErrMalformed, line)
		}
		if digits++; n > maxChunk {
			return 0, fmt.Errorf("%w: a chunk of over %d bytes", ErrMalformed, int64(maxChunk))
		}
	}
	if digits == 0 || digits > 16 {
		return 0, fmt.Errorf("%w: %q is no length of a chunk", ErrMalformed, line)
	}
	return n, nil
}
