//go:build unix

package hostfs

import (
	"io/fs"

	"golang.org/x/sys/unix"
)

// mayUse tells whether this process may read and write a file, without opening it: a card wakes up when its node is opened.
func mayUse(path string) error {
	if err := unix.Access(path, unix.R_OK|unix.W_OK); err != nil {
		return &fs.PathError{Op: "access", Path: path, Err: err}
	}
	return nil
}
