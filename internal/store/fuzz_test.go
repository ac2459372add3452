package store

import (
	"errors"
	"strings"
	"testing"
)

// FuzzCursor: a cursor that a client made up is refused or read, and what is read can be stored and found again.
func FuzzCursor(f *testing.F) {
	f.Add(cursor(1, "id"))
	f.Add("bm8")
	f.Add("eyJhIjoxLCJrIjpbImEiXX0")
	f.Fuzz(func(t *testing.T, c string) {
		at, id, _, err := Page{Cursor: c}.after()
		switch {
		case errors.Is(err, ErrBadCursor):
		case err != nil:
			t.Errorf("%q: %v", c, err)
		case !storable(id):
			t.Errorf("%q holds %q", c, id)
		case c != "":
			again, sameID, _, err := Page{Cursor: cursor(at, id)}.after()
			if err != nil || again != at || sameID != id {
				t.Errorf("%q: %d %q became %d %q, %v", c, at, id, again, sameID, err)
			}
		}
	})
}

// FuzzParseURL: whatever stands around a password, no error repeats it.
func FuzzParseURL(f *testing.F) {
	f.Add("postgres://u:", "@h:5432/db")
	f.Add("postgresql://", "@h:port/db?sslmode=maybe")
	f.Add("postgres://u:%zz", "@h")
	f.Add("postgres://h/db?password=", "&sslmode=%")
	f.Fuzz(func(t *testing.T, before, after string) {
		const secret = "s3cr3tPassw0rd"
		raw := before + secret + after
		found := secretsOf(raw)
		known := false
		for _, s := range found {
			known = known || s == secret
		}
		_, err := parseURL(raw)
		if err != nil && known && strings.HasPrefix(raw, "postgres") && strings.Contains(err.Error(), secret) {
			t.Errorf("the password of %q is in %q", raw, err)
		}
	})
}
