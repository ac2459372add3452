package body

import (
	"math/rand/v2"
	"testing"
)

// TestPlain_AnywhereInAText finds the same as looking at one byte after the other.
func TestPlain_AnywhereInAText(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a fixed one
	for range 50_000 {
		text := make([]byte, r.IntN(100))
		for n := range text {
			if text[n] = 'a'; r.IntN(40) == 0 {
				text[n] = byte(r.IntN(256))
			}
		}
		want, isBeyond := 0, false
		for ; want < len(text) && text[want] != '"' && text[want] != '\\' && text[want] >= ' '; want++ {
			isBeyond = isBeyond || text[want] >= 0x80
		}
		if at, beyond := plain(text, 0); at != want || isBeyond && !beyond {
			t.Fatalf("%q: %d, beyond ASCII: %t, want %d, %t", text, at, beyond, want, isBeyond)
		}
	}
}
