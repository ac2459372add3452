package flight

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
)

// ErrCut says that a file ends in the middle of a line, as it does when the process ended without a word.
var ErrCut = errors.New("the end is missing")

// Files gives every entry of a file, or of the files of a folder in the order in which they were written. An error is of
// one file and goes with an empty entry; the next file follows.
func Files(path string) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		names := []string{path}
		if info, err := os.Stat(path); err != nil {
			yield(Entry{}, err)
			return
		} else if info.IsDir() {
			if names, err = files(path); err != nil || len(names) == 0 {
				yield(Entry{}, errors.Join(err, fmt.Errorf("%s has no file of decisions: start the service with -record %s", path, path)))
				return
			}
		}
		for _, name := range names {
			if !file(name, yield) {
				return
			}
		}
	}
}

func file(name string, yield func(Entry, error) bool) bool {
	f, err := os.Open(name)
	if err != nil {
		return yield(Entry{}, err)
	}
	defer f.Close() //nolint:errcheck // nothing was written
	for e, err := range Read(f) {
		if err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
		if !yield(e, err) {
			return false
		}
	}
	return true
}

// Read gives every entry of one file. The last may come with an error, ErrCut when the file has no end.
func Read(r io.Reader) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		plain, err := gzip.NewReader(bufio.NewReader(r))
		if errors.Is(err, io.EOF) {
			return // nothing was written
		}
		if err != nil {
			yield(Entry{}, fmt.Errorf("not a file of decisions: %w", err))
			return
		}
		dec := json.NewDecoder(plain)
		var m memory
		for n := 1; ; n++ {
			var l line
			switch err := dec.Decode(&l); {
			case errors.Is(err, io.EOF):
				return
			case errors.Is(err, io.ErrUnexpectedEOF):
				yield(Entry{}, fmt.Errorf("decision %d: %w", n, ErrCut))
				return
			case err != nil:
				yield(Entry{}, fmt.Errorf("decision %d: %w", n, err))
				return
			case l.Version != 1:
				yield(Entry{}, fmt.Errorf("decision %d: format %d is not known to this build: use a newer heteroflow", n, l.Version))
				return
			}
			if l.Demand != nil {
				if err := l.Demand.Check(); err != nil {
					yield(Entry{}, fmt.Errorf("decision %d: %w", n, err))
					return
				}
			}
			e, ok := m.entry(l)
			if !ok {
				yield(Entry{}, fmt.Errorf("decision %d: it counts on lines that are missing", n))
				return
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}
