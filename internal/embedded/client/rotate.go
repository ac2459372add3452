package client

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// rotated writes numbered files, name.0, name.1, …, each up to a size, and keeps the newest of them.
type rotated struct {
	dir, name string
	maxFiles  int
	maxBytes  int64
	index     int
	size      int64
	file      *os.File
}

// openRotated goes on with the newest file there is.
func openRotated(dir, name string, maxFiles int, maxBytes int64) (*rotated, error) {
	r := &rotated{dir: dir, name: name, maxFiles: max(maxFiles, 1), maxBytes: max(maxBytes, 1)}
	indexes, err := logIndexes(dir, name)
	if err != nil {
		return nil, err
	}
	if len(indexes) > 0 {
		r.index = indexes[len(indexes)-1]
	}
	return r, r.open()
}

func (r *rotated) path(index int) string {
	return filepath.Join(r.dir, r.name+"."+strconv.Itoa(index))
}

func (r *rotated) open() error {
	f, err := os.OpenFile(r.path(r.index), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open log file: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("open log file: %w", err)
	}
	r.file, r.size = f, info.Size()
	return nil
}

// Write splits at the size limit, so that no file grows above it.
func (r *rotated) Write(p []byte) (int, error) {
	written := 0
	for len(p) > 0 {
		if r.size >= r.maxBytes {
			if err := r.next(); err != nil {
				return written, err
			}
		}
		n, err := r.file.Write(p[:min(int64(len(p)), r.maxBytes-r.size)])
		written += n
		r.size += int64(n)
		p = p[n:]
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

func (r *rotated) next() error {
	if err := r.file.Close(); err != nil {
		return err
	}
	r.index++
	if err := r.open(); err != nil {
		return err
	}
	indexes, err := logIndexes(r.dir, r.name)
	if err != nil {
		return err
	}
	for _, i := range indexes {
		if i <= r.index-r.maxFiles {
			if err := removeFile(r.path(i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// Close closes the file that is written to.
func (r *rotated) Close() error { return r.file.Close() }

// logIndexes lists the numbers of the files name.N, in order.
func logIndexes(dir, name string) ([]int, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list log files: %w", err)
	}
	var out []int
	for _, e := range entries {
		if rest, ok := strings.CutPrefix(e.Name(), name+"."); ok {
			if i, err := strconv.Atoi(rest); err == nil && i >= 0 {
				out = append(out, i)
			}
		}
	}
	slices.Sort(out)
	return out, nil
}
