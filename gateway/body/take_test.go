package body

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestTake_ReadsBodiesOfEachLength(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("0123456789abcdef", 1<<18) // 4 MiB
	for _, n := range []int{0, 1, 500, shortest - 1, shortest, 400 << 10, atOnce, atOnce + 1, len(text)} {
		for name, said := range map[string]int64{"said": int64(n), "not said": -1, "said wrongly": 1} {
			for range 2 { // the second time in memory of the first
				raw, err := Take(iotest.HalfReader(strings.NewReader(text[:n])), said, 5<<20)
				if err != nil || string(raw) != text[:n] {
					t.Errorf("%d bytes, %s: %d, %v", n, name, len(raw), err)
				}
				Free(raw)
			}
		}
	}
}

func TestTake_EndsAtTheLimit(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		from io.Reader
		said int64
		want error
	}{
		"said":     {strings.NewReader(""), 101, ErrTooLarge},
		"not said": {bytes.NewReader(make([]byte, 101)), -1, ErrTooLarge},
		"broken":   {iotest.ErrReader(broken), 50, broken},
		"at it":    {bytes.NewReader(make([]byte, 100)), -1, nil},
	} {
		if _, err := Take(c.from, c.said, 100); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}
