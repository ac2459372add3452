package flight

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/clock"
)

const (
	suffix = ".flight.gz"
	// partBytes is about how large one file becomes. Each begins with the whole cluster, so that it can be read alone.
	partBytes = 8 << 20
	// flushEvery is how much time at most is lost when the process ends without a word.
	flushEvery = time.Second
	waiting    = 1024 // entries that may wait to be written
)

// Recorder writes entries into files of a folder, beside the work. It is safe for concurrent use.
type Recorder struct {
	dir   string
	limit int64
	clock clock.Clock
	log   hclog.Logger

	entries chan Entry
	done    chan struct{}
	lost    atomic.Int64

	// Of the file that is written:
	memory  memory
	file    *os.File
	zip     *gzip.Writer
	buffer  *bufio.Writer
	written int64 // bytes before compression
	failing bool
}

// Open makes a recorder that keeps about limit bytes in the folder and gives up the oldest beyond that.
func Open(dir string, limit int64, c clock.Clock, log hclog.Logger) (*Recorder, error) {
	if limit < partBytes {
		return nil, fmt.Errorf("keep decisions in %s: a limit of %d bytes is less than one file: write at least %d", dir, limit, partBytes)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("keep decisions: %w", err)
	}
	r := &Recorder{
		dir: dir, limit: limit, clock: c, log: log.Named("flight"), entries: make(chan Entry, waiting), done: make(chan struct{}),
	}
	if err := r.begin(); err != nil {
		return nil, err
	}
	go r.run()
	return r, nil
}

// Record keeps an entry. It never waits: when the disk is too slow the entry is lost and counted, and the next one is
// written with the whole cluster. Nothing of the entry must be changed afterwards, but for the slice that holds the
// nodes, and the refusal.
func (r *Recorder) Record(e Entry) {
	e.Snapshot.Nodes = slices.Clone(e.Snapshot.Nodes)
	if e.Decision.Refusal != nil {
		e.Decision.Refusal = new(*e.Decision.Refusal)
	}
	select {
	case r.entries <- e:
	default:
		r.lost.Add(1)
	}
}

// Lost is how many entries could not be kept.
func (r *Recorder) Lost() int64 { return r.lost.Load() }

// Close writes what waits. Record must not be called any more.
func (r *Recorder) Close() error {
	close(r.entries)
	<-r.done
	return r.end()
}

func (r *Recorder) run() {
	defer close(r.done)
	tick := r.clock.NewTicker(flushEvery)
	defer tick.Stop()
	fresh := false
	for {
		select {
		case e, ok := <-r.entries:
			if !ok {
				return
			}
			r.report(r.write(e))
			fresh = true
		case <-tick.C():
			if fresh {
				r.report(r.flush())
				fresh = false
			}
		}
	}
}

// report says the first of several failures; what was to be written is lost.
func (r *Recorder) report(err error) {
	if err != nil {
		r.lost.Add(1)
		r.memory = memory{}
		if !r.failing {
			r.log.Warn("decision not kept", "error", err)
		}
	}
	r.failing = err != nil
}

func (r *Recorder) write(e Entry) error {
	if r.file == nil || r.written > partBytes*4 { // which is about a part after compression
		if err := errors.Join(r.end(), r.begin()); err != nil {
			return err
		}
	}
	text, err := json.Marshal(r.memory.line(e))
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	text = append(text, '\n')
	r.written += int64(len(text))
	_, err = r.zip.Write(text)
	return err
}

func (r *Recorder) flush() error { return errors.Join(r.zip.Flush(), r.buffer.Flush()) }

// begin starts a file and makes room for it.
func (r *Recorder) begin() error {
	r.memory, r.written = memory{}, 0
	if err := r.makeRoom(); err != nil {
		return err
	}
	name := filepath.Join(r.dir, r.clock.Now().UTC().Format("20060102T150405.000000000")+suffix)
	file, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("keep decisions: %w", err)
	}
	r.file, r.buffer = file, bufio.NewWriter(file)
	r.zip = gzip.NewWriter(r.buffer)
	return nil
}

func (r *Recorder) end() error {
	if r.file == nil {
		return nil
	}
	err := errors.Join(r.zip.Close(), r.buffer.Flush(), r.file.Close())
	r.file = nil
	return err
}

// makeRoom gives up the oldest files until one more fits.
func (r *Recorder) makeRoom() error {
	names, err := files(r.dir)
	if err != nil {
		return err
	}
	sizes := make([]int64, len(names))
	total := int64(partBytes)
	for i, name := range names {
		info, err := os.Stat(name)
		if err != nil {
			return fmt.Errorf("keep decisions: %w", err)
		}
		sizes[i] = info.Size()
		total += sizes[i]
	}
	for i := 0; i < len(names) && total > r.limit; i++ {
		if err := os.Remove(names[i]); err != nil {
			return fmt.Errorf("keep decisions: %w", err)
		}
		total -= sizes[i]
	}
	return nil
}

// files lists the files of a folder, oldest first.
func files(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", dir, err)
	}
	var out []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), suffix) && e.Type().IsRegular() {
			out = append(out, filepath.Join(dir, e.Name()))
		}
	}
	slices.Sort(out)
	return out, nil
}
