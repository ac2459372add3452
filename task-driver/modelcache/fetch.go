package modelcache

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// How long a source is borne with.
const (
	patience      = 5        // failures one after another
	peerPatience  = 1        // of another node: there are others, and the source
	leastProgress = 64 << 10 // bytes; less in Options.Silence is silence
	longestPause  = 30 * time.Second
)

// fetch is one fetch of a model, by who holds its lock.
type fetch struct {
	cache *Cache
	model Model
	dir   string
	event func(string)

	total, done atomic.Int64 // bytes

	mu    sync.Mutex
	state state
	sizes map[string]int64 // of the files, as far as known
	told  string           // the origin that people were told of
}

// run gets the model from the first that has it: a peer, else its source.
func (f *fetch) run(ctx context.Context, from origin) error {
	f.state, f.sizes = f.cache.readState(f.model.key), map[string]int64{}
	if err := os.MkdirAll(f.dir, 0o755); err != nil {
		return fmt.Errorf("make folder for model: %w", err)
	}
	defer f.report(ctx)()
	for _, peer := range f.cache.peersOf(f.model.key, f.model.Tree) {
		err := f.get(ctx, peer, peerPatience)
		if err == nil || ctx.Err() != nil {
			return err
		}
		f.cache.o.Log.Debug("model not got from peer", "model", f.model.key, "peer", peer.String(), "error", err)
	}
	return f.get(ctx, from, patience)
}

// originError is the fault of where a file was got from: another may have it.
type originError struct{ err error }

func (e *originError) Error() string { return e.err.Error() }
func (e *originError) Unwrap() error { return e.err }

// get gets the whole model from one origin.
func (f *fetch) get(ctx context.Context, o origin, patience int) error {
	_, sum, _ := strings.Cut(f.model.key, "-")
	if f.model.Tree {
		return f.tree(ctx, o, sum, patience)
	}
	return f.file(ctx, o, wanted{rel: fileName, sum: sum}, patience)
}

// wanted is one file of a model.
type wanted struct {
	name string // below the origin; empty is the origin itself
	rel  string // below the model's folder
	sum  string
	most int64 // bytes it may have; 0 is what there is room for
}

// file gets one file. What is there of it already is kept, unless the whole turns out to be wrong: then once more from the
// beginning.
func (f *fetch) file(ctx context.Context, o origin, w wanted, patience int) error {
	err := f.attempt(ctx, o, w, patience)
	var wrong *mismatch
	if errors.As(err, &wrong) && wrong.resumed {
		err = f.attempt(ctx, o, w, patience)
	}
	return err
}

// attempt gets what is missing of a file, and holds the whole against the checksum. A file that is wrong is removed.
func (f *fetch) attempt(ctx context.Context, o origin, w wanted, patience int) (err error) {
	path := filepath.Join(f.dir, filepath.FromSlash(w.rel))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make folder for model: %w", err)
	}
	// A kill between the last steps leaves files that nobody but root could write.
	if err := os.Chmod(path, 0o600); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("open part of model: %w", err)
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("open part of model: %w", err)
	}
	part := &part{fetch: f, wanted: w, file: file, hash: sha256.New()}
	defer func() { err = errors.Join(err, file.Close()) }()
	if err := part.recall(ctx); err != nil {
		return err
	}
	resumed := part.at > 0
	if !resumed || part.sum() != w.sum {
		if err := part.rest(ctx, o, patience); err != nil {
			return err
		}
	}
	if got := part.sum(); got != w.sum {
		wrong := &mismatch{name: o.String() + w.name, want: w.sum, got: got, resumed: resumed && part.kept}
		if err := part.restart(); err != nil {
			return err
		}
		return &originError{wrong}
	}
	return nil
}

// part is a file as far as it is there.
type part struct {
	*fetch
	wanted
	file *os.File
	hash hash.Hash
	at   int64
	kept bool         // what was there before was gone on with
	came atomic.Int64 // bytes, of all requests
}

func (p *part) sum() string { return hex.EncodeToString(p.hash.Sum(nil)) }

// recall reads what is there. After a loss of power it may be anything: it is the checksum that decides.
func (p *part) recall(ctx context.Context) error {
	p.kept = true
	buf := make([]byte, 1<<20)
	for ctx.Err() == nil {
		n, err := p.file.Read(buf)
		p.take(buf[:n])
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read part of model: %w", err)
		}
	}
	return ctx.Err()
}

func (p *part) take(b []byte) {
	_, _ = p.hash.Write(b) // never fails
	p.at += int64(len(b))
	p.done.Add(int64(len(b)))
	p.came.Add(int64(len(b)))
}

// restart drops what is there.
func (p *part) restart() error {
	if err := p.file.Truncate(0); err != nil {
		return fmt.Errorf("drop part of model: %w", err)
	}
	if _, err := p.file.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("drop part of model: %w", err)
	}
	p.done.Add(-p.at)
	p.hash.Reset()
	p.at, p.kept = 0, false
	return nil
}

// rest gets what is missing, and asks again after a failure.
func (p *part) rest(ctx context.Context, o origin, patience int) error {
	for failures := 0; ; {
		before := p.at
		whole, err := p.more(ctx, o)
		var bad *originError
		switch {
		case whole || err != nil && !errors.As(err, &bad):
			return err
		case ctx.Err() != nil:
			return fmt.Errorf("fetch model: %w", context.Cause(ctx))
		case isStubborn(err):
			return err
		case p.at-before >= leastProgress:
			failures = 0
		}
		if failures++; failures >= patience {
			return &passing{err}
		}
		p.cache.o.Log.Debug("model asked for again", "model", p.model.key, "file", p.rel, "at", p.at, "error", err)
		timer := time.NewTimer(min(p.cache.o.Backoff<<(failures-1), longestPause))
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// more asks once, and reports whether the file is whole then.
func (p *part) more(ctx context.Context, o origin) (whole bool, err error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	got, err := o.open(ctx, p.name, p.at, p.tag(p.rel, o))
	if err != nil {
		return false, &originError{err}
	}
	defer got.body.Close() //nolint:errcheck // only read
	if p.most > 0 && got.total > p.most {
		return false, &originError{stubbornf("%s%s has %s, at most %s are read", o, p.name, formatBytes(got.total), formatBytes(p.most))}
	}
	if got.offset != p.at {
		if err := p.restart(); err != nil {
			return false, err
		}
	}
	if err := p.expect(ctx, map[string]int64{p.rel: got.total}, tags{o.String(), got.etag}); err != nil {
		return false, err
	}
	p.announce(o)
	defer p.guard(ctx, stop)()
	err = p.copy(io.LimitReader(got.body, got.total-p.at))
	switch {
	case err == nil && p.at == got.total:
		return true, nil
	case err == nil:
		err = &originError{fmt.Errorf("%s%s ended after %s of %s", o, p.name, formatBytes(p.at), formatBytes(got.total))}
	case context.Cause(ctx) != nil:
		err = &originError{fmt.Errorf("%s%s: %w", o, p.name, context.Cause(ctx))}
	}
	return false, err
}

// copy takes what comes. Errors of the reader are the origin's, errors of the file ours.
func (p *part) copy(from io.Reader) error {
	buf := make([]byte, 256<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if _, err := p.file.Write(buf[:n]); err != nil {
				if noRoom(err) {
					return &passing{fmt.Errorf("the disk of %s is full: make room there, or have models { max_size } lowered in the plugin's config so that models are given up before", p.cache.o.Dir)}
				}
				return fmt.Errorf("write model: %w", err)
			}
			p.take(buf[:n])
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return &originError{fmt.Errorf("read: %w", err)}
		}
	}
}

// guard ends a request of which next to nothing comes.
func (p *part) guard(ctx context.Context, stop context.CancelCauseFunc) func() {
	ended := make(chan struct{})
	var watching sync.WaitGroup
	seen := p.came.Load()
	watching.Go(func() {
		ticker := time.NewTicker(p.cache.o.Silence)
		defer ticker.Stop()
		for {
			select {
			case <-ended:
				return
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			now := p.came.Load()
			if now-seen < leastProgress {
				stop(fmt.Errorf("less than %s came in %s", formatBytes(leastProgress), p.cache.o.Silence))
				return
			}
			seen = now
		}
	})
	return func() { close(ended); watching.Wait() }
}

// tag is what the origin said of a file's content before.
func (f *fetch) tag(rel string, o origin) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t := f.state.Tags[rel]; t.Origin == o.String() {
		return t.ETag
	}
	return ""
}

// expect takes in how long files are, and makes sure that there is room for the whole model.
func (f *fetch) expect(ctx context.Context, sizes map[string]int64, t tags) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.state
	f.state.Tags = maps.Clone(old.Tags)
	for rel, size := range sizes {
		f.sizes[rel] = size
		if t.Origin != "" {
			f.state.Tags[rel] = t
		}
	}
	total := int64(0)
	for _, size := range f.sizes {
		if total += size; total < 0 {
			return &originError{stubbornf("the model is longer than any disk")}
		}
	}
	if f.state.Total = total; total == old.Total && maps.Equal(f.state.Tags, old.Tags) && f.total.Load() == total {
		return nil
	}
	f.total.Store(total)
	return f.cache.keepRoom(ctx, f.model.key, f.state)
}

// announce tells where the model comes from.
func (f *fetch) announce(o origin) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.told == o.String() {
		return
	}
	f.told = o.String()
	text := fmt.Sprintf("Fetching model %s (%s) from %s", f.model.Name, formatBytes(f.total.Load()), f.told)
	if done := f.done.Load(); done > 0 {
		text += ": " + percent(done, f.total.Load()) + " are there"
	}
	f.event(text)
}
