package body

import (
	"io"
	"math/bits"
	"sync"
	"unsafe"
)

// Bodies up to longest are kept in memory that is used again, shortest at least: those of agents are long, and there are
// many.
const (
	shortest = 512
	longest  = 4 << 20
	atOnce   = 1 << 20 // of memory for a length that is only said
)

// kept is memory of so many powers of two of bytes, each by its first byte.
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
	if size := cap(raw); size >= shortest && size <= longest && size&(size-1) == 0 {
		kept[bits.Len(uint(size))].Put(unsafe.SliceData(raw[:size])) // a slice would cost memory to keep
	}
}

func memory(size int) []byte {
	if size > longest {
		return make([]byte, 0, size)
	}
	power := bits.Len(uint(max(size, shortest) - 1))
	if have, ok := kept[power+1].Get().(*byte); ok {
		return unsafe.Slice(have, 1<<power)[:0]
	}
	return make([]byte, 0, 1<<power)
}
