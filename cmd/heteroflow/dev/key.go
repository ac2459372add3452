package dev

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// keepKey writes the first admin key of the database to a file: nothing on this machine needs it, and who wants to
// try keys finds it there. Where there is a file already, it is of the other engine's database.
func (o Options) keepKey(plaintext string) error {
	path := filepath.Join(o.DataDir, "admin.key")
	file, err := create(path)
	if errors.Is(err, os.ErrExist) {
		path = filepath.Join(o.home, "admin.key")
		if err = os.Remove(path); err == nil || errors.Is(err, os.ErrNotExist) { // an older database is gone
			file, err = create(path)
		}
	}
	if err != nil {
		return fmt.Errorf("keep the first admin key: %w", err)
	}
	_, err = fmt.Fprintln(file, plaintext)
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("keep the first admin key: %w", err)
	}
	fmt.Fprintf(o.Stderr, "An admin key is in %s; on this machine nothing needs it.\n", path)
	return nil
}

func create(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
}
