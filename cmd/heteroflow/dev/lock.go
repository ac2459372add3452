package dev

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// lock keeps a second process out of a data folder. The kernel lets go of it when this one ends, however that is.
type lock struct{ file *os.File }

func acquire(path string) (*lock, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the data folder: %w", err)
	}
	if err := tryLock(file); err != nil {
		holder := make([]byte, 20)
		n, _ := file.Read(holder) // only for the message; an empty one says less
		return nil, errors.Join(fmt.Errorf("the data folder is in use by process %s: stop it, or write -data-dir with another folder", strings.TrimSpace(string(holder[:n]))), file.Close())
	}
	if err := file.Truncate(0); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	if _, err := file.WriteAt([]byte(strconv.Itoa(os.Getpid())), 0); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &lock{file}, nil
}

func (l *lock) release() error { return l.file.Close() }
