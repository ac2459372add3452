package body

import (
	"io"
	"math/bits"
	"sync"
)

// Bodies from shortest to longest are kept in memory that is used again: those of agents are long, and there are many.
const (
	shortest = 32 << 10
	longest  = 4 << 20
	atOnce   = 1 << 20 // of memory for a length that is only said
)

// kept is memory of so many powers of two of bytes.
var kept [32]sync.Pool

// Take reads a whole body of at most limit bytes, ErrTooLarge where it is longer. Length is what was said of it, below
// 0 where nothing was. Free gives it back.
func Take(r io.Reader, length, limit int64) ([]byte, error) {
	if length > limit {
		return nil, ErrTooLarge
	}
	if length < 0 || length > atOnce {
		length = atOnce
	}
	raw := memory(int(length) + 1)
	for {
		if len(raw) == cap(raw) {
			more := append(memory(2*cap(raw)), raw...)
			Free(raw)
			raw = more
		}
		n, err := r.Read(raw[len(raw):cap(raw)])
		raw = raw[:len(raw)+n]
		switch {
		case int64(len(raw)) > limit:
			err = ErrTooLarge
		case err == io.EOF:
			return raw, nil
		}
		if err != nil {
			Free(raw)
			return nil, err
		}
	}
}

// Free gives memory of Take back. Nothing may read it any more.
func Free(raw []byte) {
	if cap(raw) >= shortest && cap(raw) <= longest && cap(raw)&(cap(raw)-1) == 0 {
		again := raw[:0]
		kept[bits.Len(uint(cap(raw)))].Put(&again)
	}
}

func memory(size int) []byte {
	if size < shortest || size > longest {
		return make([]byte, 0, size)
	}
	power := bits.Len(uint(size - 1))
	if have, ok := kept[power+1].Get().(*[]byte); ok {
		return *have
	}
	return make([]byte, 0, 1<<power)
}
