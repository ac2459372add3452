//go:build !linux

package nvidia

// A tail reads nothing: only Linux shows its kernel's log as a file.
type tail struct{}

func (*tail) open(string) bool { return false }

func (*tail) next() ([]byte, bool) { return nil, false }
