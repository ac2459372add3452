package hostfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Writable tells whether this process may write in a folder, or make it where it is not there yet. It is nil when it may,
// and changes nothing. Where the system does not say beforehand, as on Windows, only what is no folder is told.
func Writable(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	for {
		info, err := os.Stat(dir)
		switch {
		case err == nil && !info.IsDir():
			return &fs.PathError{Op: "write in", Path: dir, Err: syscall.ENOTDIR}
		case err == nil:
			return mayUse(dir)
		case !errors.Is(err, fs.ErrNotExist) || filepath.Dir(dir) == dir:
			return err
		}
		dir = filepath.Dir(dir)
	}
}
