package state

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/hashicorp/nomad/api"
)

// record is one row in the journal; a nil Row is a removed one. An allocation is kept without its job: Ref names the
// version it runs.
type record struct {
	Table string
	Key   string
	Row   any    `json:",omitempty"`
	Ref   string `json:",omitempty"`
}

func makeRecord[T any](table, key string, row *T) record {
	if row == nil {
		return record{Table: table, Key: key}
	}
	if a, ok := any(row).(*api.Allocation); ok {
		bare := *a
		bare.Job = nil
		return record{Table: table, Key: key, Row: &bare, Ref: versionKey(a.Namespace, a.JobID, *a.Job.JobModifyIndex)}
	}
	return record{Table: table, Key: key, Row: row}
}

// entry is one line of the journal: a checksum in hexadecimal, a blank, then this as JSON.
type entry struct {
	Index   uint64
	Records []record
}

type readEntry struct {
	Index   uint64
	Records []struct {
		Table, Key, Ref string
		Row             json.RawMessage
	}
}

// journal is one file of entries. It is rewritten from the live rows, beside itself and then moved into place, when
// it has grown to several times their size. A line cut short by a kill is the end of the file.
type journal struct {
	path string
	file *os.File
	size int64
	base int64 // size after the last rewrite
}

const rewriteAbove = 8 << 20

func openJournal(dir string, replay func(readEntry) error) (*journal, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the engine's data folder: %w", err)
	}
	j := &journal{path: filepath.Join(dir, "state.log")}
	file, err := os.OpenFile(j.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the engine's state: %w", err)
	}
	j.file = file
	if err := j.read(replay); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return j, nil
}

func (j *journal) read(replay func(readEntry) error) error {
	in := bufio.NewReaderSize(j.file, 1<<20)
	for {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break // what is left has no line end: it was cut short and never acknowledged
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", j.path, err)
		}
		e, ok := decodeLine(line)
		if !ok {
			if _, err := in.Peek(1); errors.Is(err, io.EOF) {
				break
			}
			return fmt.Errorf("%s is damaged at byte %d: restore it from a copy, or remove it to start with an empty state", j.path, j.size)
		}
		if err := replay(e); err != nil {
			return fmt.Errorf("read %s at byte %d: %w", j.path, j.size, err)
		}
		j.size += int64(len(line))
	}
	j.base = j.size
	if err := j.file.Truncate(j.size); err != nil {
		return fmt.Errorf("cut the unfinished end of %s: %w", j.path, err)
	}
	if _, err := j.file.Seek(j.size, io.SeekStart); err != nil {
		return fmt.Errorf("go to the end of %s: %w", j.path, err)
	}
	return nil
}

func decodeLine(line []byte) (readEntry, bool) {
	sum, text, ok := bytes.Cut(bytes.TrimSuffix(line, []byte{'\n'}), []byte{' '})
	if !ok {
		return readEntry{}, false
	}
	want, err := strconv.ParseUint(string(sum), 16, 32)
	if err != nil || uint32(want) != crc32.ChecksumIEEE(text) {
		return readEntry{}, false
	}
	var e readEntry
	if json.Unmarshal(text, &e) != nil {
		return readEntry{}, false
	}
	return e, true
}

func encodeLine(index uint64, records []record) ([]byte, error) {
	text, err := json.Marshal(entry{Index: index, Records: records})
	if err != nil {
		return nil, fmt.Errorf("encode change %d: %w", index, err)
	}
	return fmt.Appendf(nil, "%08x %s\n", crc32.ChecksumIEEE(text), text), nil
}

// append makes one change durable. dump lists the live rows before it, for a rewrite.
func (j *journal) append(index uint64, records []record, dump func() []record) error {
	if j.size > rewriteAbove && j.size > 4*j.base {
		if err := j.rewrite(index-1, dump()); err != nil {
			return err
		}
	}
	line, err := encodeLine(index, records)
	if err != nil {
		return err
	}
	if _, err := j.file.Write(line); err != nil {
		return errors.Join(fmt.Errorf("write change %d: %w", index, err), j.cut())
	}
	if err := j.file.Sync(); err != nil {
		return errors.Join(fmt.Errorf("make change %d durable: %w", index, err), j.cut())
	}
	j.size += int64(len(line))
	return nil
}

// cut removes a change that was refused, so that the next one does not follow half a line.
func (j *journal) cut() error {
	if err := j.file.Truncate(j.size); err != nil {
		return err
	}
	_, err := j.file.Seek(j.size, io.SeekStart)
	return err
}

func (j *journal) rewrite(index uint64, rows []record) error {
	temp := j.path + ".new"
	file, err := os.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("rewrite the engine's state: %w", err)
	}
	out := bufio.NewWriterSize(file, 1<<20)
	var size int64
	for start := 0; start < len(rows) || start == 0; start += 256 {
		line, err := encodeLine(index, rows[start:min(start+256, len(rows))])
		if err != nil {
			return errors.Join(err, file.Close())
		}
		if _, err := out.Write(line); err != nil {
			return errors.Join(fmt.Errorf("write %s: %w", temp, err), file.Close())
		}
		size += int64(len(line))
	}
	if err := errors.Join(out.Flush(), file.Sync(), os.Rename(temp, j.path), syncDir(filepath.Dir(j.path))); err != nil {
		return errors.Join(fmt.Errorf("put %s in place: %w", temp, err), file.Close())
	}
	old := j.file
	j.file, j.size, j.base = file, size, size
	return old.Close()
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func (j *journal) close() error { return j.file.Close() }
