package http1

import (
	"fmt"
	"io"
)

// Kind is how the end of a body is told. Source: RFC 9112 section 6.3.
type Kind int

// The ways.
const (
	None    Kind = iota // there is none
	Sized               // by its length
	Chunked             // by its last chunk
	ToEnd               // by the end of the connection
)

// Body reads a body out of what comes in. The zero value is none.
type Body struct {
	Kind Kind
	Left int64 // bytes to come: of the body where it is Sized, of the chunk where it is Chunked

	state   state
	trailer int   // bytes of trailers so far
	excess  int64 // bytes that are no data, beyond what is usual
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
	maxExcess   = 16 << 10 // source: net/http/internal's reader of chunks, which refuses the same
)

// Read gives some of the body: io.EOF with its last bytes or after them, io.ErrUnexpectedEOF where it is cut short.
func (b *Body) Read(in *Input, p []byte) (n int, err error) {
	switch b.Kind {
	case None:
		return 0, io.EOF
	case ToEnd:
		return in.Read(p)
	case Chunked:
		return b.readChunks(in, p)
	}
	if b.Left == 0 {
		return 0, io.EOF
	}
	n, err = in.Read(p[:min(int64(len(p)), b.Left)])
	if b.Left -= int64(n); b.Left == 0 {
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
func (b *Body) readChunks(in *Input, p []byte) (n int, err error) {
	for {
		switch b.state {
		case ended:
			return n, io.EOF
		case inData:
			if n == len(p) || n > 0 && in.Empty() {
				return n, nil
			}
			m, err := in.Read(p[n:min(int64(len(p)), int64(n)+b.Left)])
			n += m
			if b.Left -= int64(m); b.Left == 0 {
				b.state = afterData
			}
			if err != nil {
				return n, cutShort(err)
			}
		default:
			line, ok, err := in.Line(maxSizeLine, n == 0)
			if err == nil && ok {
				err = b.line(line)
			}
			if err != nil || !ok {
				return n, cutShort(err)
			}
		}
	}
}

// Next gives what has come without a copy: the data of chunks that came together is moved together.
func (b *Body) Next(in *Input) ([]byte, error) {
	switch {
	case b.broken != nil:
		return nil, b.broken
	case b.All():
		return nil, io.EOF
	}
	if b.Kind == Chunked {
		return b.nextChunks(in)
	}
	if in.Empty() {
		if err := in.Fill(); err != nil {
			if b.Kind == Sized {
				err = cutShort(err)
			}
			return nil, err
		}
	}
	data := in.Held()
	if b.Kind == Sized {
		data = data[:min(int64(len(data)), b.Left)]
		b.Left -= int64(len(data))
	}
	in.start += len(data)
	return data, nil
}

// All reports whether all of the body was given.
func (b *Body) All() bool {
	return b.Kind == None || b.Kind == Sized && b.Left == 0 || b.state == ended
}

func (b *Body) nextChunks(in *Input) (data []byte, err error) {
	for {
		switch b.state {
		case ended:
			if len(data) > 0 {
				return data, nil
			}
			return nil, io.EOF
		case inData:
			if in.Empty() {
				if len(data) > 0 {
					return data, nil
				}
				if err := in.Fill(); err != nil {
					return nil, cutShort(err)
				}
			}
			more := in.Held()
			more = more[:min(int64(len(more)), b.Left)]
			in.start += len(more)
			if b.Left -= int64(len(more)); b.Left == 0 {
				b.state = afterData
			}
			if data == nil {
				data = more[:len(more):cap(more)]
			} else {
				data = append(data, more...) // into what lies before it in the buffer
			}
		default:
			line, ok, err := in.Line(maxSizeLine, len(data) == 0)
			if err == nil && ok {
				err = b.line(line)
			}
			if len(data) > 0 && err != nil {
				b.broken = err
				return data, nil
			}
			if err != nil || !ok {
				return data, cutShort(err)
			}
		}
	}
}

// line reads a line that stands between data.
func (b *Body) line(line []byte) (err error) {
	switch b.state {
	case afterData:
		if len(line) > 0 {
			return fmt.Errorf("%w: a chunk is longer than it says", ErrMalformed)
		}
		b.state = atSize
	case atSize:
		if b.Left, err = chunkSize(line); err != nil {
			return err
		}
		// Sixteen bytes for each chunk and twice its data may be something else.
		if b.excess = max(0, b.excess+int64(len(line))+2-16-2*b.Left); b.excess > maxExcess {
			return fmt.Errorf("%w: its chunks are mostly something else than data", ErrMalformed)
		}
		if b.state = inData; b.Left == 0 {
			b.state = inTrailer
		}
	case inTrailer:
		if len(line) == 0 {
			b.state = ended
			return nil
		}
		if b.trailer += len(line); b.trailer > maxTrailer {
			return fmt.Errorf("%w: its trailers are over %d bytes", ErrMalformed, maxTrailer)
		}
		_, _, err = ParseField(string(line)) // what it says is not passed on
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
		case c == ';' && digits > 0 && PlainText(line):
			return n, nil
		default:
			return 0, fmt.Errorf("%w: %q is no length of a chunk", ErrMalformed, line)
		}
		if digits++; n > maxChunk || digits > 16 {
			return 0, fmt.Errorf("%w: a chunk of over %d bytes", ErrMalformed, int64(maxChunk))
		}
	}
	if digits == 0 {
		return 0, fmt.Errorf("%w: %q is no length of a chunk", ErrMalformed, line)
	}
	return n, nil
}
