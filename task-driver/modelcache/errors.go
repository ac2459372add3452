package modelcache

import (
	"errors"
	"fmt"
)

// passing is an error that may pass by itself, so that the task's restart policy decides.
type passing struct{ err error }

func (e *passing) Error() string   { return e.err.Error() }
func (e *passing) Unwrap() error   { return e.err }
func (e *passing) Temporary() bool { return true }

// stubborn is an error that asking again does not mend.
type stubborn struct{ err error }

func (e *stubborn) Error() string { return e.err.Error() }
func (e *stubborn) Unwrap() error { return e.err }

func stubbornf(format string, args ...any) error { return &stubborn{fmt.Errorf(format, args...)} }

func isStubborn(err error) bool {
	var s *stubborn
	return errors.As(err, &s)
}

// errNotThere is said by a source that does not have the file.
var errNotThere = errors.New("it is not there")

// mismatch is content that is not what the checksum says.
type mismatch struct {
	name, want, got string
	resumed         bool // a part of it was there before
}

func (e *mismatch) Error() string {
	return fmt.Sprintf("%s has the checksum sha256:%s, wanted is sha256:%s: mend source or checksum", e.name, e.got, e.want)
}
