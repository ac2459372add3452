package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/clock"
)

// Logs implements Backend. The numbered files of a task's log are read as one; following goes on through rotations and
// restarts, and ends with the allocation.
func (c *Client) Logs(ctx context.Context, r LogRequest, send func(*api.StreamFrame) error) error {
	if r.Type != "stdout" && r.Type != "stderr" {
		return fmt.Errorf("log type %q is unknown: ask for stdout or stderr", r.Type)
	}
	root, ar, err := c.openRoot(r.AllocID)
	if err != nil {
		return err
	}
	defer root.Close()
	t := ar.task(r.Task)
	if t == nil {
		return &unknownTaskError{task: r.Task, alloc: r.AllocID}
	}
	if t.logs == nil {
		return fmt.Errorf("log of task %s is disabled by its job: %w", r.Task, ErrNotSupported)
	}
	l := &logReader{root: root, dir: ar.dir.logs(), name: r.Task + "." + r.Type, send: send}
	if err := l.seek(r.Origin, r.Offset); err != nil {
		return err
	}
	for {
		// Asked before the read: what was written before the end is read after it.
		ended := t.done.is()
		if err := l.read(); err != nil {
			return err
		}
		if !r.Follow || ended {
			return nil
		}
		if !clock.Sleep(ctx, clock.System(), followEvery) {
			return ctx.Err()
		}
	}
}

// logReader stands at a place in a rotated log.
type logReader struct {
	root   *os.Root
	dir    string
	name   string
	index  int
	offset int64
	send   func(*api.StreamFrame) error
}

func (l *logReader) file(index int) string {
	return filepath.Join("alloc", "logs", l.name+"."+strconv.Itoa(index))
}

// seek finds the file and the place in it. A log without files yet starts at its first.
func (l *logReader) seek(origin string, offset int64) error {
	indexes, err := logIndexes(l.dir, l.name)
	if err != nil || len(indexes) == 0 {
		return err
	}
	sizes := make([]int64, len(indexes))
	var total int64
	for n, i := range indexes {
		info, err := l.root.Stat(l.file(i))
		if err != nil {
			return fmt.Errorf("read log: %w", err)
		}
		sizes[n] = info.Size()
		total += sizes[n]
	}
	start := offset
	if origin == "end" {
		start = total - offset
	}
	start = min(max(start, 0), total)
	for n, i := range indexes {
		l.index, l.offset = i, start
		if start <= sizes[n] && (start < sizes[n] || n == len(indexes)-1) {
			return nil
		}
		start -= sizes[n]
	}
	return nil
}

// read sends everything up to the present end.
func (l *logReader) read() error {
	for {
		newest, err := l.newest()
		if err != nil {
			return err
		}
		if err := l.readFile(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if l.index >= newest {
			return nil
		}
		l.index, l.offset = l.next(newest), 0
	}
}

func (l *logReader) newest() (int, error) {
	indexes, err := logIndexes(l.dir, l.name)
	if err != nil || len(indexes) == 0 {
		return l.index, err
	}
	return indexes[len(indexes)-1], nil
}

// next skips files that rotation has removed meanwhile.
func (l *logReader) next(newest int) int {
	for i := l.index + 1; i < newest; i++ {
		if _, err := l.root.Stat(l.file(i)); err == nil {
			return i
		}
	}
	return newest
}

func (l *logReader) readFile() error {
	f, _, err := openRegular(l.root, l.file(l.index))
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Seek(l.offset, io.SeekStart); err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	_, err = sendFile(f, l.file(l.index), &l.offset, 0, l.send)
	return err
}
