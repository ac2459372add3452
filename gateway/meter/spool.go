package meter

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/heteroflow/heteroflow/internal/store"
)

// Spool keeps rows on disk while the store is away. Each Put makes one file, which is there as a whole or not at all.
// Several gateways may share a folder, also with what one of them left behind: a row that is replayed twice counts once.
type Spool struct {
	dir string
	max int64 // bytes
	seq atomic.Int64
	id  string
}

const (
	spoolPrefix = "usage-1-" // with the version of the format
	spoolSuffix = ".jsonl"
	// DefaultSpool is how much a spool keeps, in bytes: some three million rows.
	DefaultSpool = 1 << 30
)

var errSpoolFull = errors.New("the spool is full")

// OpenSpool makes the folder where it is not there. max is in bytes; 0 is DefaultSpool.
func OpenSpool(dir string, max int64) (*Spool, error) {
	if max == 0 {
		max = DefaultSpool
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open spool: %w", err)
	}
	s := &Spool{dir: dir, max: max, id: store.NewID()} // ids grow with time, and so do the names of files
	if err := s.put("trial", nil); err != nil {
		return nil, fmt.Errorf("open spool: %w", err)
	}
	if err := os.Remove(filepath.Join(dir, "trial")); err != nil {
		return nil, fmt.Errorf("open spool: %w", err)
	}
	return s, nil
}

// files are what there is to replay, oldest first, with the size of all.
func (s *Spool) files() (names []string, size int64, err error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, 0, fmt.Errorf("list spool: %w", err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), spoolPrefix) {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // replayed by another gateway just now
		}
		if err != nil {
			return nil, 0, fmt.Errorf("list spool: %w", err)
		}
		size += info.Size()
		if strings.HasSuffix(e.Name(), spoolSuffix) {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, size, nil
}

// Put keeps rows; when it returns without an error they outlive a loss of power.
func (s *Spool) Put(rows []store.Usage) error {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	for _, r := range rows {
		if err := encoder.Encode(r); err != nil {
			return fmt.Errorf("encode usage: %w", err)
		}
	}
	_, size, err := s.files()
	if err != nil {
		return err
	}
	if size+int64(out.Len()) > s.max {
		return fmt.Errorf("%w: %d of %d bytes are used", errSpoolFull, size, s.max)
	}
	return s.put(fmt.Sprintf("%s%s-%012d%s", spoolPrefix, s.id, s.seq.Add(1), spoolSuffix), out.Bytes())
}

func (s *Spool) put(name string, content []byte) error {
	path := filepath.Join(s.dir, name)
	f, err := os.OpenFile(path+".tmp", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(path+".tmp"))
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return err
	}
	return syncDir(s.dir)
}

// Replay gives the oldest file to the sink and deletes it. It reports whether there was one.
func (s *Spool) Replay(ctx context.Context, sink Sink) (rows int, err error) {
	names, _, err := s.files()
	if err != nil || len(names) == 0 {
		return 0, err
	}
	path := filepath.Join(s.dir, names[0])
	batch, err := readSpool(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // replayed by another gateway just now
	}
	if err != nil {
		return 0, errors.Join(fmt.Errorf("set aside as .bad: %w", err), os.Rename(path, path+".bad"))
	}
	if err := sink.AddUsage(ctx, batch); err != nil {
		return 0, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("delete what was replayed: %w", err)
	}
	return len(batch), nil
}

func readSpool(path string) ([]store.Usage, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var rows []store.Usage
	decoder := json.NewDecoder(bufio.NewReader(f))
	for decoder.More() {
		var u store.Usage
		if err := decoder.Decode(&u); err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		rows = append(rows, u)
	}
	return rows, nil
}
