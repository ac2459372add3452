// Package filelock is a lock on a file, held by one holder of all processes of the machine; the kernel gives it back when
// its process dies. Waiting, and what a lock is for, do not belong here.
package filelock

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Lock is a lock that is held.
type Lock struct{ f *os.File }

// Try takes the lock on the file, which is made when it is not there, with its folder. Nil without an error says that
// another holds it, in this process or in another.
func Try(path string) (*Lock, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make folder for locks: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	taken, err := TryFile(f)
	if err != nil || !taken {
		return nil, errors.Join(err, f.Close())
	}
	return &Lock{f}, nil
}

// Release gives the lock back.
func (l *Lock) Release() error { return l.f.Close() }
