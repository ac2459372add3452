package store

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxNameBytes keeps an index entry of a few names below PostgreSQL's limit of 2,704 bytes.
const maxNameBytes = 512

// storable reports whether both engines can keep the texts: valid UTF-8 without the NUL character. PostgreSQL takes
// nothing else, SQLite would. What cannot be kept cannot be found either.
func storable(texts ...string) bool {
	for _, t := range texts {
		if !utf8.ValidString(t) || strings.IndexByte(t, 0) >= 0 {
			return false
		}
	}
	return true
}

// checkNames refuses texts that cannot be kept or, being indexed, are too long.
func checkNames(names ...string) error {
	for _, n := range names {
		if !storable(n) {
			return fmt.Errorf("a name with a NUL character or broken UTF-8 is %w: %q", ErrInvalid, shorten(n))
		}
		if len(n) > maxNameBytes {
			return fmt.Errorf("a name of %d bytes, with at most %d allowed, is %w: %q", len(n), maxNameBytes, ErrInvalid, shorten(n))
		}
	}
	return nil
}

func shorten(n string) string {
	const most = 40
	if len(n) <= most {
		return n
	}
	return n[:most] + "…"
}

// clean makes any text storable. It is for texts that only people read, where keeping most of it beats losing it.
func clean(t string) string {
	if storable(t) {
		return t
	}
	return strings.ReplaceAll(strings.ToValidUTF8(t, "\uFFFD"), "\x00", "\uFFFD")
}
